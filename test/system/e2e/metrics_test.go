package e2e

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// metrics is a parsed exposition.
type metrics struct {
	t        *testing.T
	families map[string]*dto.MetricFamily
}

func parseMetrics(t *testing.T, body []byte) metrics {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	must.That(t, err == nil, "parse the exposition: %v", err)
	return metrics{t, families}
}

// rows returns the metrics of a family with these labels, given as alternating names and values.
func (m metrics) rows(name string, labels ...string) []*dto.Metric {
	var out []*dto.Metric
	for _, row := range m.families[name].GetMetric() {
		if hasLabels(row, labels) {
			out = append(out, row)
		}
	}
	return out
}

func hasLabels(row *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if !slices.ContainsFunc(row.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}) {
			return false
		}
	}
	return true
}

// sum returns the sum of the values of those rows, and how many there are.
func (m metrics) sum(name string, labels ...string) (sum float64, n int) {
	for _, row := range m.rows(name, labels...) {
		sum += rowValue(row)
		n++
	}
	return sum, n
}

// value returns the value of the only row with these labels, and false if there is none.
func (m metrics) value(name string, labels ...string) (float64, bool) {
	rows := m.rows(name, labels...)
	must.That(m.t, len(rows) <= 1, "%d rows of %s%q, want one", len(rows), name, labels)
	if len(rows) == 0 {
		return 0, false
	}
	return rowValue(rows[0]), true
}

// want checks the value of the only row with these labels.
func (m metrics) want(want float64, name string, labels ...string) {
	got, ok := m.value(name, labels...)
	expect.That(m.t, ok && got == want, "%s%q is %v (there: %v), want %v", name, labels, got, ok, want)
}

// wantNone checks that there is no such row.
func (m metrics) wantNone(name string, labels ...string) {
	rows := m.rows(name, labels...)
	expect.That(m.t, len(rows) == 0, "%d rows of %s%q, want none", len(rows), name, labels)
}

// is reports whether the only row with these labels has that value.
func (m metrics) is(want float64, name string, labels ...string) bool {
	got, ok := m.value(name, labels...)
	return ok && got == want
}

// positive reports whether there is one row with these labels and its value is above 0.
func (m metrics) positive(name string, labels ...string) bool {
	got, ok := m.value(name, labels...)
	return ok && got > 0
}

func rowValue(row *dto.Metric) float64 {
	switch {
	case row.Counter != nil:
		return row.GetCounter().GetValue()
	case row.Gauge != nil:
		return row.GetGauge().GetValue()
	default:
		return row.GetUntyped().GetValue()
	}
}

// report gets the snapshot.
func (p *program) report() present.Report {
	var r present.Report
	d := json.NewDecoder(bytes.NewReader(p.page("/api/v1/snapshot").Body))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	must.That(p.t, err == nil, "decode the snapshot: %v", err)
	return r
}

// conserved checks that the values of claims and the unattributed value sum to the device's value,
// and the values of pods to the claim's. It returns the number of comparisons.
func conserved(t *testing.T, r present.Report) int {
	t.Helper()
	compared, wrong := invariant.Conserved(&r)
	for _, err := range wrong {
		t.Error(err)
	}
	return compared
}

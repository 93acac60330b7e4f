package e2e

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
)

// metrics is a parsed exposition.
type metrics struct {
	t        *testing.T
	families map[string]*dto.MetricFamily
}

func parseMetrics(t *testing.T, body []byte) metrics {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		t.Fatalf("parse the exposition: %v", err)
	}
	return metrics{t, families}
}

// rows returns the metrics of a family that have these labels, given as names and values in turns.
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

// value returns the value of the only row with these labels; false without one.
func (m metrics) value(name string, labels ...string) (float64, bool) {
	m.t.Helper()
	rows := m.rows(name, labels...)
	if len(rows) > 1 {
		m.t.Fatalf("%d rows of %s%q, want one", len(rows), name, labels)
	}
	if len(rows) == 0 {
		return 0, false
	}
	return rowValue(rows[0]), true
}

// want checks the value of the only row with these labels.
func (m metrics) want(want float64, name string, labels ...string) {
	m.t.Helper()
	if got, ok := m.value(name, labels...); !ok || got != want {
		m.t.Errorf("%s%q is %v (there: %v), want %v", name, labels, got, ok, want)
	}
}

// wantNone checks that there is no such row.
func (m metrics) wantNone(name string, labels ...string) {
	m.t.Helper()
	if rows := m.rows(name, labels...); len(rows) > 0 {
		m.t.Errorf("%d rows of %s%q, want none", len(rows), name, labels)
	}
}

// is tells whether the only row with these labels has that value.
func (m metrics) is(want float64, name string, labels ...string) bool {
	m.t.Helper()
	got, ok := m.value(name, labels...)
	return ok && got == want
}

// positive tells whether the only row with these labels is there and above 0.
func (m metrics) positive(name string, labels ...string) bool {
	m.t.Helper()
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

// report asks for the snapshot.
func (p *program) report() exporter.Report {
	p.t.Helper()
	var r exporter.Report
	d := json.NewDecoder(bytes.NewReader(p.page("/api/v1/snapshot").body))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		p.t.Fatalf("decode the snapshot: %v", err)
	}
	return r
}

// amount names a value of a device.
type amount struct {
	id       driver.ID
	quantity string
	labels   string
}

func amounts(id driver.ID, values []exporter.ValueReport, into map[amount]float64) {
	for _, v := range values {
		labels, _ := json.Marshal(v.Labels) // sorted; a map of strings has no errors
		into[amount{id, v.Quantity, string(labels)}] += v.Value
	}
}

// conserved checks that what a device did is what its claims did and what was left over, and that the pods did what the
// claims did. It returns how many values it compared.
func conserved(t *testing.T, r exporter.Report) int {
	t.Helper()
	devices, claims, pods, nobody := map[amount]float64{}, map[amount]float64{}, map[amount]float64{}, map[amount]float64{}
	for i := range r.Devices {
		amounts(r.Devices[i].ID, r.Devices[i].Values, devices)
		amounts(r.Devices[i].ID, r.Devices[i].Unattributed, nobody)
	}
	for i := range r.Claims {
		amounts(r.Claims[i].ID, r.Claims[i].Values, claims)
	}
	for i := range r.Pods {
		amounts(r.Pods[i].ID, r.Pods[i].Values, pods)
	}
	compared := 0
	for a, whole := range devices {
		if !additive(a.quantity) {
			continue
		}
		compared++
		if parts := claims[a] + nobody[a]; !near(whole, parts) {
			t.Errorf("%v: the device has %v, its claims and nobody %v", a, whole, parts)
		}
		if !near(claims[a], pods[a]) {
			t.Errorf("%v: the claims have %v, the pods %v", a, claims[a], pods[a])
		}
	}
	return compared
}

func additive(quantity string) bool {
	for q := range driver.NumQuantities {
		if q.String() == quantity {
			return q.Spec().Sharing == driver.Additive
		}
	}
	return false
}

func near(a, b float64) bool {
	return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1e-9)
}

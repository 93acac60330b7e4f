package e2e

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// metrics is a parsed exposition.
type metrics struct {
	live.Metrics
	t *testing.T
}

func parseMetrics(t *testing.T, body []byte) metrics {
	return metrics{must.Get(live.ParseMetrics(body))(t), t}
}

// sum returns the sum of the values of those rows, and how many there are.
func (m metrics) sum(name string, labels ...string) (sum float64, n int) {
	for _, row := range m.Rows(name, labels...) {
		sum += live.ValueOf(row)
		n++
	}
	return sum, n
}

// value returns the value of the only row with these labels, and false if there is none.
func (m metrics) value(name string, labels ...string) (float64, bool) {
	rows := m.Rows(name, labels...)
	must.That(m.t, len(rows) <= 1, "%d rows of %s%q, want one", len(rows), name, labels)
	if len(rows) == 0 {
		return 0, false
	}
	return live.ValueOf(rows[0]), true
}

// want checks the value of the only row with these labels.
func (m metrics) want(want float64, name string, labels ...string) {
	got, ok := m.value(name, labels...)
	expect.That(m.t, ok && got == want, "%s%q is %v (there: %v), want %v", name, labels, got, ok, want)
}

// wantNone checks that there is no such row.
func (m metrics) wantNone(name string, labels ...string) {
	rows := m.Rows(name, labels...)
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

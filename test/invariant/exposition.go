package invariant

import (
	"fmt"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// Exposition checks the scrapes of one run of the exporter in their order, as [Checker] does its snapshots. The exporter is to hold no counter
// at zero, and the run to be shorter than its retention. The zero value is ready.
type Exposition struct {
	counters map[string]float64 // by family and labels
	compared int
}

// Compared returns how many sums were compared so far.
func (e *Exposition) Compared() int { return e.compared }

// Check returns what is wrong with the next scrape: what a device did is not what its claims did and what was left over, pods did not do
// what claims did, a series is there twice, a counter falls, that of a claim or pod is lost, or the series are not counted.
func (e *Exposition) Check(families map[string]*dto.MetricFamily) []error {
	const unattributed = "dra_device_unattributed_"
	var wrong []error
	for name := range families {
		if quantity, ok := strings.CutPrefix(name, unattributed); ok {
			wrong = append(wrong, e.conserved(families, "dra_device_"+quantity, name, quantity)...)
		}
	}
	wrong = append(wrong, e.conserved(families, "dra_device_allocated_seconds_total", "", "allocated_share_seconds_total")...)
	wrong = append(wrong, e.monotonic(families)...)
	return append(wrong, counted(families)...)
}

// conserved compares the sums of one quantity by device and by what else tells its series apart.
func (e *Exposition) conserved(families map[string]*dto.MetricFamily, whole, nobody, quantity string) []error {
	claims, pods, rest := sums(families["dra_claim_"+quantity]), sums(families["dra_pod_"+quantity]), sums(families[nobody])
	var wrong []error
	for device, value := range sums(families[whole]) {
		e.compared++
		if parts := claims[device] + rest[device]; !near(value, parts) {
			wrong = append(wrong, fmt.Errorf("%s{%s} is %v, of its claims and nobody %v", whole, device, value, parts))
		}
		if !near(claims[device], pods[device]) {
			wrong = append(wrong, fmt.Errorf("%s{%s}: the claims have %v, the pods %v", quantity, device, claims[device], pods[device]))
		}
	}
	return wrong
}

// sums returns the sums over the holders.
func sums(family *dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for _, m := range family.GetMetric() {
		out[labels(m, "namespace", "resourceclaim_name", "pod")] += m.GetCounter().GetValue() + m.GetGauge().GetValue() // one of them is nil
	}
	return out
}

// monotonic compares all counters of devices and holders with those of the scrape before.
func (e *Exposition) monotonic(families map[string]*dto.MetricFamily) []error {
	now, seen := map[string]float64{}, map[string]bool{}
	var wrong []error
	for name, family := range families {
		for _, m := range family.GetMetric() {
			s := name + "{" + labels(m) + "}"
			if seen[s] {
				wrong = append(wrong, fmt.Errorf("%s is there twice", s))
			}
			seen[s] = true
			if m.Counter != nil && ofDevices(name) {
				now[s] = m.GetCounter().GetValue()
			}
		}
	}
	for s, before := range e.counters {
		after, ok := now[s]
		switch {
		case ok && after < before:
			wrong = append(wrong, fmt.Errorf("%s falls from %v to %v", s, before, after))
		case !ok && !strings.HasPrefix(s, "dra_device_"): // whose counters are absent while they can't be read
			wrong = append(wrong, fmt.Errorf("%s is lost; it was %v", s, before))
		}
	}
	e.counters = now
	return wrong
}

// counted checks that the exporter knows how much it says.
func counted(families map[string]*dto.MetricFamily) []error {
	count := 0.0
	for name, family := range families {
		if ofDevices(name) {
			count += float64(len(family.GetMetric()))
		}
	}
	if said := families["dra_exporter_series"].GetMetric(); len(said) != 1 || said[0].GetGauge().GetValue() != count {
		return []error{fmt.Errorf("%v series, dra_exporter_series is %v", count, said)}
	}
	return nil
}

// ofDevices tells a family of devices and holders from those of the exporter itself.
func ofDevices(name string) bool {
	return strings.HasPrefix(name, "dra_") && !strings.HasPrefix(name, "dra_exporter_")
}

// labels renders the labels of a series without some.
func labels(m *dto.Metric, without ...string) string {
	var out []string
	for _, l := range m.GetLabel() {
		if !slices.Contains(without, l.GetName()) {
			out = append(out, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

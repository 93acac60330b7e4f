package invariant

import (
	"fmt"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Exposition checks the scrapes of one run of the exporter in their order, as [Checker] does its
// snapshots. The exporter is to hold no counter at zero, and the run to be shorter than its
// retention. The zero value is ready.
type Exposition struct {
	counters map[string]float64   // by family and labels
	plugged  map[driver.ID]bool   // devices that a device plugin ever gave to pods, charged in addition to claims
	parents  map[driver.ID]string // the names of the parents of all partitions that were seen
	compared int
}

// Compared returns how many sums were compared so far.
func (e *Exposition) Compared() int { return e.compared }

// Check returns what is wrong with the next scrape: what a device did is not what its pods did and
// what was left over, pods did not do what claims did, unless a device plugin gave them the device,
// a series is there twice, a counter falls, that of a claim or pod is lost, or the series are not
// counted.
func (e *Exposition) Check(families map[string]*dto.MetricFamily) []error {
	const unattributed = "dra_device_unattributed_"
	e.observeParents(families["dra_device_info"])
	e.observePlugins(families["dra_pod_claim_info"])
	var wrong []error
	for name := range families {
		if quantity, ok := strings.CutPrefix(name, unattributed); ok {
			wrong = append(wrong, e.conserved(families, "dra_device_"+quantity, name, quantity)...)
		}
	}
	wrong = append(wrong,
		e.conserved(families, "dra_device_allocated_seconds_total", "", "allocated_share_seconds_total")...)
	wrong = append(wrong, e.monotonic(families)...)
	return append(wrong, counted(families)...)
}

// observePlugins notes which devices pods have without a claim, or have partitions of.
func (e *Exposition) observePlugins(info *dto.MetricFamily) {
	if e.plugged == nil {
		e.plugged = map[driver.ID]bool{}
	}
	for _, m := range info.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "resourceclaim_name" && l.GetValue() == "" {
				id := deviceOf(m)
				e.plugged[id] = true
				if parent := e.parents[id]; parent != "" {
					e.plugged[driver.ID{Driver: id.Driver, Pool: id.Pool, Device: parent}] = true
				}
			}
		}
	}
}

// observeParents notes which devices are partitions.
func (e *Exposition) observeParents(info *dto.MetricFamily) {
	if e.parents == nil {
		e.parents = map[driver.ID]string{}
	}
	for _, m := range info.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "parent" && l.GetValue() != "" {
				e.parents[deviceOf(m)] = l.GetValue()
			}
		}
	}
}

// conserved compares the sums of one quantity by device and by what else tells its series apart.
func (e *Exposition) conserved(families map[string]*dto.MetricFamily, whole, nobody, quantity string) []error {
	devices, rest := sums(families[whole], nil), sums(families[nobody], nil)
	// What a partition does not measure itself, its holders have of its parent.
	parentOf := func(id driver.ID) string {
		for _, d := range devices {
			if d.device == id {
				return ""
			}
		}
		return e.parents[id]
	}
	if !divided(quantity) {
		parentOf = nil
	}
	claims, pods := sums(families["dra_claim_"+quantity], parentOf), sums(families["dra_pod_"+quantity], parentOf)
	var wrong []error
	for series, value := range devices {
		e.compared++
		if parts := pods[series].value + rest[series].value; !near(value.value, parts) {
			wrong = append(wrong, fmt.Errorf("%s{%s} is %v, of its pods and nobody %v", whole, series, value.value, parts))
		}
		if !near(claims[series].value, pods[series].value) && !e.plugged[value.device] {
			wrong = append(wrong,
				fmt.Errorf("%s{%s}: the claims have %v, the pods %v", quantity, series, claims[series].value, pods[series].value))
		}
	}
	return wrong
}

// divided reports whether holders of partitions have parts of the parent's value of a metric.
func divided(metric string) bool {
	for q := range driver.NumQuantities {
		if s := q.Spec(); s.Metric == metric && s.Divided {
			return true
		}
	}
	return false
}

// sum is a value of a device.
type sum struct {
	device driver.ID
	value  float64
}

// sums returns the sums over the holders. parentOf, if any, returns the name of the device to which
// the values of another one of the same pool are added.
func sums(family *dto.MetricFamily, parentOf func(driver.ID) string) map[string]sum {
	out := map[string]sum{}
	for _, m := range family.GetMetric() {
		id := deviceOf(m)
		series := labels(m, "namespace", "resourceclaim_name", "pod")
		if parentOf != nil {
			if parent := parentOf(id); parent != "" {
				series = strings.Replace(series, fmt.Sprintf("device=%q", id.Device), fmt.Sprintf("device=%q", parent), 1)
			}
		}
		before := out[series].value
		out[series] = sum{id, before + m.GetCounter().GetValue() + m.GetGauge().GetValue()} // one of them is nil
	}
	return out
}

// deviceOf returns which device a series is of.
func deviceOf(m *dto.Metric) driver.ID {
	var id driver.ID
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "driver":
			id.Driver = l.GetValue()
		case "pool":
			id.Pool = l.GetValue()
		case "device":
			id.Device = l.GetValue()
		}
	}
	return id
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

// seriesOf returns how many series a metric has: a histogram has one for each bucket, that without
// an end included, its sum and its count.
func seriesOf(m *dto.Metric) float64 {
	buckets := m.GetHistogram().GetBucket()
	if len(buckets) == 0 {
		return 1
	}
	return float64(len(buckets) + 2)
}

// counted checks that the exporter knows how much it says.
func counted(families map[string]*dto.MetricFamily) []error {
	count := 0.0
	for name, family := range families {
		if !ofDevices(name) {
			continue
		}
		for _, m := range family.GetMetric() {
			count += seriesOf(m)
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

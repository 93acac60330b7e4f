package invariant

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Exposition checks the scrapes of one run of the exporter in their order, as [Checker] checks its
// snapshots. The exporter must not hold counters at zero, and the run must be shorter than its
// retention. The zero value is ready to use.
type Exposition struct {
	counters map[string]float64   // by family and labels
	plugged  map[driver.ID]bool   // devices that a device plugin gave to pods, charged in addition to claims
	parents  map[driver.ID]string // names of the parents of all partitions seen
	compared int
}

// Compared returns the number of compared sums.
func (e *Exposition) Compared() int { return e.compared }

// Check returns the errors of the next scrape: a device's value is not the sum of its pods' parts
// and the unattributed part; claims and pods differ, without a device plugin; a series occurs
// twice; a counter falls; a counter of a claim or pod is lost; or the number of series is wrong.
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

// observePlugins records the devices that pods have without a claim.
func (e *Exposition) observePlugins(info *dto.MetricFamily) {
	if e.plugged == nil {
		e.plugged = map[driver.ID]bool{}
	}
	for _, m := range info.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "resourceclaim_name" && l.GetValue() == "" {
				e.plugged[deviceOf(m)] = true
			}
		}
	}
}

// isPlugged reports whether pods have had the device, or a partition of it, without a claim. The
// parent of a partition may become known later.
func (e *Exposition) isPlugged(device driver.ID) bool {
	for id := range e.plugged {
		if parent := (driver.ID{Driver: id.Driver, Pool: id.Pool, Device: e.parents[id]}); device == id || device == parent {
			return true
		}
	}
	return false
}

// observeParents records which devices are partitions.
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

// conserved compares the sums of one quantity by device and the quantity's labels.
func (e *Exposition) conserved(families map[string]*dto.MetricFamily, whole, nobody, quantity string) []error {
	devices, rest := sums(families[whole], nil), sums(families[nobody], nil)
	// Holders get parts of the parent's value if the partition does not measure it.
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
		if !near(claims[series].value, pods[series].value) && !e.isPlugged(value.device) {
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

// sum is a device's value.
type sum struct {
	device driver.ID
	value  float64
}

// sums returns the sums over the holders. If parentOf is not nil, a device's values are added to
// those of the device of that name in the same pool.
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

// deviceOf returns the device of a series.
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

// monotonic compares all counters of devices and holders with those of the previous scrape.
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
		case !ok && !strings.HasPrefix(s, "dra_device_"): // counters of a device are absent while it can't be read
			wrong = append(wrong, fmt.Errorf("%s is lost; it was %v", s, before))
		}
	}
	e.counters = now
	return wrong
}

// seriesOf returns the number of series of a metric: a histogram has its buckets, including +Inf,
// its sum and its count.
func seriesOf(m *dto.Metric) float64 {
	buckets := m.GetHistogram().GetBucket()
	if len(buckets) == 0 {
		return 1
	}
	return float64(len(buckets) + 2)
}

// counted checks the exporter's own number of series.
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

// ofDevices reports whether a family is about devices and holders, and not about the exporter.
func ofDevices(name string) bool {
	return strings.HasPrefix(name, "dra_") && !strings.HasPrefix(name, "dra_exporter_")
}

// labels renders the labels of a series, except some.
func labels(m *dto.Metric, without ...string) string {
	var out []string
	for _, l := range m.GetLabel() {
		if !slices.Contains(without, l.GetName()) {
			out = append(out, l.GetName()+"="+strconv.Quote(l.GetValue()))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

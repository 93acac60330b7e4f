package exporter

import (
	"cmp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/driver"
)

// labelPair is the memory of one dto.LabelPair. The pairs of a series lie side by side, since most of the time of a
// scrape is spent waiting for them.
type labelPair struct {
	dto.LabelPair
	name, value string
}

// pairs makes label pairs of names and values in turns, sorted by name as Prometheus wants them.
func pairs(namesAndValues ...string) []*dto.LabelPair { return withPairs(nil, namesAndValues...) }

// withPairs returns base with label pairs of names and values in turns, sorted by name. The base is not changed.
func withPairs(base []*dto.LabelPair, namesAndValues ...string) []*dto.LabelPair {
	slab := make([]labelPair, len(namesAndValues)/2)
	out := append(make([]*dto.LabelPair, 0, len(base)+len(slab)), base...)
	for i := range slab {
		p := &slab[i]
		p.name, p.value = namesAndValues[2*i], namesAndValues[2*i+1]
		p.Name, p.Value = &p.name, &p.value
		out = append(out, &p.LabelPair)
	}
	sortLabels(out)
	return out
}

func sortLabels(l []*dto.LabelPair) {
	slices.SortFunc(l, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
}

func deviceLabels(id driver.ID) []*dto.LabelPair {
	return pairs("driver", id.Driver, "pool", id.Pool, "device", id.Device)
}

func holderLabels(holder string, k accountKey) []*dto.LabelPair {
	return pairs("namespace", k.Namespace, holder, k.Name, "driver", k.Device.Driver, "pool", k.Device.Pool, "device", k.Device.Device)
}

// joinLabels returns base with the quantity's labels; without any it is base itself.
func joinLabels(base []*dto.LabelPair, names []string, values driver.Labels) []*dto.LabelPair {
	if len(names) == 0 {
		return base
	}
	more := make([]string, 0, 2*len(names))
	for i, name := range names {
		more = append(more, name, values[i])
	}
	return withPairs(base, more...)
}

func labelNames(q driver.Quantity) []string {
	var out []string
	for _, l := range q.Spec().Labels {
		out = append(out, l.Name)
	}
	return out
}

func (k seriesKey) compare(other seriesKey) int {
	return cmp.Or(
		cmp.Compare(k.quantity, other.quantity),
		strings.Compare(k.labels[0], other.labels[0]),
		strings.Compare(k.labels[1], other.labels[1]),
	)
}

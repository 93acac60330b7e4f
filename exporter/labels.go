package exporter

import (
	"cmp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/driver"
)

// pairs makes label pairs of names and values in turns, sorted by name as Prometheus wants them.
func pairs(namesAndValues ...string) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(namesAndValues)/2)
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		out = append(out, &dto.LabelPair{Name: new(namesAndValues[i]), Value: new(namesAndValues[i+1])})
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
	out := slices.Clone(base)
	for i, name := range names {
		out = append(out, &dto.LabelPair{Name: new(name), Value: new(values[i])})
	}
	sortLabels(out)
	return out
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

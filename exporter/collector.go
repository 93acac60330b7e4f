package exporter

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Gatherer gathers the metrics of the last snapshot, and those of a registry beside it. It makes no call to anything:
// what a scrape costs is the making of the answer.
//
// It gathers into the model that client_golang encodes and leaves out the registry's checks, which would cost
// more than all the rest: that series are unique and labels consistent is held by the snapshot, and by tests.
type Gatherer struct {
	registry prometheus.Gatherer
	latest   func() *Snapshot
	zeroHold time.Duration
	families []Family
}

// NewGatherer returns a Gatherer. latest returns nil before the first snapshot. A counter that was first exported less
// than zeroHold ago is shown as 0.
func NewGatherer(registry prometheus.Gatherer, latest func() *Snapshot, zeroHold time.Duration) *Gatherer {
	g := &Gatherer{registry: registry, latest: latest, zeroHold: zeroHold}
	for id := range numFamilies {
		g.families = append(g.families, family(id))
	}
	return g
}

// Gather implements prometheus.Gatherer. The families are sorted by name.
func (g *Gatherer) Gather() ([]*dto.MetricFamily, error) {
	own, err := g.registry.Gather()
	s := g.latest()
	if s == nil {
		return own, err
	}
	r := newRendering(g, s)
	s.walk(emission{sink: r})
	out := slices.Concat(own, r.finish())
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, err
}

// rendering is a sink that makes metric families.
type rendering struct {
	g        *Gatherer
	keep     int
	held     time.Time // counters first exported after it are held at 0
	families [numFamilies]*dto.MetricFamily
	slab     []metric // memory for many metrics at once
	born     map[time.Time]*timestamppb.Timestamp
}

// metric is the memory of one dto.Metric.
type metric struct {
	dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

func newRendering(g *Gatherer, s *Snapshot) *rendering {
	r := &rendering{g: g, keep: s.keep, born: map[time.Time]*timestamppb.Timestamp{}}
	if g.zeroHold > 0 {
		r.held = s.Time.Add(-g.zeroHold)
	}
	return r
}

const slabSize = 256

func (r *rendering) put(id familyID, labels []*dto.LabelPair, value float64, born, shown time.Time) {
	if n, limited := rankOf(id); limited && int(n) < r.keep {
		return
	}
	f := r.families[id]
	if f == nil {
		f = r.family(id)
	}
	if len(r.slab) == 0 {
		r.slab = make([]metric, slabSize)
	}
	m := &r.slab[0]
	r.slab = r.slab[1:]
	m.Label = labels
	m.value = value
	if f.GetType() == dto.MetricType_COUNTER {
		if shown.After(r.held) && !r.held.IsZero() {
			m.value = 0
		}
		m.counter.Value = &m.value
		m.counter.CreatedTimestamp = r.timestamp(born)
		m.Counter = &m.counter
	} else {
		m.gauge.Value = &m.value
		m.Gauge = &m.gauge
	}
	f.Metric = append(f.Metric, &m.Metric)
}

func (r *rendering) family(id familyID) *dto.MetricFamily {
	desc := &r.g.families[id]
	f := &dto.MetricFamily{Name: new(desc.Name), Help: new(desc.Help), Type: dto.MetricType_GAUGE.Enum()}
	if desc.Type == driver.Counter {
		f.Type = dto.MetricType_COUNTER.Enum()
	}
	if desc.Unit != "" {
		f.Unit = new(desc.Unit)
	}
	r.families[id] = f
	return f
}

// timestamp shares one message among the many counters of the same birth.
func (r *rendering) timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	ts := r.born[t]
	if ts == nil {
		ts = timestamppb.New(t)
		r.born[t] = ts
	}
	return ts
}

func (r *rendering) finish() []*dto.MetricFamily {
	var out []*dto.MetricFamily
	for _, f := range &r.families {
		if f != nil {
			out = append(out, f)
		}
	}
	return out
}

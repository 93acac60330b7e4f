package exporter

import (
	"slices"
	"strings"
	"sync"
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
	memory   sync.Pool // of *rendering
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

// Gather implements prometheus.TransactionalGatherer. The families are sorted by name. They are made in memory that is
// used again once done was called.
func (g *Gatherer) Gather() (families []*dto.MetricFamily, done func(), err error) {
	own, err := g.registry.Gather()
	s := g.latest()
	if s == nil {
		return own, func() {}, err
	}
	r, _ := g.memory.Get().(*rendering)
	if r == nil {
		r = newRendering(g.families)
	}
	r.begin(s, g.zeroHold)
	s.walk(emission{sink: r, pool: s.labels})
	out := slices.Concat(own, r.finish())
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, func() { g.memory.Put(r) }, err
}

// rendering is a sink that makes metric families. It can be used again: its families and metrics are then those of
// another snapshot.
type rendering struct {
	keep     int
	held     time.Time // counters first exported after it are held at 0
	families [numFamilies]dto.MetricFamily
	slabs    [][]metric // memory for many metrics at once
	used     int        // metrics
	born     map[time.Time]*timestamppb.Timestamp
}

// metric is the memory of one dto.Metric.
type metric struct {
	dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

const slabSize = 256

func newRendering(families []Family) *rendering {
	r := &rendering{}
	for id := range r.families {
		desc, f := &families[id], &r.families[id]
		f.Name, f.Help, f.Type = &desc.Name, &desc.Help, dto.MetricType_GAUGE.Enum()
		if desc.Type == driver.Counter {
			f.Type = dto.MetricType_COUNTER.Enum()
		}
		if desc.Unit != "" {
			f.Unit = &desc.Unit
		}
	}
	return r
}

// begin empties the rendering for a snapshot.
func (r *rendering) begin(s *Snapshot, zeroHold time.Duration) {
	r.keep, r.used, r.held = s.keep, 0, time.Time{}
	r.born = map[time.Time]*timestamppb.Timestamp{}
	if zeroHold > 0 {
		r.held = s.Time.Add(-zeroHold)
	}
	for id := range r.families {
		r.families[id].Metric = r.families[id].Metric[:0]
	}
}

// next returns the memory of the next metric, as it was left by its last use.
func (r *rendering) next() *metric {
	if r.used == len(r.slabs)*slabSize {
		r.slabs = append(r.slabs, make([]metric, slabSize))
	}
	m := &r.slabs[r.used/slabSize][r.used%slabSize]
	r.used++
	return m
}

func (r *rendering) put(id familyID, labels []*dto.LabelPair, value float64, born, shown time.Time) {
	if n, limited := rankOf(id); limited && int(n) < r.keep {
		return
	}
	f, m := &r.families[id], r.next()
	m.Label = labels
	m.value = value
	if f.GetType() == dto.MetricType_COUNTER {
		if shown.After(r.held) && !r.held.IsZero() {
			m.value = 0
		}
		m.counter.Value = &m.value
		m.counter.CreatedTimestamp = r.timestamp(born)
		m.Counter, m.Gauge = &m.counter, nil
	} else {
		m.gauge.Value = &m.value
		m.Gauge, m.Counter = &m.gauge, nil
	}
	f.Metric = append(f.Metric, &m.Metric)
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

// finish returns the families that have metrics.
func (r *rendering) finish() []*dto.MetricFamily {
	var out []*dto.MetricFamily
	for id := range r.families {
		if f := &r.families[id]; len(f.Metric) > 0 {
			out = append(out, f)
		}
	}
	return out
}

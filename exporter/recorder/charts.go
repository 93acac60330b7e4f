package recorder

import (
	"context"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// charts hands the charts of incidents from the worker that makes them to the recorder.
type charts struct {
	wanted  chan struct{} // has a value when there may be some to make
	results chan charted
	made    map[string]progress // by the identity of the incident; the worker's
}

// charted is the chart of an incident.
type charted struct {
	id    string
	chart *Chart
}

// progress is how far the chart of an incident is made.
type progress struct {
	at    time.Time // of the snapshot at which it was made
	until time.Time // when it was to be complete
}

// How often the chart of an incident is made anew until it is complete: as often as it is stored,
// and seldom of what happens again and again.
const (
	growEvery     = storeEvery
	growEveryLate = time.Minute
)

func newCharts() charts {
	return charts{
		wanted: make(chan struct{}, 1), results: make(chan charted, 2*MaxIncidents), made: map[string]progress{},
	}
}

// request wakes the worker. It does not wait.
func (c *charts) request() {
	select {
	case c.wanted <- struct{}{}:
	default:
	}
}

// take returns the charts that were made since the last call.
func (c *charts) take() iter.Seq2[string, *Chart] {
	return func(yield func(string, *Chart) bool) {
		for {
			select {
			case done := <-c.results:
				if !yield(done.id, done.chart) {
					return
				}
			default:
				return
			}
		}
	}
}

// Run makes the charts of incidents, and completes them as time goes, until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.charts.wanted:
		}
		r.MakeCharts(ctx)
	}
}

// MakeCharts makes the charts that are to be made now. It is called by one goroutine at a time.
func (r *Recorder) MakeCharts(ctx context.Context) {
	p := r.published.Load()
	before := r.charts.made
	r.charts.made = map[string]progress{}
	for _, all := range [2][]*Incident{p.incidents, p.suspected} {
		for _, i := range all {
			done := before[i.ID]
			if !p.isDue(i, done) {
				r.charts.made[i.ID] = done
				continue
			}
			select {
			case r.turns <- struct{}{}:
			case <-ctx.Done():
				return
			}
			chart, err := p.chartOf(ctx, i)
			<-r.turns
			if err != nil {
				return // ctx has ended
			}
			select {
			case r.charts.results <- charted{i.ID, chart}:
			case <-ctx.Done():
				return
			}
			r.charts.made[i.ID] = progress{p.at, i.recorded()}
		}
	}
}

// isGrowing reports whether the chart of an incident may be incomplete.
func (p *publication) isGrowing(i *Incident) bool {
	return p.at.Sub(i.recorded()) < evidence || i.suspected && i.Chart == nil
}

// isDue reports whether it is time to make the chart of an incident again.
func (p *publication) isDue(i *Incident, done progress) bool {
	complete := i.recorded()
	switch {
	case !p.isGrowing(i) || p.at.IsZero():
		return false
	case done.at.IsZero():
		return true
	case !p.at.Before(complete):
		return done.at.Before(complete)
	case p.at.Sub(i.Detected) > 2*evidence && done.until.Equal(complete):
		return false // nothing but its last minute is missing
	case p.at.Sub(i.Detected) > 2*evidence:
		return p.at.Sub(done.at) >= growEveryLate
	default:
		return p.at.Sub(done.at) >= growEvery
	}
}

// chartOf returns what was recorded around an incident: what its chart has and what the ring has.
func (p *publication) chartOf(ctx context.Context, i *Incident) (*Chart, error) {
	devices := map[driver.ID]bool{i.Device: true}
	for _, h := range i.Holders {
		devices[h.ID] = true
	}
	if i.parent != "" {
		devices[driver.ID{Driver: i.Device.Driver, Pool: i.Device.Pool, Device: i.parent}] = true
	}
	out := &Chart{Times: []time.Time{}, Series: []ChartSeries{}}
	windows := i.windows()
	if i.Chart != nil {
		out = i.Chart.within(windows)
	}
	for _, w := range windows {
		c := p.cut(w[0], w[1], func(o *Owner) bool { return devices[o.Device] })
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		more, err := chart(ctx, c, orderForIncident(c.lines(), i), maxEvidence, p.catalogue)
		if err != nil {
			return nil, err
		}
		out = out.with(more)
	}
	return out, nil
}

// within returns the part of a chart that is in these windows.
func (c *Chart) within(windows [][2]time.Time) *Chart {
	var kept []int
	for n, at := range c.Times {
		if slices.ContainsFunc(windows, func(w [2]time.Time) bool { return !at.Before(w[0]) && !at.After(w[1]) }) {
			kept = append(kept, n)
		}
	}
	if len(kept) == len(c.Times) {
		return c
	}
	out := &Chart{Times: make([]time.Time, 0, len(kept)), Series: make([]ChartSeries, 0, len(c.Series))}
	for _, n := range kept {
		out.Times = append(out.Times, c.Times[n])
	}
	for _, s := range c.Series {
		values, some := s.Values.Floats(), make([]float64, 0, len(kept))
		for _, n := range kept {
			some = append(some, values[n])
		}
		s.Values = NewValues(some)
		out.Series = append(out.Series, s)
	}
	return out
}

// with returns a chart that has what both have; where both have a time, it has what more has.
func (c *Chart) with(more *Chart) *Chart {
	if len(c.Times) == 0 || len(more.Times) == 0 {
		if len(c.Times) == 0 {
			return more
		}
		return c
	}
	times := slices.Concat(c.Times, more.Times)
	slices.SortFunc(times, time.Time.Compare)
	times = slices.CompactFunc(times, time.Time.Equal)
	out := &Chart{Times: times, Series: slices.Clone(c.Series)}
	place := map[string]int{}
	for n := range out.Series {
		place[out.Series[n].key()] = n
	}
	for _, s := range more.Series {
		if _, known := place[s.key()]; !known && len(out.Series) < maxEvidence {
			place[s.key()] = len(out.Series)
			out.Series = append(out.Series, s)
		}
	}
	values := make([][]float64, len(out.Series))
	for n := range values {
		values[n] = make([]float64, len(times))
		for at := range times {
			values[n][at] = math.NaN()
		}
	}
	for _, of := range [2]*Chart{c, more} {
		of.spread(times, func(key string) []float64 {
			if n, known := place[key]; known {
				return values[n]
			}
			return nil
		})
	}
	for n := range out.Series {
		out.Series[n].Values = NewValues(values[n])
	}
	return out
}

// spread puts the values of the series in the places of their times among more times.
func (c *Chart) spread(times []time.Time, to func(key string) []float64) {
	places := make([]int, len(c.Times))
	for n, at := range c.Times {
		places[n], _ = slices.BinarySearchFunc(times, at, time.Time.Compare)
	}
	for n := range c.Series {
		out := to(c.Series[n].key())
		if out == nil {
			continue
		}
		for at, v := range c.Series[n].Values.Floats() {
			out[places[at]] = v
		}
	}
}

// key identifies the series among those of a chart.
func (s *ChartSeries) key() string {
	labels := slices.Sorted(maps.Keys(s.Labels))
	for n, name := range labels {
		labels[n] = name + "=" + s.Labels[name]
	}
	return strings.Join(append([]string{
		string(s.Of), s.Namespace, s.Name, s.String(), s.Quantity,
	}, labels...), "\x00")
}

// orderForIncident moves the series of the device and of the holders that were hit to the front.
func orderForIncident(all []line, i *Incident) []line {
	type name struct{ namespace, name string }
	hit := map[name]bool{}
	for n := range i.Holders {
		if h := &i.Holders[n]; h.Hit {
			hit[name{h.Namespace, h.Pod}], hit[name{h.Namespace, h.Claim}] = true, true
		}
	}
	rank := func(o *Owner) int {
		switch {
		case o.Kind == OfDevice && o.Device == i.Device:
			return 0
		case o.Kind != OfDevice && hit[name{o.Namespace, o.Name}]:
			return 1
		default:
			return 2
		}
	}
	var ranked [3][]line
	for _, l := range all {
		ranked[rank(l.owner)] = append(ranked[rank(l.owner)], l)
	}
	return slices.Concat(ranked[:]...)
}

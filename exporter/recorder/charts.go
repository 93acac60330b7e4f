package recorder

import (
	"context"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// charts passes charts of incidents from the worker that makes them to the recorder.
type charts struct {
	wanted  chan struct{} // has a value when charts may be due
	results chan charted
	made    map[string]progress // by the ID of the incident; used by the worker only
}

// charted is a finished chart of an incident.
type charted struct {
	id    string
	chart *Chart
}

// progress is the state of an incident's chart.
type progress struct {
	at    time.Time // time of its snapshot
	until time.Time // time at which it was due to be complete
}

// The time between two charts of an incident whose chart is not complete: the time between two
// stores, and longer for incidents that recur.
const (
	growEvery     = storeEvery
	growEveryLate = time.Minute
)

func newCharts() charts {
	return charts{
		wanted: make(chan struct{}, 1), results: make(chan charted, 2*MaxIncidents), made: map[string]progress{},
	}
}

// request wakes the worker, without waiting.
func (c *charts) request() {
	select {
	case c.wanted <- struct{}{}:
	default:
	}
}

// take returns the charts made since the last call.
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

// Run makes and completes the charts of incidents until ctx ends.
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

// MakeCharts makes the charts that are due. It is not safe for concurrent use.
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

// isDue reports whether the chart of an incident must be made again.
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
		return false // only its last minute is missing
	case p.at.Sub(i.Detected) > 2*evidence:
		return p.at.Sub(done.at) >= growEveryLate
	default:
		return p.at.Sub(done.at) >= growEvery
	}
}

// chartOf returns the recording of an incident: its existing chart plus what the ring has.
func (p *publication) chartOf(ctx context.Context, i *Incident) (*Chart, error) {
	devices := map[driver.ID]bool{i.Device: true}
	for _, h := range i.Holders {
		devices[h.ID] = true
	}
	if i.parent != "" {
		devices[driver.ID{Driver: i.Device.Driver, Pool: i.Device.Pool, Device: i.parent}] = true
	}
	windows := i.windows()
	all := make([]*Chart, 0, 1+len(windows))
	if i.Chart != nil {
		all = append(all, i.Chart)
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
		all = append(all, more)
	}
	return merged(all, windows), nil
}

// merged merges charts within windows, up to the limit of series of an incident. At a time that
// several charts have, the last one counts.
func merged(charts []*Chart, windows [][2]time.Time) *Chart {
	out := &Chart{Times: []time.Time{}, Series: []ChartSeries{}}
	var parts []chartPart
	for _, c := range charts {
		if times := c.within(windows); len(times) > 0 {
			parts, out.Times = append(parts, chartPart{Chart: c}), append(out.Times, times...)
		}
	}
	if len(parts) == 1 && len(out.Times) == len(parts[0].Times) {
		return parts[0].Chart
	}
	slices.SortFunc(out.Times, time.Time.Compare)
	out.Times = slices.CompactFunc(out.Times, time.Time.Equal)
	keys := map[seriesKey]bool{}
	for n := range parts {
		parts[n].index(out.Times)
		for i := range parts[n].Series {
			s := &parts[n].Series[i]
			if key := s.key(); !keys[key] && len(out.Series) < maxEvidence {
				keys[key] = true
				out.Series = append(out.Series, *s)
			}
		}
	}
	values, room := make([]float64, len(out.Times)), []float64(nil)
	for n := range out.Series {
		for at := range values {
			values[at] = math.NaN()
		}
		for i := range parts {
			room = parts[i].put(values, out.Series[n].key(), room)
		}
		out.Series[n].Values = NewValues(values)
	}
	return out
}

// within returns the times in these windows.
func (c *Chart) within(windows [][2]time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(c.Times), func(at time.Time) bool {
		return !slices.ContainsFunc(windows, func(w [2]time.Time) bool { return !at.Before(w[0]) && !at.After(w[1]) })
	})
}

// chartPart is a chart that is merged into another one.
type chartPart struct {
	*Chart
	places []int // index of each time in the merged chart; -1: absent
	series map[seriesKey]int
}

// index fills in the series by key, and the index of each time in times.
func (p *chartPart) index(times []time.Time) {
	p.series = make(map[seriesKey]int, len(p.Series))
	for n := range p.Series {
		p.series[p.Series[n].key()] = n
	}
	p.places = make([]int, len(p.Times))
	for n, at := range p.Times {
		place, found := slices.BinarySearchFunc(times, at, time.Time.Compare)
		if p.places[n] = place; !found {
			p.places[n] = -1
		}
	}
}

// put copies the values of a series to the places of their times. They are decoded into room, which
// is returned for reuse.
func (p *chartPart) put(values []float64, key seriesKey, room []float64) []float64 {
	n, has := p.series[key]
	if !has {
		return room
	}
	of := &p.Series[n].Values
	room = decode(room[:0], of.data, of.ticks)
	for i, v := range room {
		if at := p.places[i]; at >= 0 {
			values[at] = v
		}
	}
	return room
}

// seriesKey identifies a series in a chart.
type seriesKey struct {
	of              OwnerKind
	namespace, name string
	device          driver.ID
	quantity        string
	labels          string
}

func (s *ChartSeries) key() seriesKey {
	key := seriesKey{s.Of, s.Namespace, s.Name, s.ID, s.Quantity, ""}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		key.labels += name + "=" + s.Labels[name] + "\x00"
	}
	return key
}

// orderForIncident moves the series of the device and of hit holders to the front.
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

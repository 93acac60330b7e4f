package recorder

import (
	"context"
	"iter"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// charts hands the charts of incidents from the worker that makes them to the recorder.
type charts struct {
	wanted  chan struct{} // has a value when there may be some to make
	results chan charted
	begun   map[string]bool // the incidents, by identity, whose charts were made; the worker's
}

// charted is the chart of an incident.
type charted struct {
	id    string
	chart *Chart
}

func newCharts() charts {
	return charts{
		wanted: make(chan struct{}, 1), results: make(chan charted, MaxIncidents), begun: map[string]bool{},
	}
}

// request wakes the worker. It does not wait.
func (c *charts) request() {
	select {
	case c.wanted <- struct{}{}:
	default:
	}
}

// made returns the charts that were made since the last call.
func (c *charts) made() iter.Seq2[string, *Chart] {
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

// Run makes the charts of incidents whose recordings are complete, each once, until ctx ends.
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
	begun := r.charts.begun
	r.charts.begun = map[string]bool{}
	for _, i := range p.incidents {
		if !p.isComplete(i) {
			continue
		}
		if !begun[i.ID] {
			chart, err := p.chartOf(ctx, i)
			if err != nil {
				return // ctx has ended
			}
			select {
			case r.charts.results <- charted{i.ID, chart}:
			case <-ctx.Done():
				return
			}
		}
		r.charts.begun[i.ID] = true
	}
}

// chartOf returns what was recorded around an incident.
func (p *publication) chartOf(ctx context.Context, i *Incident) (*Chart, error) {
	devices := map[driver.ID]bool{i.Device: true}
	for _, h := range i.Holders {
		devices[h.ID] = true
	}
	if i.parent != "" {
		devices[driver.ID{Driver: i.Device.Driver, Pool: i.Device.Pool, Device: i.parent}] = true
	}
	c := p.cut(i.Time.Add(-evidence), i.Time.Add(evidence), func(o *Owner) bool { return devices[o.Device] })
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return chart(ctx, c, orderForIncident(c.lines(), i), maxEvidence, p.catalogue)
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

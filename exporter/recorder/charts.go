package recorder

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// charts passes charts of incidents from the worker that makes them to the recorder.
type charts struct {
	wanted  chan struct{} // has a value when charts may be due
	results chan charted
	made    map[string]bool // by the ID of the incident: it is complete; used by the worker only
}

// charted is a finished chart of an incident.
type charted struct {
	id    string
	chart *Chart
}

func newCharts() charts {
	return charts{
		wanted: make(chan struct{}, 1), results: make(chan charted, 2*MaxIncidents), made: map[string]bool{},
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

// MakeCharts makes the charts that are due: each is made soon after the detection, so that it is
// stored, and when it is complete; that of a suspected one once. It is not safe for concurrent use.
func (r *Recorder) MakeCharts(ctx context.Context) {
	p := r.published.Load()
	before := r.charts.made
	r.charts.made = map[string]bool{}
	for _, i := range slices.Concat(p.incidents, p.suspected) {
		complete := !p.at.Before(i.Detected.Add(evidence))
		made, once := before[i.ID]
		if !p.isGrowing(i) && !slices.Contains(p.suspected, i) || made || once && !complete {
			r.charts.made[i.ID] = made
			continue
		}
		if err := enter(ctx, r.turns, struct{}{}); err != nil {
			return
		}
		chart, err := p.chartOf(ctx, i)
		<-r.turns
		if err != nil || enter(ctx, r.charts.results, charted{i.ID, chart}) != nil {
			return // ctx has ended
		}
		r.charts.made[i.ID] = complete
	}
}

// enter puts a value into a channel, unless ctx ends before.
func enter[T any](ctx context.Context, c chan<- T, v T) error {
	select {
	case c <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isGrowing reports whether the tape may have more of an incident than its chart, and all that the
// chart has.
func (p *publication) isGrowing(i *Incident) bool {
	begins := p.begins()
	has := i.Chart == nil || len(i.Chart.Times) == 0 || !begins.After(i.Chart.Times[0].Add(time.Millisecond))
	return has && !begins.IsZero() && p.at.Sub(i.Detected) < 2*evidence
}

// chartOf returns what the tape has of an incident.
func (p *publication) chartOf(ctx context.Context, i *Incident) (*Chart, error) {
	devices := map[driver.ID]bool{i.Device: true}
	for _, h := range i.Holders {
		devices[h.ID] = true
	}
	if i.parent != "" {
		devices[driver.ID{Driver: i.Device.Driver, Pool: i.Device.Pool, Device: i.parent}] = true
	}
	c := p.cut(i.Onset.Add(-evidence), i.Detected.Add(evidence), func(o *Owner) bool { return devices[o.Device] })
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return chart(ctx, c, orderForIncident(c.lines(), i), maxEvidence, p.catalogue)
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

package recorder

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// drawNext makes the chart of one incident that needs one: soon after the detection, so that it is
// stored, and again when all of the recorded time is over. Of a suspected incident, it is made
// once. One chart takes a small part of a tick, and there are enough ticks.
func (r *Recorder) drawNext(now time.Time) {
	for n, i := range r.incidents {
		end := i.Detected.Add(evidence)
		due := i.drawn.IsZero() || i.drawn.Before(end) && !now.Before(end)
		if due && r.ring.isGrowing(i, now) {
			r.replace(n, r.draw(i, now))
			return
		}
	}
	for n, i := range r.suspected {
		if i.drawn.IsZero() {
			r.suspected[n] = r.draw(i, now)
			return
		}
	}
}

// draw returns an incident with its chart so far.
func (r *Recorder) draw(i *Incident, now time.Time) *Incident {
	of := *i
	of.drawn, of.Chart = now, r.ring.chartOf(i)
	return &of
}

// isGrowing reports whether the tape may have more of an incident than its chart, and all that the
// chart has.
func (r *tape) isGrowing(i *Incident, now time.Time) bool {
	begins := r.begins()
	has := i.Chart == nil || len(i.Chart.Times) == 0 || !begins.After(i.Chart.Times[0].Add(time.Millisecond))
	return has && !begins.IsZero() && now.Sub(i.Detected) < 2*evidence
}

// chartOf returns what the tape has of an incident.
func (r *tape) chartOf(i *Incident) *Chart {
	devices := map[driver.ID]bool{i.Device: true}
	for _, h := range i.Holders {
		devices[h.ID] = true
	}
	if i.parent != "" {
		devices[driver.ID{Driver: i.Device.Driver, Pool: i.Device.Pool, Device: i.parent}] = true
	}
	c := r.cut(i.Onset.Add(-evidence), i.Detected.Add(evidence), func(o *Owner) bool { return devices[o.Device] }, nil)
	return c.chart(orderForIncident(c.lines, i), maxEvidence, r.catalogue)
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

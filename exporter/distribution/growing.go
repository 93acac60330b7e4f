package distribution

import "slices"

// Growing is a histogram that is observed again and again, and read seldom: to take a [View] of it
// copies nothing. The zero value is empty and ready to use. It is used by one goroutine at a time.
type Growing struct {
	base  *Histogram    // views have it: it does not change
	since []observation // what comes on top; of what views have, nothing changes
}

// observation is a value, and the seconds for which it stood.
type observation struct{ value, seconds float64 }

// maxSince is the number of observations after which they are added to another base.
const maxSince = 8

// NewGrowing returns a histogram that begins with another one, which must not be changed any more.
func NewGrowing(h *Histogram) Growing { return Growing{base: h} }

// Observe is [Histogram.Observe].
func (g *Growing) Observe(value, seconds float64) {
	if len(g.since) == maxSince {
		g.base, g.since = g.View().Histogram(), nil
	}
	if g.since == nil {
		g.since = make([]observation, 0, maxSince)
	}
	g.since = append(g.since, observation{value, seconds})
}

// View returns what was observed so far.
func (g *Growing) View() View { return View{g.base, slices.Clip(g.since)} }

// View is what a [Growing] had observed at some time. It is immutable, and safe for concurrent use.
type View struct {
	base  *Histogram // nil: an empty one
	since []observation
}

// ViewOf returns a view of a histogram that does not change any more.
func ViewOf(h *Histogram) View { return View{base: h} }

// Histogram returns a copy of the histogram.
func (v View) Histogram() *Histogram {
	h := &Histogram{}
	v.Read(h)
	return h
}

// Read sets h to the histogram, in the memory that it has.
func (v View) Read(h *Histogram) {
	room := h.buckets[:0]
	*h = Histogram{}
	if v.base != nil {
		*h = *v.base
	}
	h.buckets = append(room, h.buckets...)
	for _, o := range v.since {
		h.Observe(o.value, o.seconds)
	}
}

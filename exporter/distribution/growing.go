package distribution

import "slices"

// Growing is a histogram for frequent observations and cheap, immutable views. The zero value is
// empty and ready to use. It is not safe for concurrent use.
type Growing struct {
	base  *Histogram    // shared with views, and so never changed
	since []observation // further observations; elements that views share are never changed
}

// observation is a value, and the time in seconds for which it applied.
type observation struct{ value, seconds float64 }

// maxSince is the number of observations after which a new base is made.
const maxSince = 8

// NewGrowing returns a histogram that begins with h, which must not be changed afterwards.
func NewGrowing(h *Histogram) Growing { return Growing{base: h} }

// Observe is [Histogram.Observe].
func (g *Growing) Observe(value, seconds float64) {
	if len(g.since) == maxSince {
		var next struct {
			base  Histogram
			since [maxSince]observation
		}
		g.View().Read(&next.base)
		g.base, g.since = &next.base, next.since[:0]
	}
	if g.since == nil {
		g.since = make([]observation, 0, maxSince)
	}
	g.since = append(g.since, observation{value, seconds})
}

// View returns the present state.
func (g *Growing) View() View { return View{g.base, slices.Clip(g.since)} }

// View is the state of a [Growing] at some time. It is immutable, and safe for concurrent use.
type View struct {
	base  *Histogram // nil: an empty one
	since []observation
}

// ViewOf returns a view of a histogram, which must not be changed afterwards.
func ViewOf(h *Histogram) View { return View{base: h} }

// Histogram returns a copy of the histogram.
func (v View) Histogram() *Histogram {
	h := &Histogram{}
	v.Read(h)
	return h
}

// Read copies the histogram to h, and reuses the memory of h.
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

// Package timeline has who held which device when: what incidents, receipts, the recorder and the
// page ask of the past. It is pure: no I/O, no clock.
package timeline

import (
	"iter"
	"maps"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Timeline has the holders of each device over time: all periods that have not ended more than ten
// minutes ago, or fewer if the ledger's history is too long. It is immutable. nil is empty.
type Timeline map[driver.ID][]*Period

// Held yields the periods of a device that may include a moment or a part of a span of time, in the
// order in which they became known. See [Period.Covers] for certainty.
func (t Timeline) Held(device driver.ID, from, to time.Time) iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		for _, p := range t[device] {
			if p.mayHave(from, to) && !yield(p) {
				return
			}
		}
	}
}

// All yields all periods of all devices.
func (t Timeline) All() iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		for _, of := range t {
			for _, p := range of {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// With returns the timeline with other periods of some devices; the same timeline if there are
// none.
func (t Timeline) With(changed map[driver.ID][]*Period) Timeline {
	if len(changed) == 0 {
		return t
	}
	out := Timeline{}
	maps.Copy(out, t)
	maps.Copy(out, changed)
	maps.DeleteFunc(out, func(_ driver.ID, periods []*Period) bool { return len(periods) == 0 })
	return out
}

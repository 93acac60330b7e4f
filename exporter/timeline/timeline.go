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
type Timeline struct{ periods map[driver.ID][]*Period }

// Held yields the periods of a device that may include a moment or a part of a span of time, in the
// order in which they became known. See [Period.Covers] for certainty.
func (t *Timeline) Held(device driver.ID, from, to time.Time) iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		if t == nil {
			return
		}
		for _, p := range t.periods[device] {
			if p.mayHave(from, to) && !yield(p) {
				return
			}
		}
	}
}

// All yields all periods of all devices.
func (t *Timeline) All() iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		if t == nil {
			return
		}
		for _, of := range t.periods {
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
func (t *Timeline) With(changed map[driver.ID][]*Period) *Timeline {
	if len(changed) == 0 {
		return t
	}
	out := &Timeline{map[driver.ID][]*Period{}}
	if t != nil {
		maps.Copy(out.periods, t.periods)
	}
	for id, periods := range changed {
		if len(periods) == 0 {
			delete(out.periods, id)
		} else {
			out.periods[id] = periods
		}
	}
	return out
}

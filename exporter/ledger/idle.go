package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/divide"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
)

// contradictedFor is how long evidence must contradict the utilization before it counts: power and
// utilization are read at different times, and are averaged over different times. Another source
// may be half a minute late.
const (
	contradictedFor        = 15 * time.Second
	contradictedBySourceIn = time.Minute
)

// span is a time in which a device was active.
type span struct {
	from, to  time.Time
	activity  float64 // a utilization, or bytes per second
	threshold float64
	all       bool // all holders count as active, since the active one is unknown
}

// usage is the activity of a device.
type usage struct {
	inUse             float64   // seconds in which it was active and held
	usedUntil         time.Time // activity before it has been counted
	watched           bool      // its activity has been measured
	spans             []span    // periods of activity that are not charged yet
	contradiction     join.Contradiction
	contradictedSince time.Time
	contradicted      join.Contradiction // has lasted long enough
}

// markActive records that the device was active in a span of time.
func (u *usage) markActive(from, to time.Time, activity, threshold float64) {
	u.spans = append(u.spans, span{from: from, to: to, activity: activity, threshold: threshold})
}

// contradict records this tick's evidence against the device's utilization, and its consequence for
// the claims that hold the device.
func (u *usage) contradict(found join.Contradiction, holders *segment, now time.Time) {
	if found != u.contradiction {
		u.contradiction, u.contradictedSince = found, now
	}
	u.contradicted = join.NoContradiction
	lasted := now.Sub(u.contradictedSince)
	if found == join.NoContradiction || lasted < contradictedFor ||
		found == join.SourceContradicts && lasted < contradictedBySourceIn {
		return
	}
	u.contradicted = found
	from := driver.Later(u.contradictedSince, now.Add(-readings.MaxIntegration))
	u.spans = append(u.spans, span{from: from, to: now, all: true})
	for _, p := range holders.Claims {
		if f := p.Holder.ofClaim.fit; f != nil {
			f.Conflict = true
		}
	}
}

// chargeActive charges periods of activity to their holders. If the use of processes or own CPUs is
// known, only holders whose part of the activity exceeds the threshold are active; for own CPUs the
// threshold is relative to these CPUs. For unknown own CPUs, the activity of the device decides.
func (u *usage) chargeActive(t segments) {
	slices.SortStableFunc(u.spans, func(a, b span) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
	for i := range u.spans {
		active := &u.spans[i]
		t.Each(active.from, active.to, func(s *segment, from, to time.Time) {
			if len(s.Claims) > 0 {
				u.inUse += uncounted(&u.usedUntil, from, to)
			}
			for _, p := range s.Claims {
				if active.charge(s, &p, from, to) {
					p.Holder.firstActiveIn(from, to, s.Attribution)
				}
			}
			for _, p := range s.Pods {
				active.charge(s, &p, from, to)
			}
		})
	}
	u.spans = u.spans[:0]
}

// charge charges a part of the span to a holder, and reports whether it was active then.
func (a *span) charge(s *segment, p *part, from, to time.Time) bool {
	active := a.of(s, p)
	switch {
	case active:
		p.Holder.activeIn(from, to)
	case s.Sampled:
		p.Holder.perhapsActiveIn(from, to)
	}
	return active
}

// of reports whether a holder was active in the span.
func (a *span) of(s *segment, p *part) bool {
	return a.all || !s.Measured || p.Own == divide.UnknownOwn || a.activity*p.Use[driver.ByTime] > a.threshold*p.Own
}

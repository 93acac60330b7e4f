package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// contradictedFor is how long the utilization must have been contradicted to be disbelieved: power
// and utilization are read at different times, and are means of different times. Another source may
// be half a minute behind.
const (
	contradictedFor        = 15 * time.Second
	contradictedBySourceIn = time.Minute
)

// span is a time in which a device was active.
type span struct {
	from, to  time.Time
	activity  float64 // a utilization, or bytes per second
	threshold float64
	all       bool // whoever held it: whose activity it was is not known
}

// usage is when a device was active.
type usage struct {
	inUse             float64   // seconds in which it was active while it was held
	usedUntil         time.Time // what was before is counted
	watched           bool      // its activity was measured at some time
	spans             []span    // in which it was active, and that are not charged yet
	contradiction     join.Contradiction
	contradictedSince time.Time
	contradicted      join.Contradiction // for long enough
}

// markActive records that the device was active in a span of time.
func (u *usage) markActive(from, to time.Time, activity, threshold float64) {
	u.spans = append(u.spans, span{from: from, to: to, activity: activity, threshold: threshold})
}

// contradict follows whether the utilization of the device is contradicted, as this tick found, and
// what that says of the claims that hold it.
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
	from := later(u.contradictedSince, now.Add(-maxIntegration))
	u.spans = append(u.spans, span{from: from, to: now, all: true})
	for _, p := range holders.claims {
		if f := p.account.fit; f != nil {
			f.conflict = true
		}
	}
}

// chargeActive gives the spans to those who held the device then. If the use of processes or own
// CPUs is known, only holders whose part of the activity exceeds the threshold are active; for own
// CPUs the threshold is for these alone. If it is unknown which those are, the activity of the
// device decides.
func (u *usage) chargeActive(t timeline) {
	slices.SortStableFunc(u.spans, func(a, b span) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
	for i := range u.spans {
		active := &u.spans[i]
		t.each(active.from, active.to, func(s *segment, from, to time.Time) {
			if since := later(from, u.usedUntil); len(s.claims) > 0 && to.After(since) {
				u.inUse += to.Sub(since).Seconds()
				u.usedUntil = to
			}
			for _, p := range s.claims {
				if active.of(s, &p) {
					p.account.activeIn(from, to)
					p.account.firstActiveIn(from, to, s.attribution)
				}
			}
			for _, p := range s.pods {
				if active.of(s, &p) {
					p.account.activeIn(from, to)
				}
			}
		})
	}
	u.spans = u.spans[:0]
}

// of reports whether a holder was active in the span.
func (a *span) of(s *segment, p *portion) bool {
	return a.all || !s.measured || p.own == unknownOwn || a.activity*p.use[driver.ByTime] > a.threshold*p.own
}

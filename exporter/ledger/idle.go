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

// markActive records that the device was active in a span of time.
func (d *deviceBook) markActive(from, to time.Time, activity, threshold float64) {
	d.spans = append(d.spans, span{from: from, to: to, activity: activity, threshold: threshold})
}

// contradict follows whether the utilization of the device is contradicted.
func (d *deviceBook) contradict(now time.Time, config Config) {
	found := d.joined.Contradiction(config.IdleThreshold)
	if found != d.contradiction {
		d.contradiction, d.contradictedSince = found, now
	}
	d.contradicted = join.NoContradiction
	lasted := now.Sub(d.contradictedSince)
	if found == join.NoContradiction || lasted < contradictedFor ||
		found == join.SourceContradicts && lasted < contradictedBySourceIn {
		return
	}
	d.contradicted = found
	from := later(d.contradictedSince, now.Add(-maxIntegration))
	d.spans = append(d.spans, span{from: from, to: now, all: true})
	for _, p := range d.timeline[len(d.timeline)-1].claims {
		if f := p.account.fit; f != nil {
			f.conflict = true
		}
	}
}

// chargeActive gives the spans to those who held the device then. If the use of processes or own
// CPUs is known, only holders whose part of the activity exceeds the threshold are active; for own
// CPUs the threshold is for these alone. If it is unknown which those are, the activity of the
// device decides.
func (d *deviceBook) chargeActive() {
	slices.SortStableFunc(d.spans, func(a, b span) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
	for i := range d.spans {
		active := &d.spans[i]
		d.timeline.each(active.from, active.to, func(s *segment, from, to time.Time) {
			if since := later(from, d.usedUntil); len(s.claims) > 0 && to.After(since) {
				d.inUse += to.Sub(since).Seconds()
				d.usedUntil = to
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
	d.spans = d.spans[:0]
}

// of reports whether a holder was active in the span.
func (a *span) of(s *segment, p *portion) bool {
	return a.all || !s.measured || p.own == unknownOwn || a.activity*p.use[driver.ByTime] > a.threshold*p.own
}

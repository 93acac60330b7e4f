package ledger

import (
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// How far what a claim was charged may be off is added up where it is charged, from the readings
// themselves:
//
//   - of a begin or an end of a hold, that the device did all of its work of the time between the
//     two readings around it on one side of it, as far as its highest rate allows;
//   - of a gauge's integral, that the gauge changed right after the one reading, or right before
//     the next;
//   - of a device that is divided by guess, that the claim did all, or nothing.
//
// Time of which there is no such reading (the device was not read, a counter began anew, a gauge
// was read too rarely, the hold was learned too late) is not measured: a claim may have used
// nothing in it, or the highest rate of the device.

// maxGap is the longest time between two readings of a gauge in which it is taken to rise or to
// fall all the time. Its integral over a longer one is a guess.
const maxGap = 5 * time.Second

// certainty is what the readings say of an amount besides itself.
type certainty struct {
	measured bool
	spread   float64 // how far the amount may be off, per second
	guessed  bool    // it is a part of a larger one, by guess
}

// rateTime is the shortest time between two readings of a counter that tells its rate: some
// hardware refreshes counters every tenth of a second.
const rateTime = 500 * time.Millisecond

// highest returns the highest rate per second of a counter, as far as it is known: the possible
// one, or what its gauge has shown, whichever is larger, else what it was seen to count.
func (c *counter) highest() float64 {
	if most := max(c.limit, c.read); most > 0 {
		return most
	}
	return c.fastest
}

// mostIn returns the highest rate per second of a counter in a span of time between two readings. A
// gauge that is read seldom does not tell it.
func (c *counter) mostIn(span time.Duration, mean float64) float64 {
	if c.limit > 0 || c.read > 0 && span <= maxGap {
		return max(c.limit, c.read, mean)
	}
	return math.MaxFloat64
}

// bound notes what a reading of a gauge, or of a setting, says of the highest rate of a counter.
func (d *deviceBook) bound(m *meter, value float64) {
	if !m.bounds {
		return
	}
	switch c := d.find(m.bounded); {
	case c == nil:
	case m.sums:
		c.read = max(c.read, value)
	default:
		c.limit = max(c.limit, value)
	}
}

// sure reports whether a counter has counted what it shows more than at the reading before, and no
// more: it did not begin anew meanwhile, as far as that shows, and could not without that showing.
func (c *counter) sure(m *meter, next driver.Reading) bool {
	if next.Since.After(m.last.At) {
		return true // since then
	}
	span := next.At.Sub(m.last.At).Seconds()
	return !m.fallen && next.Value >= m.last.Value && next.Value > c.highest()*span
}

// portionIn returns the account's portion of a segment, nil if it has none.
func (a *account) portionIn(s *segment) *portion {
	for i := range s.claims {
		if s.claims[i].account == a {
			return &s.claims[i]
		}
	}
	return nil
}

// eachChanged calls f for each claim that begins or ends to hold the device between the two
// segments, or whose known part of it changes, with the change.
func (s *segment) eachChanged(before *segment, basis driver.Basis, f func(a *account, by float64)) {
	for i := range s.claims {
		p := &s.claims[i]
		q := p.account.portionIn(before)
		switch {
		case q == nil:
			f(p.account, s.most(p.use[basis]))
		case s.guessed || before.guessed:
		case p.use[basis] != q.use[basis]:
			f(p.account, max(p.use[basis], q.use[basis])-min(p.use[basis], q.use[basis]))
		}
	}
	for i := range before.claims {
		if p := &before.claims[i]; p.account.portionIn(s) == nil {
			f(p.account, before.most(p.use[basis]))
		}
	}
}

// most returns the part of the device that a claim may have used that is charged a part of it.
func (s *segment) most(part float64) float64 {
	if s.guessed {
		return 1
	}
	return part
}

// edge is a time at which holds begin or end, relative to the beginning of the time between two
// readings, in seconds: where it is taken to be, and within which limits.
type edge struct{ at, earliest, latest float64 }

// eachEdge calls f for each claim and each begin or end of its hold that may lie between two
// readings, with the part of the device.
func (d *deviceBook) eachEdge(
	c *counter, from, to time.Time, f func(a *account, by float64, e edge),
) {
	for i := len(d.timeline) - 1; i > 0; i-- {
		s := &d.timeline[i]
		if !s.from.Add(d.late).After(from) {
			return
		}
		if !s.from.Add(s.doubt.Late).After(from) || !s.from.Add(-s.doubt.Early).Before(to) {
			continue
		}
		at := s.from.Sub(from).Seconds()
		e := edge{at, at - s.doubt.Early.Seconds(), at + s.doubt.Late.Seconds()}
		s.eachChanged(&d.timeline[i-1], c.spec.Basis, func(a *account, by float64) { f(a, by, e) })
	}
}

// eachEdgeOfAll is eachEdge for the device and for those of its parts that have a part of what it
// counts, whose counters own are.
func (d *deviceBook) eachEdgeOfAll(
	c *counter, from, to time.Time, f func(a *account, own *counter, by float64, e edge),
) {
	d.eachEdge(c, from, to, func(a *account, by float64, e edge) { f(a, c, by, e) })
	if !c.spec.Divided {
		return
	}
	for _, p := range d.parts {
		if own := p.find(c.key); own != nil && own.divided {
			p.eachEdge(c, from, to, func(a *account, _ float64, e edge) { f(a, own, 1, e) })
		}
	}
}

// doubtEdges adds how far the amounts may be off that the device counted between two readings
// before and after the begins and ends of holds: it need not have counted evenly.
func (d *deviceBook) doubtEdges(c *counter, amount float64, from, to time.Time) {
	span := to.Sub(from).Seconds()
	if amount <= 0 || span <= 0 {
		return
	}
	rate := c.mostIn(to.Sub(from), amount/span)
	d.eachEdgeOfAll(c, from, to, func(a *account, own *counter, by float64, e edge) {
		before := amount * min(max(e.at/span, 0), 1)
		most := min(amount, rate*min(max(e.latest, 0), span))
		least := max(0, amount-rate*(span-min(max(e.earliest, 0), span)))
		a.judge(own, by*max(most-before, before-least), 0)
	})
}

// doubtSpread adds what a gauge may have shown in the time in which begins and ends of holds may
// lie. Its highest value in that time is given.
func (d *deviceBook) doubtSpread(c *counter, highest float64, from, to time.Time) {
	span := to.Sub(from).Seconds()
	d.eachEdgeOfAll(c, from, to, func(a *account, own *counter, by float64, e edge) {
		a.judge(own, by*highest*max(0, min(e.latest, span)-max(e.earliest, 0)), 0)
	})
}

// judge adds to how far what the account was charged of a counter may be off, and to the seconds in
// which that was measured.
func (a *account) judge(c *counter, doubt, measured float64) {
	if c.index < len(a.totals) {
		t := &a.totals[c.index]
		t.doubt += doubt
		t.measured += measured
	}
}

// doubtHolds adds how far the begins and ends of holds may be off that are decided now: those from
// one time until another, the second included. What was counted before that is charged already.
func (d *deviceBook) doubtHolds(from, until time.Time) {
	for i := len(d.timeline) - 1; i > 0 && !d.timeline[i].from.Before(from); i-- {
		s := &d.timeline[i]
		if s.from.After(until) || s.judged || s.doubt == (podresources.Doubt{}) {
			continue
		}
		s.judged = true
		unread := max(0, from.Sub(s.from.Add(-s.doubt.Early)))
		s.eachChanged(&d.timeline[i-1], driver.ByTime, func(a *account, _ float64) {
			a.edges += (s.doubt.Early + s.doubt.Late).Seconds()
			a.unread += unread.Seconds()
		})
	}
}

// bound returns how far what the account was charged of a counter may be off. It can have used
// nothing, or as much as the device can do in that time, if that is known.
func (a *account) bound(t *total) float64 {
	bound := t.doubt + t.counter.highest()*(max(0, a.allocated-t.measured)+a.unread)
	if t.counter.limit <= 0 {
		return bound
	}
	return min(bound, max(t.value, t.counter.highest()*(a.allocated+a.edges)-t.value))
}

// divide notes that the device was divided in a way while the account's claim held it.
func (a *account) divide(by join.Attribution) {
	if by != a.attribution && by.LessCertain(a.attribution) {
		a.attribution = by
	}
}

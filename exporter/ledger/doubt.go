package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The possible error of a claim's charges is summed as they are charged, from the readings:
//
//   - around the start or end of a hold: the device may have done all of its work between the two
//     readings on one side of it, as far as its highest rate allows;
//   - of a gauge's integral: the gauge may have changed right after the one reading, or right
//     before the next;
//   - of a device whose division is a guess: the claim may have used everything, or nothing.
//
// Time without such readings is not measured: the device was not read, a counter was reset, a gauge
// was read too rarely, or the hold became known too late. In that time, a claim may have used
// nothing, or the highest rate of the device.

// edge is a time at which holds begin or end: the assumed time and its limits, in seconds since the
// reading before.
type edge struct{ at, earliest, latest float64 }

// eachEdge calls f for each claim and each start or end of its hold that may lie between two
// readings. by is the affected part of the device.
func (d *deviceBook) eachEdge(
	c *counter, from, to time.Time, f func(a *account, by float64, e edge),
) {
	for i := len(d.timeline) - 1; i > 0; i-- {
		s := &d.timeline[i]
		if !s.From.Add(d.late).After(from) {
			return
		}
		if !s.From.Add(s.Doubt.Late).After(from) || !s.From.Add(-s.Doubt.Early).Before(to) {
			continue
		}
		at := s.From.Sub(from).Seconds()
		e := edge{at, at - s.Doubt.Early.Seconds(), at + s.Doubt.Late.Seconds()}
		s.EachChange(&d.timeline[i-1], c.spec.Basis, func(a *account, by float64) { f(a, by, e) })
	}
}

// eachEdgeOfAll is eachEdge for the device and for those of its partitions that have parts of the
// counter. own is the counter that is charged.
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

// doubtEdges adds the possible errors, around starts and ends of holds, of an amount that the
// device counted between two readings: it need not have counted evenly.
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

// doubtSpread adds the possible errors of a gauge's integral around starts and ends of holds.
// highest is the gauge's highest value in that time.
func (d *deviceBook) doubtSpread(c *counter, highest float64, from, to time.Time) {
	span := to.Sub(from).Seconds()
	d.eachEdgeOfAll(c, from, to, func(a *account, own *counter, by float64, e edge) {
		a.judge(own, by*highest*max(0, min(e.latest, span)-max(e.earliest, 0)), 0)
	})
}

// doubtHolds adds the possible errors of starts and ends of holds that are decided now: those in
// [from, until]. Counts from before from have been charged already.
func doubtHolds(t segments, from, until time.Time) {
	for i := len(t) - 1; i > 0 && !t[i].From.Before(from); i-- {
		s := &t[i]
		if s.From.After(until) || s.Judged || s.Doubt == (podresources.Doubt{}) {
			continue
		}
		s.Judged = true
		unread := max(0, from.Sub(s.From.Add(-s.Doubt.Early)))
		s.EachChange(&t[i-1], driver.ByTime, func(a *account, _ float64) {
			a.edges += (s.Doubt.Early + s.Doubt.Late).Seconds()
			a.unread += unread.Seconds()
		})
	}
}

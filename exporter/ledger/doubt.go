package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
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

// doubtHolds adds how far the begins and ends of holds may be off that are decided now: those from
// one time until another, the second included. What was counted before that is charged already.
func (t timeline) doubtHolds(from, until time.Time) {
	for i := len(t) - 1; i > 0 && !t[i].from.Before(from); i-- {
		s := &t[i]
		if s.from.After(until) || s.judged || s.doubt == (podresources.Doubt{}) {
			continue
		}
		s.judged = true
		unread := max(0, from.Sub(s.from.Add(-s.doubt.Early)))
		s.eachChanged(&t[i-1], driver.ByTime, func(a *account, _ float64) {
			a.edges += (s.doubt.Early + s.doubt.Late).Seconds()
			a.unread += unread.Seconds()
		})
	}
}

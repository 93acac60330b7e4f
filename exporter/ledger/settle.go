package ledger

import (
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// observe queues the readings and events of a tick, and records what fills each counter.
func (d *deviceBook) observe(now time.Time) {
	d.identify(&d.joined.Entry.Hardware, now)
	d.measured = false
	for _, r := range d.joined.Readings {
		r.At = onClock(r.At, now)
		d.read = d.read || r.Quantity != driver.Health
		d.measured = d.measured || d.catalogue.Spec(r.Quantity).ShowsActivity(r.Labels)
		key := seriesKey{r.Quantity, r.Labels}
		m := d.findMeter(key)
		if m == nil {
			before := d.readBefore(&r, now)
			if m = d.addMeter(key); !before.IsZero() {
				m.beginAt(before, r.Origin)
			}
		}
		if reason := d.refuse(m, &r.Reading, r.Origin); reason != "" {
			d.reject(r.Origin, reason, &r.Reading)
			continue
		}
		m.seen, m.now, m.divided = now, r, false
		if reason := m.observe(r, now); reason != "" {
			d.reject(r.Origin, reason, &r.Reading)
		}
		if d.joined.Parent != "" && m.spec.MeasuresBasis && m.spec.Basis == driver.ByTime {
			d.activity = d.activity.With(r.At, r.Value)
		}
	}
	for _, m := range d.meters {
		if !m.seen.Equal(now) {
			continue
		}
		if c := d.filledBy(m, now); c != nil {
			c.seen = now
			c.fill(m)
		}
	}
	d.queueEvents(d.joined.Events, d.born, now)
	up, _ := d.up()
	d.prune(now, up == book.Down)
}

// settle distributes the readings up to the horizon, the time up to which the holders are known.
func (d *deviceBook) settle(horizon, now time.Time, config *Config) {
	d.clock, d.failures = now, nil
	for _, m := range d.meters {
		n := 0
		for n < len(m.queue) && (!m.queue[n].At.After(horizon) || len(m.queue)-n > maxQueue) {
			next := &m.queue[n]
			m.have = m.have && !next.first
			if m.counts {
				d.count(m, next.Reading, now, config)
			} else {
				d.measure(m, next.Reading, now, config)
			}
			n++
		}
		m.queue = slices.Delete(m.queue, 0, n)
	}
	d.watched = d.watched || d.measured
	d.contradict(d.joined.Contradiction(config.IdleThreshold), d.timeline.Last(), now)
	d.chargeActive(d.timeline)
}

// refuse returns why a reading is none, by earlier readings of the device; "": it is one. A gauge
// may not exceed the highest rate of its counter.
func (d *deviceBook) refuse(m *meter, r *driver.Reading, origin join.Origin) driver.Reason {
	m.proven = m.proven || r.Value != 0
	switch {
	case m.spec.Zero == driver.ZeroNeedsOther && !m.proven:
		if m.counts {
			m.beginAt(r.At, origin) // a counter that turns out to be real counts from here
		}
		d.joined.Lack(driver.Absence{Quantity: r.Quantity, Why: driver.AbsentZero})
		return driver.ReasonZero
	case m.sums:
		if c := d.find(m.of(m.sum)); c != nil && r.Value > c.most() {
			return driver.ReasonOutOfRange
		}
	}
	return ""
}

// reject records that a reading was rejected.
func (d *deviceBook) reject(origin join.Origin, reason driver.Reason, r *driver.Reading) {
	d.rejected = append(d.rejected, driver.Rejection{
		Input: driver.InputOf(origin.Source, d.catalogue.Spec(r.Quantity)), Reason: reason, Count: 1,
		Example: r.Example(d.catalogue),
	})
}

// measure distributes the integral of a gauge up to a reading, and what else a reading says about
// the holders.
func (d *deviceBook) measure(m *meter, next driver.Reading, now time.Time, config *Config) {
	if m.peaks {
		d.unattributed.peak(m.of(m.peak), next.Value)
		m.keepPeak(d.timeline.On(next.At), next.Value*m.kept)
	}
	d.observeDistribution(m, next)
	d.observeUse(m, next, 0)
	known := m.have && next.At.Sub(m.last.At) <= readings.MaxIntegration
	if m.spec.Activity == driver.BusyShare && next.Value > config.IdleThreshold {
		from := next.At // without a previous reading, nothing is counted
		if known {
			from = m.last.At
		}
		d.markActive(from, next.At, next.Value, config.IdleThreshold)
	}
	d.bound(m, next.Value)
	if c := d.filledBy(m, now); c != nil {
		if known {
			d.integrate(c, m.last, next)
		}
		c.settled = driver.Later(c.settled, next.At)
	}
	m.last, m.have = next, true
}

// count distributes what a hardware counter counted up to a reading. A reading that does not count
// leaves everything since the last one undecided.
func (d *deviceBook) count(m *meter, next driver.Reading, now time.Time, config *Config) {
	c := d.counter(m.key, now)
	if !m.have {
		m.before.Begin(next)
		// The first reading of a count that began while the device was known. If another source counted
		// in the meantime, the time is not counted twice.
		counts := next.Since.After(d.born) && next.Since.After(d.identified) && !c.settled.After(next.Since)
		switch {
		case counts && readings.Fits(next.Value, next.Since, next.At, c.most()):
			d.tally(c, next.Value, next.Since, next.At, true, config)
		case counts:
			d.reject(m.series.Origin, driver.ReasonRate, &next)
		}
	} else {
		step := m.before.Next(m.last, next, readings.Limits{
			Most: c.most(), Known: c.highest(), Patient: c.spec.Failure,
		})
		if step.Reason != "" {
			d.reject(m.series.Origin, step.Reason, &next)
			return
		}
		if step.Returned {
			d.reject(m.series.Origin, driver.ReasonFall, &m.last)
		}
		d.observeUse(m, next, step.Amount/max(next.At.Sub(step.From).Seconds(), 1e-3))
		d.tally(c, step.Amount, step.From, next.At, step.Exact, config)
		next = step.Last
	}
	c.settled = driver.Later(c.settled, next.At)
	m.last, m.have = next, true
}

// tally distributes the increment of a hardware counter. If it is not exact, the counter may have
// been reset, and its counts before the reset are unknown.
func (d *deviceBook) tally(c *counter, amount float64, from, to time.Time, exact bool, config *Config) {
	if amount > 0 {
		span := to.Sub(from)
		rate := amount / max(span.Seconds(), 1e-3)
		if threshold := c.threshold(config); rate > threshold {
			d.markActive(from, to, rate, threshold)
		}
		if c.spec.Divided && d.wasIdle(from, to, config) {
			c.idle = lower(c.idle, rate)
		}
		if span >= rateTime {
			c.fastest = max(c.fastest, rate)
		}
	}
	if c.index >= 0 {
		d.doubtEdges(c, amount, from, to)
	}
	d.distribute(c, amount, from, to, certainty{measured: exact})
}

// integrate distributes the integral of a gauge between two readings, in pieces between changes of
// holders. The end of a holder's processes is such a change even if the holder still holds the
// device: its work ended then at the latest.
func (d *deviceBook) integrate(c *counter, last, next driver.Reading) {
	highest := max(last.Value, next.Value)
	d.doubtSpread(c, highest, last.At, next.At)
	d.each(last.At, next.At, func(_ *segment, from, to time.Time) {
		by := certainty{measured: next.At.Sub(last.At) <= maxGap, spread: math.Abs(next.Value-last.Value) / 2}
		if from.After(last.At) || to.Before(next.At) { // the gauge may have changed with the holder
			by.spread = highest
		}
		d.distribute(c, readings.Level(last, next, from, to)*to.Sub(from).Seconds(), from, to, by)
	}, d.departure(last.At, next.At))
}

// distribute adds an amount to the device's counter, and divides it among the holders. The amount
// accrued evenly over a span of time. What accrued while the device was free, or while a dropped
// account held it, is unattributed. Time before the settled time is omitted: it has been
// distributed, from another source or as an integral.
//
// The last piece of the span gets the remainder, so that the pieces sum to the amount. The pieces'
// lengths need not sum to that of the span: times from files have only the wall clock, all others
// also have the monotonic clock, and the two drift apart.
func (d *deviceBook) distribute(c *counter, amount float64, from, to time.Time, by certainty) {
	if from.Before(c.settled) {
		whole := to.Sub(from)
		from = c.settled
		if !from.Before(to) {
			return
		}
		amount *= float64(to.Sub(from)) / float64(whole)
	}
	c.total += amount
	c.settled = to
	if c.index < 0 {
		d.witness(c, amount, from, to)
		return
	}
	span := float64(to.Sub(from))
	end, left := to, amount
	d.each(from, to, func(s *segment, from, to time.Time) {
		here := left
		if to.Before(end) {
			here = min(left, max(0, amount*(float64(to.Sub(from))/span)))
		}
		left -= here
		if c.spec.Divided && len(d.parts) > 0 {
			here = d.chargeParts(c, here, from, to, by)
		}
		d.unattributed.charge(c, charge(s, c, here, here, to.Sub(from), by, d.clock), d.clock)
	})
}

// accrue adds allocated time up to the horizon.
func (d *deviceBook) accrue(horizon time.Time) {
	from := d.accrued
	if from.IsZero() {
		from = d.born
	}
	if !horizon.After(from) {
		return
	}
	doubtHolds(d.timeline, from, horizon)
	d.timeline.Each(from, horizon, func(s *segment, from, to time.Time) {
		seconds := to.Sub(from).Seconds()
		if len(s.Claims) > 0 {
			d.allocated += seconds
		}
		for i := range s.Claims {
			s.Claims[i].Holder.divide(s.Attribution)
		}
		for p := range s.Parts() {
			p.Holder.allocated += seconds
			p.Holder.share += seconds * p.Weight
			p.Holder.charged = d.clock
		}
	})
	d.accrued = horizon
}

// witness counts an increment of a counter in full for everyone who held the device, or a part of
// it, at that time.
func (d *deviceBook) witness(c *counter, amount float64, from, to time.Time) {
	switch {
	case amount <= 0:
	case c.spec.Failure:
		d.witnessErrors(c, amount, from, to)
	case c.spec.Sharing == driver.Witnessed:
		d.witnessTime(c, amount, from, to)
	}
}

// witnessTime counts a duration: for each holder, the part of it in which it held the device.
func (d *deviceBook) witnessTime(c *counter, amount float64, from, to time.Time) {
	span := float64(to.Sub(from))
	d.eachBook(func(b *deviceBook) {
		b.timeline.Each(from, to, func(s *segment, from, to time.Time) {
			part := 1.0
			if span > 0 {
				part = float64(to.Sub(from)) / span
			}
			eachHolder(s, func(a *account, _ bool) { a.witness(c.key, amount*part, d.clock) })
		})
	})
}

// witnessErrors counts errors. Errors that the source reported as events hit the holders at the
// time of the event. Errors of unknown time hit everyone who held the device within the span.
func (d *deviceBook) witnessErrors(c *counter, amount float64, from, to time.Time) {
	failure := book.Failure{Device: d.id, Labels: c.key.labels}
	eachBook := d.eachBook
	if c.spec.Sharing != driver.Witnessed { // not counted for holders
		eachBook = func(func(*deviceBook)) {}
	}
	for _, e := range d.takeEvents(c.key, amount, to) {
		amount--
		hit := failure
		hit.Count, hit.From, hit.To, hit.Named, hit.Pod, hit.Claims = 1, e.at, e.at, e.Named, e.Pod, e.Claims
		d.failed(hit)
		eachBook(func(b *deviceBook) {
			eachHolder(b.timeline.On(e.at), func(a *account, pod bool) {
				if !e.Named || a.isHit(&e.Event, pod) {
					a.fail(c.key, 1, e.at, d.clock)
				}
			})
		})
	}
	if amount <= 0 {
		return
	}
	failure.Count, failure.From, failure.To = amount, from, to
	d.failed(failure)
	eachBook(func(b *deviceBook) {
		var hit []*account
		b.timeline.Each(from, to, func(s *segment, _, _ time.Time) {
			eachHolder(s, func(a *account, _ bool) {
				if !slices.Contains(hit, a) {
					hit = append(hit, a)
					a.fail(c.key, amount, to, d.clock)
				}
			})
		})
	})
}

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

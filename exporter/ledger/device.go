package ledger

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// deviceBook is the ledger's record of one device.
type deviceBook struct {
	id    driver.ID
	seen  time.Time // the last tick in which it occurred
	clock time.Time // the present tick
	born  time.Time

	catalogue driver.Catalogue

	identity   identity  // of the hardware
	identified time.Time // the tick at which it became other hardware; zero: it never did

	joined *join.Device // of the last tick that knew it
	read   bool         // it was read at least once

	shares     []join.Share  // of the last tick
	ended      []join.Share  // likewise
	left       []time.Time   // when processes of those who hold it ended
	known      []knownTick   // by time
	timeline   timeline      // not empty
	late       time.Duration // how much later at most its changes may have been
	owners     map[holdingKey]*owner
	owned      []owners  // of shares, in their order
	periods    []*Period // by when they were known first
	newPeriods bool      // since the timeline took them over
	used       time.Time // the time of the tick before
	usesKnown  bool      // the last segment has parts by process

	meters       []*meter
	counters     []*counter
	attributed   []*counter // those of additive quantities, by index
	gauges       int        // the number of attributed gauges
	unattributed account    // what no holder was charged for
	events       []queuedEvent
	highest      []Value // of gauges that have a peak

	parent   *deviceBook // the device that this one is a part of; nil: none that is known
	parts    []*deviceBook
	activity activity // of a part
	weighed  []part   // of a parent: what weigh returned last

	accrued   time.Time // allocated time is distributed up to here
	allocated float64   // seconds in which it was held
	lastError time.Time
	failures  []Failure // of this tick
	measured  bool      // activity was measured at this tick

	inUse             float64   // seconds in which it was active while it was held
	usedUntil         time.Time // what was before is counted
	watched           bool      // its activity was measured at some time
	spans             []span    // in which it was active, and that are not charged yet
	contradiction     join.Contradiction
	contradictedSince time.Time
	contradicted      join.Contradiction // for long enough

	recorded recorded
	resumed  bool // of an earlier process: who holds it is to be known yet
}

func newDeviceBook(id driver.ID, catalogue driver.Catalogue, now time.Time) *deviceBook {
	d := &deviceBook{
		id: id, catalogue: catalogue, born: now, unattributed: account{born: now},
		timeline: timeline{{unattributed: join.Evenly(1)}},
	}
	d.unattributed.device = d
	return d
}

// observe queues the readings of a tick.
func (d *deviceBook) observe(readings []join.Reading, tick uint64, now time.Time) {
	d.measured = false
	for _, r := range readings {
		r.At = onClock(r.At, now)
		d.read = d.read || r.Quantity != driver.Health
		d.measured = d.measured || d.catalogue.Spec(r.Quantity).ShowsActivity(r.Labels)
		key := seriesKey{r.Quantity, r.Labels}
		m := d.findMeter(key)
		if m == nil {
			before := d.readBefore(&r, tick)
			if m = d.meter(key); !before.IsZero() {
				m.beginAt(before, r.Source)
			}
		}
		m.present, m.seen, m.now, m.divided = tick, now, r, false
		m.observe(r, now)
		if d.joined.Parent != "" && m.spec.MeasuresBasis && m.spec.Basis == driver.ByTime {
			d.activity = d.activity.with(r.At, r.Value)
		}
	}
	for _, m := range d.meters {
		if m.present != tick {
			continue
		}
		if c := d.filledBy(m, now); c != nil {
			c.present, c.seen = tick, now
			c.fill(m)
		}
	}
}

// readBefore returns when the source of a reading, the first of errors with this code, read the
// device last: then it had none of them. Zero: that is not known, as it is not of totals, which a
// source may come to read at any time.
func (d *deviceBook) readBefore(r *join.Reading, tick uint64) (at time.Time) {
	if spec := d.catalogue.Spec(r.Quantity); !spec.Failure || spec.Type != driver.Counter || r.Labels[1] == "" {
		return at
	}
	for _, m := range d.meters {
		if before, known := m.newestBefore(tick); known && m.source == r.Source && before.After(at) {
			at = before
		}
		if m.replaced {
			return time.Time{}
		}
	}
	return at
}

// prune drops series that have not been read for long, of quantities with open labels: error codes
// come and go. Errors of a device that is down stay.
func (d *deviceBook) prune(now time.Time) {
	d.meters = slices.DeleteFunc(d.meters, func(m *meter) bool { return !m.additive && now.Sub(m.seen) > rememberFor })
	up, _ := d.up()
	d.counters = slices.DeleteFunc(d.counters, func(c *counter) bool {
		return c.index < 0 && (!c.spec.Failure || up != Down) && now.Sub(c.seen) > rememberFor
	})
}

// integralSuffix is added to the name of a source whose gauge is integrated in place of a hardware
// counter.
const integralSuffix = " (integral of its gauge)"

// Estimated reports whether the source of a series says that the values are not measured
// themselves: they are integrals, parts of a parent's, or estimates.
func Estimated(source string) bool { return strings.HasSuffix(source, ")") }

func (d *deviceBook) meter(key seriesKey) *meter {
	if m := d.findMeter(key); m != nil {
		return m
	}
	m := newMeter(key, d.catalogue)
	if m.additive && !m.counts {
		m.gauge = d.gauges
		d.gauges++
	}
	d.meters = append(d.meters, m)
	slices.SortFunc(d.meters, func(a, b *meter) int { return a.key.compare(b.key) })
	return m
}

func (d *deviceBook) findMeter(key seriesKey) *meter {
	for _, m := range d.meters {
		if m.key == key {
			return m
		}
	}
	return nil
}

// filledBy returns the counter that a meter fills, nil if none. The integral of a gauge fills one
// only if no hardware counter does, or did recently.
func (d *deviceBook) filledBy(m *meter, now time.Time) *counter {
	if m.counts {
		return d.counter(m.key, now)
	}
	if !m.sums {
		return nil
	}
	hardware := d.findMeter(m.sum)
	if hardware != nil && !hardware.seen.Before(d.identified) && now.Sub(hardware.now.At) < rememberFor {
		return nil
	}
	return d.counter(m.sum, now)
}

func (d *deviceBook) find(key seriesKey) *counter {
	for _, c := range d.counters {
		if c.key == key {
			return c
		}
	}
	return nil
}

func (d *deviceBook) counter(key seriesKey, now time.Time) *counter {
	if c := d.find(key); c != nil {
		return c
	}
	c := &counter{key: key, spec: d.catalogue.Spec(key.quantity), index: -1, series: newSeries(key)}
	c.series.Born, c.series.Shown = now, now
	if c.spec.Activity == driver.BusyShare {
		c.limit = 1
	}
	if c.spec.Sharing == driver.Additive {
		c.index = len(d.attributed)
		d.attributed = append(d.attributed, c)
		d.unattributed.open(d.attributed)
		for _, s := range d.timeline {
			for _, p := range slices.Concat(s.claims, s.pods) {
				p.account.open(d.attributed)
			}
		}
	}
	d.counters = append(d.counters, c)
	slices.SortFunc(d.counters, func(a, b *counter) int { return a.key.compare(b.key) })
	return c
}

// settle distributes the readings up to the horizon, the time up to which the holders are known.
func (d *deviceBook) settle(horizon, now time.Time, config Config) {
	d.clock, d.failures = now, nil
	for _, m := range d.meters {
		n := 0
		for n < len(m.queue) && (!m.queue[n].At.After(horizon) || len(m.queue)-n > maxQueue) {
			next := &m.queue[n]
			m.have = m.have && !next.first
			d.count(m, next.Reading, now, config)
			m.settle(next.Reading)
			n++
		}
		m.queue = slices.Delete(m.queue, 0, n)
	}
	d.watched = d.watched || d.measured
	d.contradict(now, config)
	d.chargeActive()
}

// count distributes what one reading adds.
func (d *deviceBook) count(m *meter, next driver.Reading, now time.Time, config Config) {
	d.peak(m, next)
	d.observeDistribution(m, next)
	d.observeUse(m, next)
	if !m.counts && m.spec.Activity == driver.BusyShare && next.Value > config.IdleThreshold {
		from := next.At // of a reading without one before, not long enough to count
		if m.have && next.At.Sub(m.last.At) <= maxIntegration {
			from = m.last.At
		}
		d.markActive(from, next.At, next.Value, config.IdleThreshold)
	}
	d.bound(m, next.Value)
	c := d.filledBy(m, now)
	if c == nil {
		return
	}
	switch {
	case m.sums:
		if m.have && next.At.Sub(m.last.At) <= maxIntegration {
			d.integrate(c, m.last, next)
		}
	case m.have:
		amount, from := increment(m.last, next)
		d.tally(c, amount, from, next.At, c.sure(m, next), config)
	case next.Since.After(d.born) && next.Since.After(d.identified) && !c.settled.After(next.Since):
		// The first reading of a count that began while the device was known. If another source
		// counted meanwhile, it would be counted twice.
		d.tally(c, next.Value, next.Since, next.At, true, config)
	}
	if next.At.After(c.settled) {
		c.settled = next.At
	}
}

// tally distributes the increment of a hardware counter. If it is not sure, the counter fell, and
// what it counted before that is not known.
func (d *deviceBook) tally(c *counter, amount float64, from, to time.Time, sure bool, config Config) {
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
	d.distribute(c, amount, from, to, certainty{measured: sure})
}

// integrate distributes the integral of a gauge between two readings, in pieces between the changes
// of holders. A holder whose processes ended is such a change even if it holds the device on: its
// work ended at the latest then.
func (d *deviceBook) integrate(c *counter, last, next driver.Reading) {
	highest := max(last.Value, next.Value)
	d.doubtSpread(c, highest, last.At, next.At)
	d.eachPiece(last, next, func(_ *segment, from, to time.Time) {
		sure := certainty{measured: next.At.Sub(last.At) <= maxGap, spread: math.Abs(next.Value-last.Value) / 2}
		if from.After(last.At) || to.Before(next.At) { // it may have changed with the holder
			sure.spread = highest
		}
		d.distribute(c, level(last, next, from, to)*to.Sub(from).Seconds(), from, to, sure)
	})
}

// eachPiece calls f for every piece of the time between two readings of a gauge in which no holder
// changed and none was seen to go.
func (d *deviceBook) eachPiece(last, next driver.Reading, f func(s *segment, from, to time.Time)) {
	left := d.departure(last.At, next.At)
	d.each(last.At, next.At, func(s *segment, from, to time.Time) {
		if left.After(from) && left.Before(to) {
			f(s, from, left)
			from = left
		}
		f(s, from, to)
	})
}

// departure returns when the processes of a holder were first seen to be gone within a span of
// time, the zero time if none were.
func (d *deviceBook) departure(after, until time.Time) (first time.Time) {
	d.eachBook(func(b *deviceBook) {
		for _, left := range b.left {
			if left.After(after) && left.Before(until) && (first.IsZero() || left.Before(first)) {
				first = left
			}
		}
	})
	return first
}

// distribute adds an amount that accrued evenly over a span of time to the device's counter, and
// divides it among the holders at that time. What accrued while the device was free, or while a
// dropped account held it, is unattributed. What lies before the settled time is omitted: it was
// distributed already (from another source, or as an integral).
//
// The last piece of the span gets the remainder, so that the pieces sum to the amount. Their
// lengths need not sum to that of the span: times of files have the wall clock alone, all others
// the monotonic clock too, and the two drift.
func (d *deviceBook) distribute(c *counter, amount float64, from, to time.Time, sure certainty) {
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
			here = d.chargeParts(c, here, from, to, sure)
		}
		d.unattributed.charge(c, s.charge(c, here, here, to.Sub(from), sure, d.clock), d.clock)
	})
}

// charge divides an amount of a counter, which is of a larger one if it is not known whose it is,
// among the holders, and returns what none of them has. tick is the time of the present tick.
func (s *segment) charge(
	c *counter, amount, of float64, span time.Duration, sure certainty, tick time.Time,
) (left float64) {
	if len(s.claims) == 0 || s.hasDropped() {
		return amount
	}
	basis := c.spec.Basis
	spread, measured := sure.spread*span.Seconds(), 0.0
	if sure.measured {
		measured = span.Seconds()
	}
	for i := range s.claims {
		p := &s.claims[i]
		part := amount * p.use[basis]
		doubt := spread * p.use[basis]
		if s.guessed || sure.guessed {
			doubt = spread + max(part, of-part)
		}
		p.account.charge(c, part, tick)
		p.account.judge(c, doubt, measured)
	}
	for i := range s.pods {
		p := &s.pods[i]
		p.account.charge(c, amount*p.use[basis], tick)
	}
	return amount * s.unattributed[basis]
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
	d.doubtHolds(from, horizon)
	d.timeline.each(from, horizon, func(s *segment, from, to time.Time) {
		seconds := to.Sub(from).Seconds()
		if len(s.claims) > 0 {
			d.allocated += seconds
		}
		for i := range s.claims {
			s.claims[i].account.divide(s.attribution)
		}
		for _, parts := range [][]portion{s.claims, s.pods} {
			for _, p := range parts {
				p.account.allocated += seconds
				p.account.share += seconds * p.weight
				p.account.charged = d.clock
			}
		}
	})
	d.accrued = horizon
}

// unsettled returns the time up to which no reading can be distributed any more.
func (d *deviceBook) unsettled(now time.Time) time.Time {
	oldest := d.accrued
	for _, m := range d.meters {
		if m.have && m.last.At.Before(oldest) && now.Sub(m.last.At) < rememberFor {
			oldest = m.last.At
		}
	}
	if d.parent != nil {
		if of := d.parent.unsettled(now); of.Before(oldest) {
			return of
		}
	}
	return oldest
}

// closeAccounts ends the accounts that are in a past segment, or in one that was replaced from a
// moment on, and not in the last.
func (d *deviceBook) closeAccounts(replaced timeline, from time.Time) {
	last := d.timeline[len(d.timeline)-1]
	holds := func(a *account) bool {
		return slices.ContainsFunc(last.claims, func(p portion) bool { return p.account == a }) ||
			slices.ContainsFunc(last.pods, func(p portion) bool { return p.account == a })
	}
	end := func(s *segment, until time.Time) {
		for _, parts := range [2][]portion{s.claims, s.pods} {
			for _, p := range parts {
				if !p.account.aggregated && !holds(p.account) {
					p.account.end(until)
				}
			}
		}
	}
	for i := range replaced {
		end(&replaced[i], from)
	}
	for i := range d.timeline[:len(d.timeline)-1] {
		end(&d.timeline[i], d.timeline[i+1].from)
	}
}

// threshold returns the rate per second above which the counter shows an active device; infinite
// if it does not show that.
func (c *counter) threshold(config Config) float64 {
	switch {
	case !c.spec.ShowsActivity(c.key.labels):
		return math.Inf(1)
	case c.spec.Activity == driver.Traffic:
		return config.NetworkThreshold
	default:
		return config.IdleThreshold
	}
}

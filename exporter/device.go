package exporter

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// device is the ledger's books of one device.
type device struct {
	id     driver.ID
	labels *labels
	seen   time.Time // the last tick that knew it
	clock  time.Time // the present tick
	born   time.Time

	joined *JoinedDevice // of the last tick that knew it
	read   bool          // it was read at some time

	shares     []Share
	departures []podresources.Change // what was seen to go lately, on the whole node
	timeline   timeline
	used       time.Time // the tick before
	usesKnown  bool      // the present parts are what processes told

	meters     []*meter
	counters   []*counter
	attributed []*counter // those of additive quantities, by index
	nobody     account    // what nobody was charged for

	accrued   time.Time // allocated time is accounted for up to here
	allocated float64   // seconds in which somebody held it
	lastError time.Time
	measured  bool // activity was measured at this tick
}

func newDevice(id driver.ID, now time.Time) *device {
	labels := deviceLabels(id)
	d := &device{id: id, labels: labels, born: now, nobody: account{labels: labels, born: now}}
	d.nobody.device = d
	return d
}

// observe takes the readings of a tick.
func (d *device) observe(readings []Reading, tick uint64, now time.Time) {
	d.measured = false
	for _, r := range readings {
		if r.At.After(now) {
			r.At = now // a source's clock runs ahead: the reading can't be of later than now
		}
		d.read = d.read || r.Quantity != driver.Health
		d.measured = d.measured || measuresActivity(r.Quantity, r.Labels)
		m := d.meter(seriesKey{r.Quantity, r.Labels})
		m.present, m.seen, m.now = tick, now, r
		m.observe(r)
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

// prune forgets series that were not read for long, of quantities whose labels are open: error codes come and go.
func (d *device) prune(now time.Time) {
	d.meters = slices.DeleteFunc(d.meters, func(m *meter) bool { return !m.additive && now.Sub(m.seen) > forget })
	d.counters = slices.DeleteFunc(d.counters, func(c *counter) bool { return c.index < 0 && now.Sub(c.seen) > forget })
}

// integrated is added to the name of a source whose gauge stands in for a hardware counter.
const integrated = " (integral of its gauge)"

func (d *device) meter(key seriesKey) *meter {
	if m := d.findMeter(key); m != nil {
		return m
	}
	m := newMeter(key, d.labels)
	d.meters = append(d.meters, m)
	slices.SortFunc(d.meters, func(a, b *meter) int { return a.key.compare(b.key) })
	return m
}

func (d *device) findMeter(key seriesKey) *meter {
	for _, m := range d.meters {
		if m.key == key {
			return m
		}
	}
	return nil
}

// filledBy returns the counter that a meter fills, nil if none. A gauge's integral stands in only where no hardware
// counter does, nor did a while ago.
func (d *device) filledBy(m *meter, now time.Time) *counter {
	if m.counts {
		return d.counter(m.key, now)
	}
	if !m.sums {
		return nil
	}
	if hardware := d.findMeter(m.sum); hardware != nil && now.Sub(hardware.now.At) < forget {
		return nil
	}
	return d.counter(m.sum, now)
}

func (d *device) find(key seriesKey) *counter {
	for _, c := range d.counters {
		if c.key == key {
			return c
		}
	}
	return nil
}

func (d *device) counter(key seriesKey, now time.Time) *counter {
	if c := d.find(key); c != nil {
		return c
	}
	c := &counter{key: key, index: -1, series: newSeries(key, d.labels)}
	c.series.Born, c.series.shown = now, now
	if key.quantity.Spec().Sharing == driver.Additive {
		c.index = len(d.attributed)
		d.attributed = append(d.attributed, c)
		d.nobody.open(d.attributed)
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

// settle accounts for the readings that were taken up to the horizon: up to then it is known who held the device.
func (d *device) settle(horizon, now time.Time, config LedgerConfig) {
	d.clock = now
	for _, m := range d.meters {
		n := 0
		for n < len(m.queue) && (!m.queue[n].At.After(horizon) || len(m.queue)-n > maxQueue) {
			d.count(m, m.queue[n], now, config)
			m.settle(m.queue[n])
			n++
		}
		m.queue = slices.Delete(m.queue, 0, n)
	}
}

// count accounts for one reading.
func (d *device) count(m *meter, next driver.Reading, now time.Time, config LedgerConfig) {
	if m.key.quantity == driver.Utilization && next.Value > config.IdleThreshold {
		d.markActive(next.At, next.Value, config.IdleThreshold)
	}
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
		d.tally(c, amount, from, next.At, config)
	case next.Since.After(d.born) && !c.settled.After(next.Since):
		// The first reading of a count that began while the device was known; had another source counted meanwhile, it would count twice.
		d.tally(c, next.Value, next.Since, next.At, config)
	}
	if next.At.After(c.settled) {
		c.settled = next.At
	}
}

// tally distributes what a hardware counter counted.
func (d *device) tally(c *counter, amount float64, from, to time.Time, config LedgerConfig) {
	if amount > 0 {
		if c.key.quantity == driver.Errors {
			d.lastError = to
		}
		if rate := amount / max(to.Sub(from).Seconds(), 1e-3); busy(c.key, rate, config) {
			d.markActive(to, rate, config.IdleThreshold)
		}
	}
	d.distribute(c, amount, from, to)
}

// integrate distributes the integral of a gauge between two readings, piece by piece where the holders changed, or one was seen to go
// that the kubelet still names: its work ended with its cgroup at the latest, and the reading that this caused is of after it.
func (d *device) integrate(c *counter, last, next driver.Reading) {
	left := d.left(last.At, next.At)
	d.timeline.each(last.At, next.At, func(_ *segment, from, to time.Time) {
		if left.After(from) && left.Before(to) {
			d.distribute(c, level(last, next, from, left)*left.Sub(from).Seconds(), from, left)
			from = left
		}
		d.distribute(c, level(last, next, from, to)*to.Sub(from).Seconds(), from, to)
	})
}

// left returns when a holder was first seen to go in a span of time, the zero time if none was.
func (d *device) left(after, until time.Time) time.Time {
	for _, c := range d.departures {
		if !c.At.After(after) || !c.At.Before(until) {
			continue
		}
		for i := range d.shares {
			s := &d.shares[i]
			if !s.Admin && slices.ContainsFunc(s.Pods, func(pod podresources.Pod) bool { return concerns(c, s, pod) }) {
				return c.At
			}
		}
	}
	return time.Time{}
}

// distribute adds an amount that accrued evenly over a span of time to the device's counter, and divides it among
// those who held the device in that time. What accrued while nobody did, or somebody whose account is gone, is nobody's.
// What reaches back before the settled time was accounted for (from another source, or by an integral): that part is left
// out.
//
// The last piece of the span gets what the others leave, so that the pieces sum to the amount. Their lengths need not sum to the
// span's: dates that come from files have the wall clock alone, all others have the monotonic one too, and the two drift.
func (d *device) distribute(c *counter, amount float64, from, to time.Time) {
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
		return
	}
	span, basis := float64(to.Sub(from)), basisOf(c.key.quantity)
	end, left := to, amount
	d.timeline.each(from, to, func(s *segment, from, to time.Time) {
		here := left
		if to.Before(end) {
			here = min(left, max(0, amount*(float64(to.Sub(from))/span)))
		}
		left -= here
		if len(s.claims) == 0 || s.forgotten() {
			d.nobody.charge(c, here)
			return
		}
		for _, p := range s.claims {
			p.account.charge(c, here*p.use[basis])
		}
		for _, p := range s.pods {
			p.account.charge(c, here*p.use[basis])
		}
		d.nobody.charge(c, here*s.nobody[basis])
	})
}

// accrue accounts for allocated time up to the horizon.
func (d *device) accrue(horizon time.Time) {
	from := d.accrued
	if from.IsZero() {
		from = d.born
	}
	if !horizon.After(from) {
		return
	}
	d.timeline.each(from, horizon, func(s *segment, from, to time.Time) {
		seconds := to.Sub(from).Seconds()
		if len(s.claims) > 0 {
			d.allocated += seconds
		}
		for _, parts := range [][]part{s.claims, s.pods} {
			for _, p := range parts {
				p.account.allocated += seconds
				p.account.share += seconds * p.weight
				p.account.charged = d.clock
			}
		}
	})
	d.accrued = horizon
}

// unsettled returns the time up to which every reading that can still come is accounted for.
func (d *device) unsettled(now time.Time) time.Time {
	oldest := d.accrued
	for _, m := range d.meters {
		if m.have && m.last.At.Before(oldest) && now.Sub(m.last.At) < forget {
			oldest = m.last.At
		}
	}
	return oldest
}

// markActive notes that the device was active at the moment, for those who held it then; where their processes tell, for
// those alone whose part of the activity is above the threshold.
func (d *device) markActive(moment time.Time, activity, threshold float64) {
	s := &d.timeline[d.timeline.at(moment)]
	for _, p := range s.claims {
		if s.byProcess && activity*p.use[byTime] <= threshold {
			continue
		}
		if moment.After(p.account.active) {
			p.account.active = moment
		}
	}
}

// closeAccounts ends the accounts of those whose last segment is over.
func (d *device) closeAccounts() {
	last := d.timeline[len(d.timeline)-1]
	holds := func(a *account) bool {
		return slices.ContainsFunc(last.claims, func(p part) bool { return p.account == a }) ||
			slices.ContainsFunc(last.pods, func(p part) bool { return p.account == a })
	}
	for i, s := range d.timeline[:len(d.timeline)-1] {
		until := d.timeline[i+1].from
		for _, parts := range [][]part{s.claims, s.pods} {
			for _, p := range parts {
				if !holds(p.account) {
					p.account.ended = until
				}
			}
		}
	}
}

// measuresActivity tells whether a reading says if the device is active or idle.
func measuresActivity(q driver.Quantity, labels driver.Labels) bool {
	switch q {
	case driver.Utilization, driver.ActiveSeconds:
		return true
	case driver.IOBytes:
		return labels[0] == "network" || labels[0] == "rdma"
	default:
		return false
	}
}

// busy tells whether a counter's rate per second shows an active device.
func busy(key seriesKey, rate float64, config LedgerConfig) bool {
	if !measuresActivity(key.quantity, key.labels) {
		return false
	}
	if key.quantity == driver.IOBytes {
		return rate > config.NetworkThreshold
	}
	return rate > config.IdleThreshold
}

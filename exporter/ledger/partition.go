package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// activeIn returns the mean utilization of a partition in a span of time, -1 if unknown.
func (d *deviceBook) activeIn(from, to, tick time.Time) float64 {
	return d.activity.Mean(from, to, d.measured && d.seen.Equal(tick))
}

// link sets the parents of devices that are partitions.
func (b deviceBooks) link(devices []*deviceBook) {
	for _, d := range devices {
		if d.joined.Parent == "" && d.parent == nil {
			continue
		}
		parent := b[driver.ID{Driver: d.id.Driver, Pool: d.id.Pool, Device: d.joined.Parent}]
		if parent == d.parent || parent == d {
			continue
		}
		d.unlink()
		if d.parent = parent; parent != nil {
			d.whole = &parent.device
			parent.parts = append(parent.parts, d)
			slices.SortFunc(parent.parts, func(a, b *deviceBook) int { return a.id.Compare(b.id) })
		}
	}
}

// unlink removes the link to the parent.
func (d *deviceBook) unlink() {
	if d.parent != nil {
		d.parent.parts = slices.DeleteFunc(d.parent.parts, func(p *deviceBook) bool { return p == d })
		d.parent, d.whole = nil, nil
	}
}

// forget unlinks a partition that is gone, once no reading of its parent from the time of its holds
// is to come.
func (d *deviceBook) forget(now time.Time) {
	if d.parent != nil && d.timeline.Last().From.Before(d.parent.unsettled(now)) {
		d.unlink()
	}
}

// each calls f for each piece of the span in which neither the device's holders nor those of its
// partitions changed. The pieces make up the span.
func (d *deviceBook) each(from, to time.Time, f func(s *segment, from, to time.Time)) {
	if len(d.parts) == 0 {
		d.timeline.Each(from, to, f)
		return
	}
	var cuts []time.Time
	for _, p := range d.parts {
		for _, s := range p.timeline[p.timeline.At(from)+1:] {
			if s.From.After(from) && s.From.Before(to) {
				cuts = append(cuts, s.From)
			}
		}
	}
	slices.SortFunc(cuts, time.Time.Compare)
	d.timeline.Each(from, to, func(s *segment, from, to time.Time) {
		for _, cut := range cuts {
			if cut.After(from) && cut.Before(to) {
				f(s, from, cut)
				from = cut
			}
		}
		f(s, from, to)
	})
}

// weigh returns the device's held partitions with their holders at a moment, and each one's part
// of what the device did, divided by their activity in a span of time. idle is that of
// [join.DivideParent].
func (d *deviceBook) weigh(from, to, held time.Time, idle float64) []partition {
	out, parts := make([]partition, 0, len(d.parts)), make([]join.Part, 0, len(d.parts))
	for _, p := range d.parts {
		holders := &p.timeline[p.timeline.At(held)]
		w := join.Part{
			Share: p.joined.Entry.ParentShare, Activity: p.activeIn(from, to, d.clock), Held: len(holders.Claims) > 0,
		}
		out = append(out, partition{book: p, holders: holders})
		parts = append(parts, w)
	}
	join.DivideParent(parts, idle)
	for i := range parts {
		out[i].Part = parts[i]
	}
	return slices.DeleteFunc(out, func(p partition) bool { return !p.Held || p.Share <= 0 })
}

// chargeParts divides an amount among the holders of the device's partitions. The device counted it
// evenly in a span without changes of holders. It returns what is left for the device's own
// holders. The rest of a partition's part is unattributed.
func (d *deviceBook) chargeParts(
	c *counter, amount float64, from, to time.Time, by certainty,
) (left float64) {
	left = amount
	by.guessed = true
	for _, p := range d.weigh(from, to, from, idlePart(d.idleRate(c)*to.Sub(from).Seconds(), amount)) {
		if p.Fraction <= 0 {
			continue
		}
		here := amount * p.Fraction
		left -= here
		if !p.book.measuresItself() {
			own := p.book.dividedCounter(c.key, d.clock)
			own.limit, own.read, own.fastest = c.limit, c.read, c.fastest
			rest := charge(p.holders, own, here, amount, to.Sub(from), by, d.clock)
			own.total += here - rest
			here = rest
		}
		d.unattributed.charge(c, here, d.clock)
	}
	if left < 1e-12*amount { // a rounding error is not unattributed
		return 0
	}
	return left
}

// wasIdle reports whether the device, which has partitions, was certainly idle in a span of time:
// the utilization of all held partitions is known, and no known one exceeds the threshold.
func (d *deviceBook) wasIdle(from, to time.Time, config *Config) bool {
	if len(d.parts) == 0 {
		return false
	}
	known := false
	for _, p := range d.parts {
		a := p.activeIn(from, to, d.clock)
		held := len(p.timeline[p.timeline.At(to)].Claims) > 0
		if a > config.IdleThreshold || a < 0 && held {
			return false
		}
		known = known || a >= 0
	}
	for _, m := range d.meters {
		if m.spec.MeasuresBasis && m.spec.Basis == driver.ByTime && m.have {
			if m.now.Value > config.IdleThreshold {
				return false
			}
			known = true
		}
	}
	return known
}

// idlePart returns which part of a value a device has while it is idle.
func idlePart(idle, value float64) float64 {
	if value <= 0 {
		return 0
	}
	return min(1, idle/value)
}

// lower returns the lower of two values, where 0 means unknown.
func lower(a, b float64) float64 {
	if a > 0 && (b <= 0 || a < b) {
		return a
	}
	return b
}

// dividePresent divides the present values of the device among its partitions, and records its idle
// power.
func (d *deviceBook) dividePresent(now time.Time, config *Config) {
	for _, p := range d.parts {
		p.activity = p.activity.Since(d.unsettled(now))
	}
	for _, m := range d.meters {
		if m.counts || !m.spec.Divided || m.divided {
			continue
		}
		m.kept, m.lost = 1, 0
		if len(d.parts) == 0 || !m.seen.Equal(now) {
			continue
		}
		if d.wasIdle(m.now.At, m.now.At, config) {
			m.idle = lower(m.idle, m.now.Value)
		}
		d.divideGauge(m, now)
	}
	for _, c := range d.counters {
		if len(d.parts) == 0 || !c.spec.Divided || c.divided || !c.seen.Equal(now) {
			continue
		}
		for _, p := range d.weigh(now, now, now, 0) {
			if p.book.measuresItself() {
				continue
			}
			own := p.book.dividedCounter(c.key, now)
			own.seen = now
			own.series = own.series.DividedFrom(c.series.Origin, p.Activity)
		}
	}
}

// divideGauge divides the present value of a gauge among the holders of the partitions.
func (d *deviceBook) divideGauge(m *meter, now time.Time) {
	for _, p := range d.weigh(now, now, now, idlePart(m.idle, m.now.Value)) {
		m.kept = max(0, m.kept-p.Fraction)
		if p.book.measuresItself() {
			m.lost += p.Fraction
			continue
		}
		m.lost += p.Fraction * p.holders.Unattributed[m.spec.Basis]
		own := p.book.findMeter(m.key)
		if own == nil {
			own = p.book.addMeter(m.key)
			own.divided = true
		}
		own.seen = now
		own.now.Value = m.now.Value * p.Fraction
		if m.peaks && !m.now.At.Before(p.holders.From) {
			m.keepPeak(p.holders, own.now.Value)
		}
		own.series = own.series.DividedFrom(m.series.Origin, p.Activity)
	}
	if m.kept < 1e-12 { // a rounding error is not unattributed
		m.kept = 0
	}
}

// eachPiece calls f for each piece of the time between two readings of a gauge in which no holder
// changed, and no holder's processes ended.
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

// departure returns the first time within a span at which processes of a holder were seen to have
// ended, the zero time if none were.
func (d *deviceBook) departure(after, until time.Time) (first time.Time) {
	d.eachBook(func(b *deviceBook) {
		for h := range holdsIn(b.shares) {
			if !h.share.Admin && h.Left.After(after) && h.Left.Before(until) && (first.IsZero() || h.Left.Before(first)) {
				first = h.Left
			}
		}
	})
	return first
}

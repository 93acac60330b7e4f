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
// partitions changed, and which has none of the given times inside. The pieces make up the span.
func (d *deviceBook) each(from, to time.Time, f func(s *segment, from, to time.Time), cuts ...time.Time) {
	for _, p := range d.parts {
		for _, s := range p.timeline[p.timeline.At(from)+1:] {
			cuts = append(cuts, s.From)
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

// divideParts divides a value of the device among its held partitions: by their holders at a
// moment, and by their activity in a span of time. idle is the value of the idle device. It calls f
// with each partition, its holders and its part, and returns what is left for the device's own
// holders.
func (d *deviceBook) divideParts(
	value, idle float64, held, from, to time.Time, f func(p *deviceBook, s *segment, w *join.Part, here float64),
) (left float64) {
	parts := make([]join.Part, 0, len(d.parts))
	for _, p := range d.parts {
		parts = append(parts, join.Part{
			Share: p.joined.Entry.ParentShare, Activity: p.activeIn(from, to, d.clock),
			Held: len(p.timeline.On(held).Claims) > 0,
		})
	}
	join.DivideParent(parts, idlePart(idle, value))
	left = value
	for i, p := range d.parts {
		if w := &parts[i]; w.Held && w.Share > 0 {
			here := value * w.Fraction
			left -= here
			f(p, p.timeline.On(held), w, here)
		}
	}
	if left < 1e-12*value { // a rounding error is not left
		return 0
	}
	return left
}

// chargeParts divides an amount among the holders of the device's partitions. The device counted it
// evenly in a span without changes of holders. It returns what is left for the device's own
// holders. The rest of a partition's part is unattributed.
func (d *deviceBook) chargeParts(
	c *counter, amount float64, from, to time.Time, by certainty,
) (left float64) {
	by.guessed = true
	idle := d.idleRate(c) * to.Sub(from).Seconds()
	return d.divideParts(amount, idle, from, from, to, func(p *deviceBook, s *segment, w *join.Part, here float64) {
		if w.Fraction <= 0 {
			return
		}
		if !p.measuresItself() {
			own := p.dividedCounter(c.key, d.clock)
			own.limit, own.read, own.fastest = c.limit, c.read, c.fastest
			rest := charge(s, own, here, amount, to.Sub(from), by, d.clock)
			own.total += here - rest
			here = rest
		}
		d.unattributed.charge(c, here, d.clock)
	})
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
		d.divideParts(0, 0, now, now, now, func(p *deviceBook, _ *segment, w *join.Part, _ float64) {
			if !p.measuresItself() {
				own := p.dividedCounter(c.key, now)
				own.seen = now
				own.series = own.series.DividedFrom(c.series.Origin, w.Activity)
			}
		})
	}
}

// divideGauge divides the present value of a gauge among the holders of the partitions.
func (d *deviceBook) divideGauge(m *meter, now time.Time) {
	d.divideParts(m.now.Value, m.idle, now, now, now, func(p *deviceBook, s *segment, w *join.Part, here float64) {
		m.kept = max(0, m.kept-w.Fraction)
		if p.measuresItself() {
			m.lost += w.Fraction
			return
		}
		m.lost += w.Fraction * s.Unattributed[m.spec.Basis]
		own := p.findMeter(m.key)
		if own == nil {
			own = p.addMeter(m.key)
			own.divided = true
		}
		own.seen = now
		own.now.Value = here
		if m.peaks && !m.now.At.Before(s.From) {
			m.keepPeak(s, here)
		}
		own.series = own.series.DividedFrom(m.series.Origin, w.Activity)
	})
	if m.kept < 1e-12 { // a rounding error is not unattributed
		m.kept = 0
	}
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

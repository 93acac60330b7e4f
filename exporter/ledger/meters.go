package ledger

import (
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

func (d *deviceBook) findMeter(key seriesKey) *meter {
	for _, m := range d.meters {
		if m.key == key {
			return m
		}
	}
	return nil
}

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

// byIndex yields the attributed counters in the order of the totals of accounts, and then the
// others.
func (d *deviceBook) byIndex() iter.Seq[*counter] {
	return func(yield func(*counter) bool) {
		for _, c := range d.attributed {
			if !yield(c) {
				return
			}
		}
		for _, c := range d.counters {
			if c.index < 0 && !yield(c) {
				return
			}
		}
	}
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

// idleRate returns what the device counts per second while it is idle: the power that it was seen
// to draw then, or else the rate of its counter; 0 if that is unknown.
func (d *deviceBook) idleRate(c *counter) float64 {
	for _, m := range d.meters {
		if m.sums && m.sum == c.key {
			return m.idle
		}
	}
	return c.idle
}

// measuresItself reports whether a source reads, or read, one of the device's quantities that are
// else parts of the parent's.
func (d *deviceBook) measuresItself() bool {
	return slices.ContainsFunc(d.meters, func(m *meter) bool { return m.spec.Divided && !m.divided })
}

// dividedCounter returns the counter of what the holders of a part have of the parent's.
func (d *deviceBook) dividedCounter(key seriesKey, now time.Time) *counter {
	if c := d.find(key); c != nil {
		return c
	}
	c := d.counter(key, now)
	c.divided = true
	return c
}

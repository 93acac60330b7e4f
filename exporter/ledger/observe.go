package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

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

package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// deviceSeries has the meters and counters of one device.
type deviceSeries struct {
	catalogue  driver.Catalogue
	meters     []*meter
	counters   []*counter
	attributed []*counter // by index
	gauges     int        // the number of attributed gauges
	identified time.Time  // the tick at which its hardware was last replaced; zero: never
}

func (d *deviceSeries) findMeter(key seriesKey) *meter {
	for _, m := range d.meters {
		if m.key == key {
			return m
		}
	}
	return nil
}

// addMeter creates the meter of a series that has none.
func (d *deviceSeries) addMeter(key seriesKey) *meter {
	m := newMeter(key, d.catalogue)
	if m.spec.Sharing == driver.Additive && !m.counts {
		m.gauge = d.gauges
		d.gauges++
	}
	d.meters = append(d.meters, m)
	slices.SortFunc(d.meters, func(a, b *meter) int { return a.key.compare(b.key) })
	return m
}

func (d *deviceSeries) find(key seriesKey) *counter {
	for _, c := range d.counters {
		if c.key == key {
			return c
		}
	}
	return nil
}

// counter returns the counter of a series, which it creates if necessary.
func (d *deviceSeries) counter(key seriesKey, now time.Time) *counter {
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
	}
	d.counters = append(d.counters, c)
	slices.SortFunc(d.counters, func(a, b *counter) int { return a.key.compare(b.key) })
	return c
}

// maxCodes is the number of a device's errors with a code that are remembered while they are not
// read, as when a source can't read the device for a while. Sources that count by code have at most
// as many (nvidia.MaxCodes).
const maxCodes = 256

// codes returns the number of known errors with a code.
func (d *deviceSeries) codes() (n int) {
	for _, m := range d.meters {
		if m.coded() {
			n++
		}
	}
	return n
}

// readBefore returns when the source of r last read the device without this error code, if r is its
// first error. It is zero if that is unknown: if the source may begin to read the counter at any
// time, or if there were more codes than are remembered.
func (d *deviceSeries) readBefore(r *join.Reading, tick time.Time) (at time.Time) {
	if !slices.Contains(d.catalogue.Spec(r.Quantity).AppearLabels, r.Labels[0]) || d.codes() >= maxCodes {
		return at
	}
	for _, m := range d.meters {
		if m.spec.Zero == driver.ZeroNeedsOther && !m.proven {
			continue // it may have begun in this tick, without a reading
		}
		if before, known := m.newestBefore(tick); known && m.series.Origin == r.Origin && before.After(at) {
			at = before
		}
	}
	return at
}

// prune drops series with open labels that have not been read for long. The last values of errors
// with a code are kept, up to a number, so that an old error is not new when it is read again.
// Errors of a device that is down stay.
func (d *deviceSeries) prune(now time.Time, down bool) {
	tooMany := 0
	if len(d.meters) > maxCodes {
		tooMany = d.codes() - maxCodes
	}
	d.meters = slices.DeleteFunc(d.meters, func(m *meter) bool {
		switch {
		case m.spec.Sharing == driver.Additive || now.Sub(m.seen) <= rememberFor:
			return false
		case m.coded():
			tooMany--
			return tooMany >= 0
		default:
			return true
		}
	})
	d.counters = slices.DeleteFunc(d.counters, func(c *counter) bool {
		return c.index < 0 && (!c.spec.Failure || !down) && now.Sub(c.seen) > rememberFor
	})
}

// oldest returns the earliest of a time and of the last distributed readings.
func (d *deviceSeries) oldest(before, now time.Time) time.Time {
	for _, m := range d.meters {
		if m.have && m.last.At.Before(before) && now.Sub(m.last.At) < rememberFor {
			before = m.last.At
		}
	}
	return before
}

// bound records the limit that a reading of a gauge, or of a setting, gives for the rate of a
// counter.
func (d *deviceSeries) bound(m *meter, value float64) {
	if m.limits {
		d.widen(m, value)
	}
	bounded, ok := m.bounds()
	if !ok {
		return
	}
	switch c := d.find(bounded); {
	case c == nil:
	case m.sums:
		c.read = max(c.read, value)
	default:
		c.limit = max(c.limit, value)
	}
}

// widen records the highest limit of a counter that the device has, whatever its label.
func (d *deviceSeries) widen(m *meter, value float64) {
	for _, c := range d.counters {
		switch {
		case c.key.quantity != m.limited:
		case m.spec.Link == driver.NoLink:
			c.widest = max(c.widest, value)
		case c.key.labels[0] == m.key.labels[0]:
			c.link[m.spec.Link] = max(c.link[m.spec.Link], value)
			c.widest = driver.LinkBytesPerSecond(m.key.labels[0], c.link[driver.LinkHasGeneration], c.link[driver.LinkHasLanes])
		}
	}
}

// idleRate returns the rate per second of a counter while the device is idle: the observed idle
// power, or else the observed rate of the counter; 0 if unknown.
func (d *deviceSeries) idleRate(c *counter) float64 {
	for _, m := range d.meters {
		if m.sums && m.of(m.sum) == c.key {
			return m.idle
		}
	}
	return c.idle
}

// measuresItself reports whether a source reads, or has read, a quantity of the device that
// otherwise is a part of the parent's.
func (d *deviceSeries) measuresItself() bool {
	return slices.ContainsFunc(d.meters, func(m *meter) bool { return m.spec.Divided && !m.divided })
}

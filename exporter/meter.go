package exporter

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// seriesKey names a series of a device.
type seriesKey struct {
	quantity driver.Quantity
	labels   driver.Labels
}

// meter follows the readings of one series of a device. Readings wait in it until it is known who held the device
// when they were taken.
type meter struct {
	key     seriesKey
	source  string
	last    driver.Reading // the last that was settled
	have    bool
	queue   []driver.Reading
	now     Reading   // the newest reading, settled or not
	present uint64    // the tick at which it was read
	seen    time.Time // the time of that tick
	series  *Series

	gauge    int       // its number among the attributed gauges; -1: it is none
	additive bool      // there is but a fixed number of its quantity's series
	counts   bool      // it is a counter; else
	sums     bool      // its integral fills
	sum      seriesKey // that counter
}

func newMeter(key seriesKey, base *labels) *meter {
	spec := key.quantity.Spec()
	m := &meter{
		key:      key,
		series:   newSeries(key, base),
		gauge:    attributedGauge(key.quantity),
		additive: spec.Sharing == driver.Additive,
		counts:   spec.Type == driver.Counter,
	}
	m.sum.quantity, m.sums = integral(key.quantity)
	return m
}

// maxQueue bounds the readings that wait.
const maxQueue = 64

// observe takes a reading: one with the time of the one before is the same reading, and an older one is late and of no
// use. When another source takes the series over, its counter begins where it stands.
func (m *meter) observe(r Reading) {
	if m.source != r.Source {
		m.source, m.have, m.queue = r.Source, false, m.queue[:0]
		m.series = m.series.from(r.Source)
	}
	newest := m.last.At
	if n := len(m.queue); n > 0 {
		newest = m.queue[n-1].At
	}
	if m.have || len(m.queue) > 0 {
		if !r.At.After(newest) {
			return
		}
	}
	m.queue = append(m.queue, r.Reading)
}

// settle makes a reading the last that is accounted for.
func (m *meter) settle(r driver.Reading) {
	if m.counts && m.have {
		r = baseline(m.last, r)
	}
	m.last, m.have = r, true
}

// counter is a sum that the ledger keeps of one series of a device: of a hardware counter's increments, or of
// a gauge's integral.
type counter struct {
	key     seriesKey
	index   int // among the device's attributed counters; -1: it is not attributed
	total   float64
	settled time.Time // everything before is accounted for
	present uint64    // the tick at which something filled it
	seen    time.Time // the time of that tick
	filler  string    // the source that fills it
	sums    bool      // as the integral of its gauge
	series  *Series
}

func newSeries(key seriesKey, base *labels) *Series {
	return &Series{Quantity: key.quantity, Labels: key.labels, labels: base.ofQuantity(key)}
}

// from returns the series with another source.
func (s *Series) from(source string) *Series {
	other := *s
	other.Source = source
	return &other
}

// fill notes which meter fills the counter.
func (c *counter) fill(m *meter) {
	if c.filler == m.source && c.sums == m.sums {
		return
	}
	c.filler, c.sums = m.source, m.sums
	source := m.source
	if m.sums {
		source += integrated
	}
	c.series = c.series.from(source)
}

// increment returns what a hardware counter counted between two readings, and since when. A counter that its source
// marks as restarted, or that fell by more than half, counted from zero: what is read is not lost, and no fall is handed
// on. A smaller fall is no restart but a reading that wavers, as hardware's do when they are read twice in a moment: it
// counts nothing, and baseline sees to it that the way back up counts nothing either.
func increment(last, next driver.Reading) (amount float64, from time.Time) {
	switch {
	case next.Since.After(last.At):
		return next.Value, next.Since
	case next.Value < last.Value/2:
		return next.Value, last.At
	default:
		return max(0, next.Value-last.Value), last.At
	}
}

// baseline returns the reading from which a counter's next increment is measured.
func baseline(last, next driver.Reading) driver.Reading {
	wavers := !next.Since.After(last.At) && next.Value >= last.Value/2
	if wavers && next.Value < last.Value {
		next.Value = last.Value
	}
	return next
}

// integral is the quantity that a gauge's integral over time fills, where no hardware counter does.
func integral(q driver.Quantity) (driver.Quantity, bool) {
	switch q {
	case driver.Utilization:
		return driver.ActiveSeconds, true
	case driver.Power:
		return driver.Energy, true
	default:
		return 0, false
	}
}

// maxIntegration is the longest time between two readings of a gauge over which it is integrated: beyond it nobody
// knows what the device did, and nothing is counted.
const maxIntegration = 90 * time.Second

// level estimates a gauge within a piece of the time between two readings: it moved evenly from one to the other, but
// where the holder changed or went in between, it jumped there.
func level(last, next driver.Reading, from, to time.Time) float64 {
	first, final := !from.After(last.At), !to.Before(next.At)
	switch {
	case first && !final:
		return last.Value
	case final && !first:
		return next.Value
	default:
		return (last.Value + next.Value) / 2
	}
}

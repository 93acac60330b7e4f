package ledger

import (
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// meter has the readings of one series of a device. A reading is queued until it is known who held
// the device at its time.
type meter struct {
	key    seriesKey
	source string
	last   driver.Reading // the last that was settled
	have   bool
	queue  []queued
	// fallen says that the last reading was below the one from which its increment is measured.
	fallen bool
	since  time.Time // when the newest reading's source said that it began to count
	// replaced reports that the next reading is the first of other hardware.
	replaced bool
	now      join.Reading // the newest reading, settled or not
	present  uint64       // the tick at which it was read
	seen     time.Time    // the time of that tick
	series   *Series

	spec     *driver.Spec
	gauge    int       // its number among the device's attributed gauges; -1: it is none
	additive bool      // its quantity is additive
	counts   bool      // it is a counter, not a gauge
	sums     bool      // its integral fills the counter
	sum      seriesKey // of that counter
	bounds   bool      // its values say how fast a counter can count
	bounded  seriesKey // that counter
	peaks    bool      // its highest value is kept
	peak     seriesKey // of that value

	divided bool    // its value is a part of the parent's; the device does not measure it
	kept    float64 // of a parent's: the part that is not of its partitions
	lost    float64 // of a parent's: what is of its partitions and of none of their holders
	idle    float64 // of a parent's: the lowest value above 0 while it was idle; 0: not known
}

// queued is a reading in a queue.
type queued struct {
	driver.Reading
	// first reports that it is the first reading of other hardware than that of the reading before:
	// nothing is counted between the two.
	first bool
}

func newMeter(key seriesKey, catalogue driver.Catalogue) *meter {
	spec := catalogue.Spec(key.quantity)
	m := &meter{
		key:      key,
		series:   newSeries(key),
		spec:     spec,
		gauge:    -1,
		kept:     1,
		additive: spec.Sharing == driver.Additive,
		counts:   spec.Type == driver.Counter,
	}
	m.sum.labels = key.labels
	m.sum.quantity, m.sums = catalogue.Named(spec.Integral)
	m.bounded, m.bounds = m.sum, m.sums
	if slices.Contains(spec.LimitLabels, key.labels[0]) {
		m.bounded = seriesKey{}
		m.bounded.quantity, m.bounds = catalogue.Named(spec.Limits)
	}
	m.peak.labels = key.labels
	m.peak.quantity, m.peaks = catalogue.Named(spec.Peak)
	return m
}

// maxQueue is the largest number of queued readings.
const maxQueue = 64

// observe queues a reading. One with the time of the previous is the same reading, and an older one
// is ignored. If the source of the series changes, its counter begins with its present value.
func (m *meter) observe(r join.Reading, now time.Time) {
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
	r.Since = m.began(r.Reading, now)
	m.queue = append(m.queue, queued{r.Reading, m.replaced})
	m.replaced = false
}

// beginAt makes the meter begin with a count of 0 at a time.
func (m *meter) beginAt(at time.Time, source string) {
	m.source, m.have = source, true
	m.series = m.series.from(source)
	m.last = driver.Reading{Quantity: m.key.quantity, Labels: m.key.labels, At: at}
}

// newestBefore returns the time of the newest reading before a tick.
func (m *meter) newestBefore(tick uint64) (at time.Time, known bool) {
	n := len(m.queue)
	if m.present == tick { // the newest is of it
		n--
	}
	if n > 0 {
		return m.queue[n-1].At, true
	}
	return m.last.At, m.have
}

// maxAhead is how far the clock by which a source says when it began to count may be ahead.
const maxAhead = 5 * time.Second

// began returns when the reading's source began to count, if that is news: a restart. The zero time
// is none. What the source said before is no news, whatever the wall clock says now; and a counter
// does not begin in the future.
func (m *meter) began(r driver.Reading, now time.Time) time.Time {
	known := r.Since.Equal(m.since) && (m.have || len(m.queue) > 0)
	m.since = r.Since
	if known || r.Since.IsZero() || r.Since.Sub(now) > maxAhead {
		return time.Time{}
	}
	since := onClock(r.Since, now)
	if since.After(r.At) {
		return r.At
	}
	return since
}

// onClock returns the time of a source on the clock of now, so that it can be compared with earlier
// times: times of other programs have the wall clock alone, which may go back or ahead. Times of
// the future become now.
func onClock(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return now.Add(t.Sub(now))
}

// settle makes a reading the last that was distributed.
func (m *meter) settle(r driver.Reading) {
	if m.counts && m.have {
		value := r.Value
		r = baseline(m.last, r)
		m.fallen = value < r.Value
	}
	m.last, m.have = r, true
}

// increment returns what a hardware counter counted between two readings, and since when. A counter
// that its source marks as restarted, or that fell by more than half, counted from zero. A smaller
// fall is a fluctuation, as hardware shows when it is read twice in a moment: it counts nothing,
// and neither does the rise back to the old value (see baseline).
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

// maxIntegration is the longest time between two readings of a gauge over which it is integrated.
// Beyond it nothing is known, and nothing is counted.
const maxIntegration = 90 * time.Second

// level estimates a gauge within a piece of the time between two readings: it changes evenly from
// one to the other, or, if the holder changed in between, at that moment.
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

// counter is a sum that the ledger keeps of one series of a device: of a hardware counter's
// increments, or of a gauge's integral.
type counter struct {
	key     seriesKey
	spec    *driver.Spec
	index   int // among the device's attributed counters; -1: it is not attributed
	total   float64
	settled time.Time // everything before is distributed
	present uint64    // the tick at which something filled it
	seen    time.Time // the time of that tick
	filler  string    // the source that fills it
	sums    bool      // as the integral of its gauge
	series  *Series

	limit   float64 // the highest rate per second that is possible; 0: unknown
	read    float64 // the highest that its gauge has shown; 0: it has none
	fastest float64 // the highest that it was seen to count

	divided bool    // its holders have parts of the parent's; the device does not count it
	idle    float64 // of a parent's: the lowest rate per second above 0 while it was idle; 0: not known
}

// fill records which meter fills the counter.
func (c *counter) fill(m *meter) {
	if c.filler == m.source && c.sums == m.sums {
		return
	}
	c.filler, c.sums, c.divided = m.source, m.sums, false
	source := m.source
	if m.sums {
		source += integralSuffix
	}
	c.series = c.series.from(source)
}

// sure reports whether a counter has counted what it shows more than at the reading before, and no
// more: it did not begin anew meanwhile, as far as that shows, and could not without that showing.
func (c *counter) sure(m *meter, next driver.Reading) bool {
	if next.Since.After(m.last.At) {
		return true // since then
	}
	span := next.At.Sub(m.last.At).Seconds()
	return !m.fallen && next.Value >= m.last.Value && next.Value > c.highest()*span
}

// highest returns the highest rate per second of a counter, as far as it is known: the possible
// one, or what its gauge has shown, whichever is larger, else what it was seen to count.
func (c *counter) highest() float64 {
	if most := max(c.limit, c.read); most > 0 {
		return most
	}
	return c.fastest
}

// mostIn returns the highest rate per second of a counter in a span of time between two readings. A
// gauge that is read seldom does not tell it.
func (c *counter) mostIn(span time.Duration, mean float64) float64 {
	if c.limit > 0 || c.read > 0 && span <= maxGap {
		return max(c.limit, c.read, mean)
	}
	return math.MaxFloat64
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

// rateTime is the shortest time between two readings of a counter that tells its rate: some
// hardware refreshes counters every tenth of a second.
const rateTime = 500 * time.Millisecond

// maxGap is the longest time between two readings of a gauge in which it is taken to rise or to
// fall all the time. Its integral over a longer one is a guess.
const maxGap = 5 * time.Second

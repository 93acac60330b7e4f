package ledger

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
)

// meter has the readings of one series of a device. A reading is queued until the holders at its
// time are known.
type meter struct {
	key    seriesKey
	last   driver.Reading // the last distributed reading
	have   bool
	queue  []queued
	before *readings.Counter // of a counter: what the readings before last say
	since  time.Time         // when its source began to count, by the newest reading
	// replaced reports that the next reading is the first one of other hardware.
	replaced bool
	now      join.Reading // the newest reading, distributed or not
	seen     time.Time    // the tick at which it was read
	series   *book.Series

	spec    *driver.Spec
	gauge   int  // index among the device's attributed gauges; -1: it is none of them
	counts  bool // it is a counter, not a gauge
	proven  bool // another value than 0 was read
	sums    bool // its integral fills a counter, sum
	limits  bool // it is a limit of a counter, limited, whatever its label
	whole   bool // its label is one of the limit's own: the counter that it limits has none
	peaks   bool // its highest value is kept, as peak
	sum     driver.Quantity
	limited driver.Quantity
	peak    driver.Quantity

	divided bool    // the value is a part of the parent's; the device does not measure it
	kept    float64 // for a parent: the part that is not of its partitions
	lost    float64 // for a parent: the part of its partitions that none of their holders has
	idle    float64 // for a parent: the lowest value above 0 while it was idle; 0: unknown
}

// queued is a reading in a queue.
type queued struct {
	driver.Reading
	// first reports that the reading is the first one of other hardware: nothing is counted up to it.
	first bool
}

func newMeter(key seriesKey, catalogue driver.Catalogue) *meter {
	spec := catalogue.Spec(key.quantity)
	m := &meter{
		key: key, series: newSeries(key), spec: spec, gauge: -1, kept: 1,
		counts: spec.Type == driver.Counter,
	}
	if m.counts {
		m.before = &readings.Counter{}
	}
	m.sum, m.sums = catalogue.Named(spec.Integral)
	m.limited, m.limits = catalogue.Named(spec.Limits)
	m.whole = slices.Contains(spec.LimitLabels, key.labels[0])
	m.peak, m.peaks = catalogue.Named(spec.Peak)
	return m
}

// of is the series of another quantity with the meter's labels.
func (m *meter) of(q driver.Quantity) seriesKey { return seriesKey{q, m.key.labels} }

// bounds returns the counter whose rate the meter's values limit, if there is one.
func (m *meter) bounds() (bounded seriesKey, ok bool) {
	if m.whole {
		return seriesKey{quantity: m.limited}, m.limits
	}
	return m.of(m.sum), m.sums
}

// maxQueue is the largest number of queued readings.
const maxQueue = 64

// maxBack is by how much the time of a reading may be before that of the previous one because times
// of other programs are converted.
const maxBack = time.Second

// observe queues a reading. A reading with the time of the previous one is the same reading. An
// older one is ignored, which is the reason that is returned. If the source of the series changes,
// its counter begins with its present value.
func (m *meter) observe(r join.Reading, now time.Time) driver.Reason {
	if m.series.Origin != r.Origin {
		m.series, m.have, m.queue = m.series.From(r.Origin), false, m.queue[:0]
	}
	newest := m.last.At
	if m.counts {
		newest = driver.Later(newest, m.before.Doubted.At)
	}
	if n := len(m.queue); n > 0 {
		newest = m.queue[n-1].At
	}
	if m.have || len(m.queue) > 0 {
		switch {
		case r.At.Before(newest.Add(-maxBack)):
			return driver.ReasonStale
		case !r.At.After(newest):
			return ""
		}
	}
	r.Since = m.began(r.Reading, now)
	m.queue = append(m.queue, queued{r.Reading, m.replaced})
	m.replaced = false
	return ""
}

// beginAt makes the meter begin with a count of 0 at a time.
func (m *meter) beginAt(at time.Time, origin join.Origin) {
	m.series, m.have = m.series.From(origin), true
	m.last = driver.Reading{Quantity: m.key.quantity, Labels: m.key.labels, At: at}
}

// coded reports whether it counts the errors of one code.
func (m *meter) coded() bool { return m.counts && m.spec.Failure && m.key.labels[1] != "" }

// newestBefore returns the time of the newest reading of the present hardware before a tick.
func (m *meter) newestBefore(tick time.Time) (at time.Time, known bool) {
	n := len(m.queue)
	if m.replaced || m.seen.Equal(tick) && n > 0 && m.queue[n-1].first {
		return at, false
	}
	if m.seen.Equal(tick) { // the newest one is from this tick
		n--
	}
	if n > 0 {
		return m.queue[n-1].At, true
	}
	return m.last.At, m.have
}

// maxAhead is how far a source's clock may be ahead of the wall clock.
const maxAhead = 5 * time.Second

// began returns when the reading's source began to count, if it was restarted, else the zero time.
// A time that the source reported before is not a restart, whatever the wall clock says. A counter
// cannot have begun in the future.
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
// times: other programs' times only have the wall clock, which may be set. Times in the future
// become now.
func onClock(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return now.Add(t.Sub(now))
}

// counter is a sum that the ledger keeps for one series of a device: increments of a hardware
// counter, or the integral of a gauge.
type counter struct {
	key     seriesKey
	spec    *driver.Spec
	index   int // index among the device's attributed counters; -1: it is none of them
	total   float64
	settled time.Time // everything before has been distributed
	seen    time.Time // the tick at which it was last filled
	series  *book.Series

	limit   float64                      // the highest possible rate per second; 0: unknown
	widest  float64                      // the highest of all limits that the device has, per second; 0: unknown
	link    [driver.NumLinkParts]float64 // the highest values of the link that it counts; 0: unknown
	read    float64                      // the highest value of its gauge; 0: it has none
	fastest float64                      // the highest rate per second that was observed

	divided bool    // its holders have parts of the parent's; the device does not count it
	idle    float64 // for a parent: the lowest rate per second above 0 while it was idle; 0: unknown
}

// fill records which meter fills the counter.
func (c *counter) fill(m *meter) {
	origin := m.series.Origin
	if m.sums {
		origin = origin.With(join.Integral)
	}
	c.series, c.divided = c.series.From(origin), false
}

// headroom is how far a device may exceed its limits for a short time: it controls a mean.
const headroom = 1.5

// most returns the highest rate per second that the device can reach: by its own limits, else by
// the catalogue.
func (c *counter) most() float64 {
	most := math.Inf(1)
	if c.spec.MaxRate > 0 {
		most = c.spec.MaxRate
	}
	if c.widest > 0 {
		most = min(most, c.widest*headroom)
	}
	return most
}

// highest returns the highest known rate per second of a counter: the possible one or the highest
// value of its gauge, whichever is larger, else the highest observed one.
func (c *counter) highest() float64 {
	if most := max(c.limit, c.read); most > 0 {
		return most
	}
	return c.fastest
}

// mostIn returns the highest possible rate per second of a counter in a span between two readings.
// A gauge that is read too rarely gives no limit.
func (c *counter) mostIn(span time.Duration, mean float64) float64 {
	if c.limit > 0 || c.read > 0 && span <= maxGap {
		return max(c.limit, c.read, mean)
	}
	return math.MaxFloat64
}

// threshold returns the rate per second above which the counter shows an active device; infinite if
// it never does.
func (c *counter) threshold(config *Config) float64 {
	switch {
	case !c.spec.ShowsActivity(c.key.labels):
		return math.Inf(1)
	case c.spec.Activity == driver.Traffic:
		return config.NetworkThreshold
	default:
		return config.IdleThreshold
	}
}

// rateTime is the shortest time between two readings of a counter from which its rate is computed:
// some hardware refreshes counters every tenth of a second.
const rateTime = 500 * time.Millisecond

// maxGap is the longest time between two readings of a gauge in which it is assumed to change
// evenly. An integral over a longer time counts as a guess.
const maxGap = 5 * time.Second

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

// seriesKey identifies a series of a device.
type seriesKey struct {
	quantity driver.Quantity
	labels   driver.Labels
}

func newSeries(key seriesKey) *book.Series {
	return &book.Series{Quantity: key.quantity, Labels: key.labels}
}

func (k seriesKey) compare(other seriesKey) int {
	if c := cmp.Compare(k.quantity, other.quantity); c != 0 {
		return c
	}
	return k.labels.Compare(&other.labels)
}

package ledger

import (
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

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

// maxGap is the longest time between two readings of a gauge in which it is taken to rise or to
// fall all the time. Its integral over a longer one is a guess.
const maxGap = 5 * time.Second

// rateTime is the shortest time between two readings of a counter that tells its rate: some
// hardware refreshes counters every tenth of a second.
const rateTime = 500 * time.Millisecond

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

// sure reports whether a counter has counted what it shows more than at the reading before, and no
// more: it did not begin anew meanwhile, as far as that shows, and could not without that showing.
func (c *counter) sure(m *meter, next driver.Reading) bool {
	if next.Since.After(m.last.At) {
		return true // since then
	}
	span := next.At.Sub(m.last.At).Seconds()
	return !m.fallen && next.Value >= m.last.Value && next.Value > c.highest()*span
}

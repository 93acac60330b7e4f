// Package meter computes amounts from readings: what a hardware counter counted between two
// readings, and the integral of a gauge. It is pure: no I/O, no clock, and no knowledge of devices
// or holders.
//
// Bounds (max…) are for what vendors' libraries send.
package meter

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Counter is what the readings of one hardware counter say beside the last one. Its zero value is
// that of a counter whose last reading was counted, at a time long ago.
//
// A reading counts if the device can have counted that much since the last one, at its highest
// rate. A reading below the last one is explained in one of these ways; else it does not count:
//
//   - Its source says that it began to count since then ([driver.Reading.Since]).
//   - It has not fallen by half, and does not go on from a doubted reading: hardware that is read
//     twice in a short time fluctuates. Nothing counts until the old value is exceeded.
//   - The device can have counted that much from zero since the last reading: a restart.
//   - The next reading goes on from it. What the device counted before is unknown.
//
// The last two need more readings if the limits are patient.
//
// The line of values that the readings left, by a restart or otherwise, is remembered for a while:
// if they return to it, it holds, and what counted in between is part of it. So a dropout counts at
// most what it shows, and that only until the device has really counted as much.
type Counter struct {
	// Doubted is the last reading, if it did not count, and nothing explains it yet; its time is zero
	// otherwise.
	Doubted Point
	Left    Line // the line that the readings left; its time is zero if there is none

	// doubts is the number of readings that Doubted ends, each of which goes on from the one before.
	doubts int
	// changed is when the last reading had its value first; zero: unknown. Since then it may be a
	// repeated one.
	changed time.Time
	// spent is the time, in seconds of the highest rate, by which the counts are ahead of the clock.
	spent float64
	// fallen reports that the last reading was below the value from which is counted.
	fallen bool
}

// Point is a value of a counter at a time.
type Point struct {
	Value float64
	At    time.Time
}

// Line is a line of values that the readings have left.
type Line struct {
	Point           // its last reading
	To      Point   // the first reading after it
	Counted float64 // what has counted since
	Read    int     // the number of readings since
}

// Step is what a reading adds.
type Step struct {
	Amount float64
	From   time.Time // since when the amount was counted
	// Reason is why the reading does not count, or not yet: nothing is decided since the last one.
	Reason driver.Reason
	// Last is the reading from which the next amount is measured. Its value may exceed the reading's.
	Last driver.Reading
	// Exact: the amount is all that was counted since From. Otherwise the counter may have been reset.
	Exact bool
	// Returned: the readings are back on a line that they left; those in between were wrong.
	Returned bool
}

const (
	// Slack is by how much counts may be ahead of the clock: a source may not know exactly when its
	// hardware, or another exporter, updated a counter.
	Slack = 5 * time.Second
	// repeats is the longest time for which a source repeats a value that is not up to date.
	repeats = 30 * time.Second
	// leftFor and leftReads are how long a line is remembered, whichever is longer.
	leftFor   = 30 * time.Second
	leftReads = 4
)

// Begin begins with a first reading.
func (c *Counter) Begin(r driver.Reading) { *c = Counter{changed: r.At} }

// Limits are what is known of a counter's rate.
type Limits struct {
	Most float64 // the highest rate of the device per second
	// Known is the highest known rate per second. If a reading has less than it allows, a reset may
	// have gone unnoticed.
	Known float64
	// Patient: a restart is one after several readings that go on. An error that did not happen is
	// worse than one that is known some seconds later.
	Patient bool
}

// patience is how many readings show a patient counter that it restarted.
const patience = 4

// Next returns what a reading adds to the last one, which is earlier.
func (c *Counter) Next(last, r driver.Reading, limits Limits) Step {
	most, known := limits.Most, limits.Known
	goesOn := c.goesOn(r, most)
	shown := !limits.Patient || r.Value == 0 || goesOn && c.doubts+1 >= patience
	if c.Left.forgotten(r.At) {
		c.Left = Line{}
	}
	if !c.Left.At.IsZero() {
		c.Left.Read++
	}
	amount, start := r.Value-last.Value, c.since(last, r.At)
	restarted := r.Since.After(last.At)
	switch {
	case restarted && c.fits(r.Value, r.Since, r.At, most):
		c.Left = Line{}
		c.spend(r.Value, r.Since, r.At, most)
		return c.count(last, r, r.Value, r.Since, true)
	case restarted:
		return c.doubt(r, driver.ReasonRate)
	case c.returns(last, r, most):
		return c.back(last, r)
	case amount >= 0 && c.fits(amount, start, r.At, most):
		c.spend(amount, start, r.At, most)
		return c.count(last, r, amount, last.At, !c.fallen && r.Value > known*r.At.Sub(last.At).Seconds())
	case amount < 0 && r.Value >= last.Value/2 && !goesOn:
		r.Value = last.Value
		step := c.count(last, r, 0, last.At, false)
		c.fallen = true
		return step
	case shown && amount < 0 && c.fits(r.Value, start, r.At, most):
		c.leave(last, Point{r.Value, r.At})
		c.spend(r.Value, start, r.At, most)
		return c.count(last, r, r.Value, last.At, false)
	case shown && goesOn:
		d := c.Doubted
		c.leave(last, d)
		c.spend(r.Value-d.Value, d.At, r.At, most)
		return c.count(last, r, r.Value-d.Value, d.At, r.Value > known*r.At.Sub(d.At).Seconds())
	}
	if !goesOn {
		c.doubts = 0
	}
	if amount < 0 {
		return c.doubt(r, driver.ReasonFall)
	}
	return c.doubt(r, driver.ReasonRate)
}

// since returns since when the device may have counted what a reading at a time adds: another
// exporter may repeat a value until its next refresh, with a later time.
func (c *Counter) since(last driver.Reading, at time.Time) time.Time {
	if c.changed.IsZero() {
		return last.At
	}
	return driver.Earlier(last.At, driver.Later(c.changed, at.Add(-repeats)))
}

// fits reports whether the device can have counted an amount in a span of time.
func (c *Counter) fits(amount float64, from, to time.Time, most float64) bool {
	return amount == 0 || amount <= most*((to.Sub(from)+Slack).Seconds()-c.spent)
}

// Fits reports whether a device with that highest rate can have counted an amount in a span of
// time.
func Fits(amount float64, from, to time.Time, most float64) bool {
	return new(Counter).fits(amount, from, to, most)
}

// spend records an amount that was counted in a span of time.
func (c *Counter) spend(amount float64, from, to time.Time, most float64) {
	c.spent = max(0, c.spent+amount/most-to.Sub(from).Seconds())
}

// count counts an amount up to a reading, which becomes the last one.
func (c *Counter) count(last, r driver.Reading, amount float64, from time.Time, exact bool) Step {
	if !c.Left.At.IsZero() {
		c.Left.Counted += amount
	}
	if r.Value != last.Value {
		c.changed = r.At
	}
	c.Doubted, c.doubts, c.fallen = Point{}, 0, false
	return Step{Amount: amount, From: from, Exact: exact, Last: r}
}

// doubt keeps a reading that does not count.
func (c *Counter) doubt(r driver.Reading, why driver.Reason) Step {
	c.Doubted = Point{r.Value, r.At}
	c.doubts++
	return Step{Reason: why}
}

// goesOn reports whether a reading continues the doubted one.
func (c *Counter) goesOn(r driver.Reading, most float64) bool {
	d := c.Doubted
	return !d.At.IsZero() && r.Value >= d.Value && c.fits(r.Value-d.Value, d.At, r.At, most)
}

// leave remembers the present line, which the readings leave at a point.
func (c *Counter) leave(last driver.Reading, to Point) {
	c.Left = Line{Point: Point{last.Value, last.At}, To: to}
}

// forgotten reports whether the line is no longer remembered at a time.
func (l *Line) forgotten(at time.Time) bool { return l.Read >= leftReads && at.Sub(l.To.At) > leftFor }

// returns reports whether a reading is on the line that was left. From below it returns in one
// step: a counter that restarted rises in several.
func (c *Counter) returns(last, r driver.Reading, most float64) bool {
	l := &c.Left
	switch {
	case l.At.IsZero() || r.Value < l.Value || !Fits(r.Value-l.Value, l.At, r.At, most):
		return false
	case l.To.Value > l.Value:
		return r.Value < last.Value
	default:
		return r.Value-last.Value >= (l.Value-l.To.Value)/2
	}
}

// back counts a reading that is on the line that was left. What counted since then is part of it;
// if that was more, nothing counts until the line has exceeded it.
func (c *Counter) back(last, r driver.Reading) Step {
	l := c.Left
	c.Left = Line{}
	amount := max(0, r.Value-l.Value-l.Counted)
	r.Value = max(r.Value, l.Value+l.Counted)
	step := c.count(last, r, amount, last.At, false)
	step.Returned = true
	return step
}

// MaxIntegration is the longest time between two readings of a gauge over which it is integrated.
// Over longer times nothing is known, and nothing is counted.
const MaxIntegration = 90 * time.Second

// Level estimates a gauge in a piece of the time between two readings. It changes evenly or, if the
// holder changed in between, at that moment.
func Level(last, next driver.Reading, from, to time.Time) float64 {
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

// Package testclock has clocks for tests in which the wall clock is set or a node is suspended. The
// monotonic clock, with which Go subtracts and compares times, shows neither.
package testclock

import (
	"time"
	"unsafe"
)

// Clock is a clock that only a test advances. Its times have a monotonic part, unlike those in a
// bubble of testing/synctest.
type Clock struct {
	now  time.Time
	step time.Duration
}

// New returns a clock that is stopped at the present time.
func New() *Clock { return &Clock{now: time.Now()} }

// Now returns its time.
func (c *Clock) Now() time.Time { return Stepped(c.now, c.step) }

// Pass advances the wall clock and the monotonic clock.
func (c *Clock) Pass(d time.Duration) time.Time {
	c.now = c.now.Add(d)
	return c.Now()
}

// Set changes the wall clock by a duration in whole seconds, backwards if it is negative. A
// suspended time looks like a clock that is set forward: CLOCK_MONOTONIC of clock_gettime(2) does
// not count "time that the system is suspended".
func (c *Clock) Set(by time.Duration) { c.step += by }

// Steps returns the steps by which tests set a clock.
func Steps() []time.Duration {
	return []time.Duration{-time.Hour, -10 * time.Minute, -time.Minute, time.Minute, 10 * time.Minute, time.Hour}
}

// Stepped returns a time with a monotonic reading after the wall clock was set by some seconds: the
// monotonic reading is unchanged. Package time can't make such a time, so its layout of a Time is
// used (src/time/time.go). Tests of this function fail if that changes.
func Stepped(t time.Time, by time.Duration) time.Time {
	type layout struct{ wall, ext uint64 } // wall: a flag, 33 bits of seconds, 30 bits of nanoseconds
	(*layout)(unsafe.Pointer(&t)).wall += uint64(by/time.Second) << 30
	return t
}

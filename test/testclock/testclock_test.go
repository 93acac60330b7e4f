package testclock_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testclock"
)

func TestStepped(t *testing.T) {
	for _, by := range append(testclock.Steps(), 0) {
		now := time.Now()
		stepped := testclock.Stepped(now, by)
		passed, set := stepped.Sub(now), stepped.Round(0).Sub(now.Round(0))
		expect.That(t, passed == 0 && set == by, "%v: %v have passed, and the wall clock was set by %v", by, passed, set)
	}
}

func TestClock(t *testing.T) {
	c := testclock.New()
	begun := c.Now()
	c.Set(-time.Hour)
	c.Set(10 * time.Minute)
	now := c.Pass(time.Second)
	passed, wall := now.Sub(begun), now.Round(0).Sub(begun.Round(0))
	expect.That(t, passed == time.Second && wall == time.Second-50*time.Minute,
		"%v have passed, %v on the wall clock", passed, wall)
}

package drivertest

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Reason fails the test if the reason of an error is not among the wanted ones.
func Reason(tb testing.TB, err error, want ...driver.Reason) {
	tb.Helper()
	reason := driver.ReasonOf(err)
	if !slices.Contains(want, reason) {
		tb.Errorf("reason %q of %q is none of %q", reason, err, want)
	}
}

// checkRejections checks that the counts of a source that counts rejections do not fall, and that
// the returned map belongs to the caller.
func checkRejections(tb testing.TB, c Config) {
	tb.Helper()
	source := c.New(tb)
	counter, counts := source.(driver.RejectionCounter)
	if _, has := reflect.TypeOf(source).MethodByName("Rejected"); has && !counts {
		tb.Errorf("method Rejected is not that of driver.RejectionCounter")
	}
	if !counts {
		return
	}
	before := driver.Rejections{}
	for i := range ticks {
		c.healthy(tb, source)
		after := counter.Rejected()
		for reason, n := range after {
			if n < 1 {
				tb.Errorf("%s: %d rejected for reason %q", tick(i), n, reason)
			}
		}
		for reason, n := range before {
			if after[reason] < n {
				tb.Errorf("%s: rejections for reason %q fell from %d to %d", tick(i), reason, n, after[reason])
			}
		}
		before = maps.Clone(after)
		clear(after)
		c.advance()
	}
}

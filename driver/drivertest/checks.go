package drivertest

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// checkName checks that the name is constant and fit for a flag and a label.
func checkName(tb testing.TB, c Config) {
	tb.Helper()
	source := c.New(tb)
	name := source.Name()
	expect.That(tb, regexp.MustCompile(`^[a-z][a-z0-9-]*(/[A-Za-z0-9._-]+)?$`).MatchString(name),
		"name %q is not fit for a flag or a label", name)
	c.healthy(tb, source)
	if again := source.Name(); again != name {
		tb.Errorf("name was %q, is %q after a sample", name, again)
	}
	if other := c.New(tb).Name(); other != name {
		tb.Errorf("name is %q, and %q in another source of the same kind", name, other)
	}
}

// checkReadings checks that every sample is valid.
func checkReadings(tb testing.TB, c Config) {
	source := c.New(tb)
	for i := range ticks {
		samples := c.healthy(tb, source)
		report(tb, tick(i), Validate(samples, c.now()))
		c.advance()
	}
}

// checkFills checks that the quantities that are read are those of the list of sources.
func checkFills(tb testing.TB, c Config) {
	tb.Helper()
	source := c.New(tb)
	var filled []driver.Quantity
	for range 3 * ticks {
		for _, s := range c.healthy(tb, source) {
			for _, r := range s.Readings {
				filled = append(filled, r.Quantity)
			}
		}
		c.advance()
	}
	slices.Sort(filled)
	if diff := cmp.Diff(slices.Sorted(slices.Values(c.Fills)), slices.Compact(filled)); diff != "" {
		tb.Errorf("quantities that are listed and those that are read (-listed +read):\n%s", diff)
	}
}

// checkContinuity checks that each sample continues the one before.
func checkContinuity(tb testing.TB, c Config) {
	source := c.New(tb)
	before := c.healthy(tb, source)
	for i := range ticks - 1 {
		c.advance()
		samples := c.healthy(tb, source)
		report(tb, tick(i+1), Follows(before, samples))
		before = samples
	}
}

// checkOwnership checks that samples belong to the caller, who may keep and change them.
func checkOwnership(tb testing.TB, c Config) {
	tb.Helper()
	source := c.New(tb)
	kept := c.healthy(tb, source)
	want := clone(kept)
	c.advance()
	second := c.healthy(tb, source)
	if diff := cmp.Diff(want, kept); diff != "" {
		tb.Errorf("a sample changed what the caller kept of the one before (-was +is):\n%s", diff)
	}
	for i := range second {
		want := clone(second[i+1:])
		poison(&second[i])
		if diff := cmp.Diff(want, second[i+1:]); diff != "" {
			tb.Errorf("sample %d shares memory with another (-before +after it was written to):\n%s", i, diff)
		}
	}
	c.advance()
	report(tb, "after the caller wrote to a sample", Follows(want, c.healthy(tb, source)))
}

// checkCancelled checks that Sample returns if its context has ended already, without effect on the
// next call.
func checkCancelled(tb testing.TB, c Config) {
	tb.Helper()
	source := c.New(tb)
	ctx, cancel := context.WithCancel(tb.Context())
	cancel()
	samples, err := c.sample(ctx, source)
	if errors.Is(err, errLate) {
		tb.Errorf("with a context that has ended: %v", err)
		return
	}
	report(tb, "with a context that has ended", Validate(samples, c.now()))
	report(tb, "after a context that had ended", Validate(c.healthy(tb, source), c.now()))
}

// checkGoroutines checks that Sample leaves no goroutine behind.
func checkGoroutines(tb testing.TB, c Config) {
	source := c.New(tb)
	options := append([]goleak.Option{goleak.IgnoreCurrent()}, c.Goroutines...)
	for range ticks {
		c.healthy(tb, source)
		c.advance()
	}
	report(tb, "goroutines left by Sample", goleak.Find(options...))
}

// checkFiles checks that Sample leaves no file or connection open. A source may keep some, but not
// more with each sample.
func checkFiles(tb testing.TB, c Config) {
	source := c.New(tb)
	c.healthy(tb, source)
	before := openFiles(tb)
	for range ticks {
		c.advance()
		c.healthy(tb, source)
	}
	after := openFiles(tb)
	expect.That(tb, after < before+ticks, "%d samples left %d files open", ticks, after-before)
}

func openFiles(tb testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	report(tb, "count open files", err)
	return len(entries)
}

// checkAbsent checks that absent hardware causes no sample, and no error except driver.ErrAbsent.
func checkAbsent(tb testing.TB, c Config) {
	tb.Helper()
	source := c.Absent(tb)
	for i := range ticks {
		samples, err := c.sample(tb.Context(), source)
		if !errors.Is(err, driver.ErrAbsent) {
			report(tb, tick(i)+" without hardware", err)
		}
		if len(samples) > 0 {
			tb.Errorf("%s without hardware: %d samples: %+v", tick(i), len(samples), samples[0])
		}
	}
}

// checkHang checks that Sample returns soon after its context ends, with an error.
func checkHang(tb testing.TB, c Config) {
	tb.Helper()
	source := c.Hang(tb)
	options := append([]goleak.Option{goleak.IgnoreCurrent()}, c.Goroutines...)
	ctx, cancel := context.WithTimeout(tb.Context(), hangFor)
	defer cancel()
	samples, err := c.sample(ctx, source)
	switch {
	case errors.Is(err, errLate):
		tb.Errorf("with an input that hangs: %v", err)
		return
	case err == nil:
		tb.Errorf("with an input that hangs: no error")
	default:
		Reason(tb, err, driver.ReasonTimeout, driver.ReasonHung, driver.ReasonCanceled)
	}
	report(tb, "with an input that hangs", Validate(samples, c.now()))
	report(tb, "goroutines left with an input that hangs", goleak.Find(options...))
}

// checkFault returns the check that exactly the readings that can't be taken are omitted, or are
// malformed.
func checkFault(f Fault, later bool) func(testing.TB, Config) {
	return func(tb testing.TB, c Config) {
		tb.Helper()
		whole := c.healthy(tb, c.New(tb))
		source, breakIt := f.New(tb)
		if later {
			whole = c.healthy(tb, source)
			c.advance()
		}
		breakIt()
		samples, err := c.sample(tb.Context(), source)
		if f.Silent {
			report(tb, "sample", err)
		} else if err == nil {
			tb.Errorf("no error of what can't be read")
		}
		report(tb, "sample", Validate(samples, c.now()))
		compareFault(tb, f, whole, samples)
	}
}

func compareFault(tb testing.TB, f Fault, whole, samples []driver.Sample) {
	tb.Helper()
	var want []series
	hits := 0
	for _, s := range whole {
		for _, r := range s.Readings {
			if f.Hits(s, r) {
				hits++
				continue
			}
			want = append(want, seriesOf(s, r, 0))
		}
	}
	expect.That(tb, hits != 0, "the fault hits none of the readings")
	var got []series
	for _, s := range samples {
		for _, r := range s.Readings {
			if driver.IsMalformed(r.Value) && f.Hits(s, r) {
				continue
			}
			got = append(got, seriesOf(s, r, 0))
			if f.Hits(s, r) {
				tb.Errorf("there though it can't be read: %v", seriesOf(s, r, 0))
			}
		}
	}
	for _, s := range want {
		expect.That(tb, slices.Contains(got, s), "lost though the fault does not hit it: %v", s)
	}
}

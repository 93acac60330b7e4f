// Package drivertest is the test suite that every [driver.Source] must pass. It checks the contract
// of the interface and of the catalogue of quantities, with inputs that work, that are missing,
// that fail and that hang.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Config describes a source to the suite. Only New is required; checks that need a nil field are
// skipped.
type Config struct {
	// New returns a new source with working inputs of its own: its Sample has readings and no error.
	// All sources that it returns read the same hardware. What it starts for the test (a server, a
	// file) ends with tb.
	New func(tb testing.TB) driver.Source

	// Fills are the quantities of the source in the list of sources (exporter/cmd/dra-exporter): the
	// source that New returns reads all of these within a few samples, and no others. Nil: the source
	// is not in the list.
	Fills []driver.Quantity

	// Advance changes the inputs of the source that New, or a Fault, returned last as a second would,
	// and advances the source's clock. Nil: the inputs are constant, or change by themselves.
	Advance func()

	// Now is the clock that the source was given; nil: [time.Now].
	Now func() time.Time

	// Absent returns a source on a machine that has none of its hardware.
	Absent func(tb testing.TB) driver.Source

	// Hang returns a source whose input never answers.
	Hang func(tb testing.TB) driver.Source

	// Faults are ways in which the inputs break.
	Faults []Fault

	// Goroutines may remain after a Sample, such as those of a server inside the test.
	Goroutines []goleak.Option

	grace time.Duration // how long Sample may take after its context ended; 0: defaultGrace
}

// Fault is a way in which a source's inputs fail: the readings that it hits must be omitted, and
// all others must remain.
type Fault struct {
	Name string

	// New returns a source with working inputs, like Config.New, and a function that makes them fail.
	New func(tb testing.TB) (source driver.Source, breakIt func())

	// Hits reports whether the fault makes this reading impossible.
	Hits func(driver.Sample, driver.Reading) bool

	// Silent faults cause no error: what they hit is unsupported or gone, not unreadable.
	Silent bool
}

// The suite's bounds.
const (
	ticks        = 5                     // samples in a row
	hangFor      = 20 * time.Millisecond // the deadline that a hanging input is given
	defaultGrace = 5 * time.Second       // generous, for busy machines; only failing tests wait for it
)

type check struct {
	name string
	run  func(testing.TB, Config)
}

// checks returns the checks that can run with the config.
func (c Config) checks() []check {
	list := []check{
		{"name", checkName},
		{"readings", checkReadings},
		{"continuity", checkContinuity},
		{"ownership", checkOwnership},
		{"cancelled", checkCancelled},
		{"goroutines", checkGoroutines},
		{"files", checkFiles},
		{"rejections", checkRejections},
	}
	if c.Fills != nil {
		list = append(list, check{"fills", checkFills})
	}
	if c.Absent != nil {
		list = append(list, check{"absent", checkAbsent})
	}
	if c.Hang != nil {
		list = append(list, check{"hang", checkHang})
	}
	for _, f := range c.Faults {
		list = append(list, check{"fault from the start/" + f.Name, checkFault(f, false)},
			check{"fault later/" + f.Name, checkFault(f, true)})
	}
	return list
}

// Run runs the suite, with a subtest for each check.
func Run(t *testing.T, c Config) {
	for _, check := range c.checks() {
		t.Run(check.name, func(t *testing.T) { check.run(t, c) })
	}
}

func (c Config) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

func (c Config) advance() {
	if c.Advance != nil {
		c.Advance()
	}
}

var errLate = errors.New("sample did not return soon after its context ended")

// sample calls the source, and waits for it until the context ends, plus the grace period.
func (c Config) sample(ctx context.Context, source driver.Source) ([]driver.Sample, error) {
	type answer struct {
		samples []driver.Sample
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		samples, err := source.Sample(ctx)
		answers <- answer{samples, err}
	}()
	select {
	case a := <-answers:
		return a.samples, a.err
	case <-ctx.Done():
	}
	grace := c.grace
	if grace == 0 {
		grace = defaultGrace
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.samples, a.err
	case <-timer.C:
		return nil, errLate
	}
}

// healthy samples a source with working inputs.
func (c Config) healthy(tb testing.TB, source driver.Source) []driver.Sample {
	ctx, cancel := context.WithTimeout(tb.Context(), defaultGrace)
	defer cancel()
	samples, err := c.sample(ctx, source)
	expect.That(tb, err == nil, "sample of inputs that work: %v", err)
	expect.That(tb, countReadings(samples) != 0, "no reading of inputs that work")
	return samples
}

func countReadings(samples []driver.Sample) int {
	n := 0
	for _, s := range samples {
		n += len(s.Readings)
	}
	return n
}

func report(tb testing.TB, when string, err error) {
	expect.That(tb, err == nil, "%s: %v", when, err)
}

func tick(i int) string { return fmt.Sprintf("sample %d", i+1) }

// Package nvidiatest has what the tests of NVML and DCGM share: both read the same GPUs through
// fakes of libraries in C, by a clock that the test sets.
package nvidiatest

import (
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Machine is what a fake library reports.
type Machine interface{ Advance(seconds float64) }

// Clock is the time of a test, which the test alone sets. It is safe for concurrent use.
type Clock struct {
	mu sync.Mutex
	time.Time
	machine Machine
}

// NewClock returns a clock of a machine.
func NewClock(m Machine) *Clock { return &Clock{Time: time.Unix(1_800_000_000, 0), machine: m} }

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Time
}

// Advance advances the clock, and lets the machine work.
func (c *Clock) Advance(seconds float64) {
	c.mu.Lock()
	c.Time = c.Add(time.Duration(seconds * float64(time.Second)))
	c.mu.Unlock()
	c.machine.Advance(seconds)
}

// Sample samples a machine without errors.
func Sample(tb testing.TB, s driver.Source) []driver.Sample {
	samples, err := s.Sample(tb.Context())
	must.That(tb, err == nil, "sample: %v", err)
	return samples
}

// Value returns a reading of a sample, false if there is none.
func Value(s driver.Sample, q driver.Quantity, labels ...string) (float64, bool) {
	v, ok := Readings(s, q)[strings.Join(labels, " ")]
	return v, ok
}

// Readings returns the readings of a quantity by their labels.
func Readings(s driver.Sample, q driver.Quantity) map[string]float64 {
	out := map[string]float64{}
	for _, r := range s.Readings {
		if r.Quantity == q {
			out[labels(r)] = r.Value
		}
	}
	return out
}

// Values returns the readings of a sample by quantity and labels, to nine digits.
func Values(s driver.Sample) map[string]float64 {
	out := map[string]float64{}
	for _, r := range s.Readings {
		name := strings.TrimSpace(r.Quantity.String() + " " + labels(r))
		if r.Estimated {
			name += " (estimated)"
		}
		out[name] = math.Round(r.Value*1e9) / 1e9
	}
	return out
}

func labels(r driver.Reading) string { return strings.TrimSpace(strings.Join(r.Labels[:], " ")) }

// Attention lists the actions that a sample requests.
func Attention(s driver.Sample) []string {
	var out []string
	for _, r := range s.Readings {
		if r.Quantity == driver.NeedsAttention && r.Value == 1 {
			out = append(out, labels(r))
		}
	}
	return out
}

// Approximately compares numbers to six digits.
func Approximately() cmp.Option {
	return cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Max(math.Abs(a), 1) })
}

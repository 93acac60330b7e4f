package stalltest_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
)

const day = 24 * time.Hour

func all() []stalltest.Kind { return append(stalltest.Healthy(), stalltest.Hung()...) }

// TestDeterministic checks that a seed gives the same values twice, and another seed others.
func TestDeterministic(t *testing.T) {
	for _, k := range all() {
		sum := func(seed uint64) (sum float64) {
			for s := range k.Trace(seed, 30*time.Minute).Samples {
				sum = sum/2 + s.Values[stalltest.Busy] + s.Values[stalltest.MemoryUsed]/1e9 + s.Values[stalltest.HostCPU]
			}
			return sum
		}
		if a, b := sum(1), sum(1); a != b {
			t.Errorf("%s: %v and %v with the same seed", k.Name, a, b)
		}
		if a, b := sum(1), sum(2); a == b {
			t.Errorf("%s: the same values with two seeds", k.Name)
		}
	}
}

func BenchmarkDay(b *testing.B) {
	for b.Loop() {
		for _, k := range stalltest.Healthy()[:2] {
			for range k.Trace(1, day).Samples {
			}
		}
	}
}

package stalltest_test

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// TestEfficiencies integrates the traces and compares with the figures by hand. The product of
// means must be wrong for some, or they test nothing.
func TestEfficiencies(t *testing.T) {
	wrong := 0
	for _, e := range stalltest.Efficiencies() {
		n, tensor, clock, flops := 0.0, 0.0, 0.0, 0.0
		for s := range e.Trace(1, 4*time.Hour).Samples {
			share := s.Values[stalltest.Clock] / s.Values[stalltest.ClockMax]
			n++
			tensor += s.Values[stalltest.Tensor]
			clock += share
			flops += s.Values[stalltest.Tensor] * share
		}
		expect.That(t, math.Abs(flops/n-e.FLOPs) <= 0.005, "%s: %.4f, want %.4f", e.Name, flops/n, e.FLOPs)
		if means := tensor / n * clock / n; math.Abs(means-e.Means) > 0.002 {
			t.Errorf("%s: the product of means is %.4f, want %.4f", e.Name, means, e.Means)
		}
		if math.Abs(e.Means-e.FLOPs) > 0.05 {
			wrong++
		}
	}
	expect.That(t, wrong >= 2, "the product of means is wrong for %d jobs, want at least 2", wrong)
}

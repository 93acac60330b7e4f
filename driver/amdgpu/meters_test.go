package amdgpu

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// Residencies become seconds by the cycles that passed; counters that began again do not count
// twice.
func TestThrottle(t *testing.T) {
	var meter throttleMeter
	p := newParser()
	clock := time.Unix(1_800_000_000, 0)
	seconds := func(cycles, power uint64) float64 {
		m := must.Get(p.parse(table(t, 1, 8, map[string][]uint64{
			"accumulation_counter": {cycles}, "ppt_residency_acc": {power}, "vr_thm_residency_acc": {0},
		})))(t)
		meter.observe(&m, clock)
		clock = clock.Add(4 * time.Second)
		got := meter.readings()
		must.That(t, len(got) == 2 && got[0].Labels[0] == "power" && got[1].Labels[0] == "thermal_regulator",
			"readings %v", got)
		return got[0].Value
	}
	for i, step := range []struct {
		cycles, power uint64
		want          float64
	}{
		{1000, 500, 0},
		{2000, 750, 1},
		{2000, 750, 1},
		{3000, 750, 1},
		{4000, 0, 1},
		{10, 5, 1},
		{1010, 1005, 5},
		{1110, 9005, 9},
	} {
		if got := seconds(step.cycles, step.power); math.Abs(got-step.want) > 1e-9 {
			t.Errorf("step %d: %v s, want %v", i, got, step.want)
		}
	}
}

package amdgpu

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The counter of energy is believed in the unit in which it agrees with power over a minute, and no
// longer than it does.
func TestEnergy(t *testing.T) {
	type step struct {
		seconds     int
		watts, unit float64 // as the counter counts
		believed    float64
		again       bool // from 0
	}
	const fine = 1. / (1 << 16)
	for name, steps := range map[string][]step{
		"2^-16 J":        {{seconds: 59, watts: 300, unit: fine}, {seconds: 1, watts: 300, unit: fine, believed: fine}},
		"millijoules":    {{seconds: 60, watts: 40, unit: 1e-3, believed: 1e-3}},
		"it stays 0":     {{seconds: 180, watts: 40}},
		"another unit":   {{seconds: 180, watts: 40, unit: 1e-6}},
		"it stops":       {{seconds: 60, watts: 40, unit: 1e-3, believed: 1e-3}, {seconds: 60, watts: 40}},
		"no power":       {{seconds: 120, watts: 0, unit: 1e-3}},
		"it began again": {{seconds: 30, watts: 40, unit: fine}, {seconds: 59, watts: 40, unit: fine, again: true}},
		"it began again, long": {
			{seconds: 30, watts: 40, unit: fine}, {seconds: 61, watts: 40, unit: fine, again: true, believed: fine},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var e energyMeter
			clock, joules, counts := time.Unix(1_800_000_000, 0), 1e6, uint64(0)
			read := func(s step) {
				if s.unit > 0 { // else it stays
					counts = uint64(joules / s.unit)
				}
				e.observe(counts, s.watts, clock)
			}
			read(steps[0])
			for _, s := range steps {
				if s.again {
					joules = 0
				}
				for range s.seconds {
					clock = clock.Add(time.Second)
					joules += s.watts
					if s.watts == 0 {
						joules += 40
					}
					read(s)
				}
				expect.Is(t, e.unit, s.believed, "after %d s the unit", s.seconds)
			}
		})
	}
}

// The integral does not include the time of a sample without the value.
func TestEnergyGap(t *testing.T) {
	var e energyMeter
	clock := time.Unix(1_800_000_000, 0)
	for i := range uint64(13) {
		e.observe(i*440_000, 40, clock) // 40 W in mJ, if all of it is known
		clock = clock.Add(energyGap + time.Second)
	}
	expect.That(t, e.unit == 0, "believed with unit %v", e.unit)
}

// Residencies become seconds by the cycles that passed; counters that began again do not count
// twice.
func TestThrottle(t *testing.T) {
	var meter throttleMeter
	p := newParser()
	clock := time.Unix(1_800_000_000, 0)
	seconds := func(cycles, power uint64) float64 {
		t.Helper()
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

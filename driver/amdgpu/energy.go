package amdgpu

import (
	"math"
	"time"
)

const (
	// energyWindow is the time over which the energy counter is compared with power.
	energyWindow = time.Minute
	// energyGap is the longest time between two readings of power over which it is integrated.
	energyGap = 10 * time.Second
	// energyTolerance is the largest accepted difference between the counter and the integral of
	// power.
	energyTolerance = 0.3
)

// energyMeter uses the energy counter as long as it agrees with power, which is checked each
// minute. According to AMD's documentation of data-center GPUs, its unit is 2^-16 J (15.259 µJ).
// Other cards contradict this: the counter of an RX 6900 XT has millijoules, and that of an RX 9070
// stays 0.
type energyMeter struct {
	unit float64 // J per count; 0: the counter is not used

	begun  time.Time // of the window; zero: there is none
	counts uint64    // at the start of the window
	joules float64   // integral of power since then
	last   time.Time
	power  float64 // last power in W
}

// energyUnits returns the possible units of the counter, in J.
func energyUnits() [2]float64 { return [2]float64{1. / (1 << 16), 1e-3} }

// observe compares the counter with the power, in W, at a time.
func (e *energyMeter) observe(counts uint64, power float64, at time.Time) {
	gap := at.Sub(e.last)
	if e.begun.IsZero() || gap < 0 || gap > energyGap || counts < e.counts {
		e.restart(counts, power, at)
		return
	}
	e.joules += (e.power + power) / 2 * gap.Seconds()
	e.last, e.power = at, power
	if at.Sub(e.begun) < energyWindow {
		return
	}
	e.unit = 0
	for _, unit := range energyUnits() {
		if math.Abs(float64(counts-e.counts)*unit-e.joules) <= energyTolerance*e.joules && e.joules > 0 {
			e.unit = unit
		}
	}
	e.restart(counts, power, at)
}

func (e *energyMeter) restart(counts uint64, power float64, at time.Time) {
	e.begun, e.counts, e.joules, e.last, e.power = at, counts, 0, at, power
}

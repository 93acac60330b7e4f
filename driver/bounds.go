package driver

import "math"

// Bounds of what a device can be, by the units of gauges. They are far above any hardware, and
// below what a wrong unit gives: 10 W in milliwatts are 10 000, a clock in MHz that is scaled twice
// is 1e15.
const (
	maxWatts   = 1e4 // a rack of accelerators takes 120 kW, one of them 2
	minCelsius = -60
	maxCelsius = 200
	maxHertz   = 5e10 // the fastest memories have 36 Gbit/s a pin
	maxVolts   = 1e3  // what a board is fed with is 800 at most
	maxBytes   = 1 << 50
)

// bound gives a quantity the bounds of its unit. Counters have none but 64 bits: they may be of
// years.
func (s *Spec) bound() {
	if s.Type == Counter {
		return
	}
	switch s.Unit {
	case "watts":
		s.Max = maxWatts
	case "celsius":
		s.Min, s.Max = minCelsius, maxCelsius
	case "hertz":
		s.Max = maxHertz
	case "volts":
		s.Min, s.Max = -maxVolts, maxVolts
	case "bytes":
		s.Max = maxBytes
	}
}

// Check returns the reason for which no device has the value, "" if it can be one.
func (s *Spec) Check(value float64) Reason {
	switch {
	case math.IsNaN(value) || math.IsInf(value, 0):
		return ReasonNotFinite
	case s.NonNegative && value < 0:
		return ReasonNegative
	case s.Max > 0 && value > s.Max, s.Min < 0 && value < s.Min:
		return ReasonOutOfRange
	}
	return ""
}

// IsAbsent reports whether the value says that there is no sensor, and not what it measures: 0 °C
// of a memory, 0 V, 0 lanes. Sources may report it; it is left out.
func (s *Spec) IsAbsent(value float64) bool { return s.NoZero && value == 0 }

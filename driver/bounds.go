package driver

import "math"

// Bounds of gauges by unit: far above the values of any hardware, and below those that a wrong unit
// gives. 10 W read as milliwatts are 10 000; a clock in MHz that is scaled twice is 1e15.
const (
	maxWatts   = 1e4 // a rack of accelerators draws 120 kW, one accelerator 2 kW
	minCelsius = -60
	maxCelsius = 200
	maxHertz   = 5e10 // the fastest memories transfer 36 Gbit/s per pin
	maxVolts   = 1e3  // the supply of a board has at most 800 V
	maxBytes   = 1 << 50
)

// bound sets the bounds of the quantity's unit. Counters have no bound, since they may have counted
// for years.
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

// Check returns the reason to reject a value, or "" for a value that a device can have.
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

// IsAbsent reports whether the value means that the device has no such sensor: 0 °C of a memory, 0
// V, 0 lanes. Sources may report such a value; it is omitted.
func (s *Spec) IsAbsent(value float64) bool { return s.NoZero && value == 0 }

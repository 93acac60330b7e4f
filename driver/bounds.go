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

// Bounds of the rates of counters, per second, of any hardware.
const (
	maxBytesRate = 1e13 // a GPU's NVLinks transfer 1.8e12 (NVLink 6), its PCIe 7.0 link 2.4e11
	maxPackets   = 1e10 // 1.6 Tbit/s in packets of 64 bytes are 2.4e9
	maxErrors    = 2e4  // storms of corrected errors are thousands a second
)

// countsFor is the longest time for which a counter can have counted: 50 years, in seconds.
const countsFor = 50 * 365 * 24 * 3600

// Zero is the meaning of a reading of 0.
type Zero uint8

// The meanings.
const (
	ZeroIsValue Zero = iota
	// ZeroIsAbsent: the device has no such sensor, or can't read it now.
	ZeroIsAbsent
	// ZeroIsAbsentOfWhole is ZeroIsAbsent, except for a partition, whose part of the device may be 0.
	ZeroIsAbsentOfWhole
	// ZeroNeedsOther: the device may have no such sensor, until it has read another value.
	ZeroNeedsOther
)

// bound sets the bounds of the quantity's unit. The total of a counter is bounded by its rate.
func (s *Spec) bound() {
	if s.Type == Counter {
		s.boundRate()
		s.Max = s.MaxRate * countsFor
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

// boundRate sets the highest rate of a counter by its unit, if the quantity has none of its own.
func (s *Spec) boundRate() {
	switch {
	case s.MaxRate > 0:
	case s.Unit == "seconds":
		s.MaxRate = 1
	case s.Unit == "joules":
		s.MaxRate = maxWatts
	case s.Unit == "bytes":
		s.MaxRate = maxBytesRate
	}
}

// malformed is a NaN with bits of its own.
const malformed = 0x7ff8_6d61_6c66_6f72

// Malformed returns the value of a reading whose source found something else where a number is. The
// reading is rejected as [ReasonMalformed], so that it is counted by its quantity; conversions of
// its unit change nothing about that.
func Malformed() float64 { return math.Float64frombits(malformed) }

// IsMalformed reports whether a value is that of [Malformed].
func IsMalformed(value float64) bool { return math.Float64bits(value) == malformed }

// NumberOf returns the number that a source has parsed, [Malformed] if it is a code for "no value"
// or the error says that it is none. It is false for other errors.
func NumberOf[T int64 | uint64 | float64](number T, err error) (float64, bool) {
	if err == nil && IsCode(float64(number)) || err != nil && ReasonOf(err) == ReasonMalformed {
		return Malformed(), true
	}
	return float64(number), err == nil
}

// Flag returns 1 for true and 0 for false.
func Flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Check returns the reason to reject a value, or "" for a value that a device can have.
func (s *Spec) Check(value float64) Reason {
	switch {
	case IsMalformed(value):
		return ReasonMalformed
	case math.IsNaN(value) || math.IsInf(value, 0):
		return ReasonNotFinite
	case s.NonNegative && value < 0:
		return ReasonNegative
	case IsCode(value):
		return ReasonNoValue
	case s.Max > 0 && value > s.Max, s.Min < 0 && value < s.Min:
		return ReasonOutOfRange
	}
	return ""
}

// IsAbsent reports whether the value means that a device of a kind has no such sensor: 0 °C of a
// memory, 0 V, 0 lanes, 0 W of a whole GPU. Sources may report such a value; it is omitted. What
// [ZeroNeedsOther] means is not decided here, since it depends on earlier readings.
func (s *Spec) IsAbsent(value float64, of Kind) bool {
	return value == 0 && (s.Zero == ZeroIsAbsent || s.Zero == ZeroIsAbsentOfWhole && of != KindPartition)
}

// LinkPart is what a gauge says about the speed of a link.
type LinkPart uint8

// The parts.
const (
	NoLink LinkPart = iota
	LinkHasLanes
	LinkHasGeneration
	NumLinkParts // the number of parts, not one of them
)

// LinkBytesPerSecond returns the bytes that a link transfers in one direction, by its generation
// and its lanes; 0: unknown. Only PCIe has generations with a known speed. Encoding is subtracted
// (8b/10b, 128b/130b), packets' headers are not.
func LinkBytesPerSecond(link string, generation, lanes float64) float64 {
	perLane := [...]float64{0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9, 15.125e9}
	if link != "pcie" || generation < 1 || generation >= float64(len(perLane)) || lanes <= 0 {
		return 0
	}
	return perLane[int(generation)] * lanes
}

// IsCode reports whether a number, in an interface's own unit, is one by which interfaces say that
// there is no number. They are wider than 16 bits, so that hardware hardly has such a value; if it
// has, one reading of it is lost.
func IsCode(number float64) bool {
	// dcgm_structs.h: DCGM_INT32_BLANK and DCGM_FP64_BLANK, and above them NOT_FOUND, NOT_SUPPORTED
	// and NOT_PERMISSIONED. dcgm-exporter prints them as numbers.
	if number >= 0x7ffffff0 && number <= 0x7ffffffe || number >= 1<<47 && number <= 1<<47+3 {
		return true
	}
	// DCGM_INT64_BLANK and the others, which are one double. nvml.h: NVML_VALUE_NOT_AVAILABLE is -1,
	// which a field without sign returns like the others. kgd_pp_interface.h: amdgpu sets all bits of
	// what a table of metrics lacks.
	return number == 1<<63 || number == 1<<32-1 || number == 1<<64
}

// IsUnset reports whether all bits of a field of that many bytes are set, by which drivers say that
// the field has no value.
func IsUnset(value uint64, bytes int) bool { return value == ^uint64(0)>>(64-8*bytes) }

package driver

// Ends of a range of codes, but for the rounding of a source that has scaled them.
const (
	below = 1 - 1e-12
	above = 1 + 1e-12
)

// IsCode reports whether a number, in an interface's own unit, is one by which interfaces say that
// there is no number. They are wider than 16 bits, so that hardware hardly has such a value; if it
// has, one reading of it is lost.
func IsCode(number float64) bool {
	switch {
	case number < 0x7ffffff0*below:
		return false
	case number <= 0x7ffffffe*above:
		// dcgm_structs.h: DCGM_INT32_BLANK and, above it, NOT_FOUND, NOT_SUPPORTED, NOT_PERMISSIONED.
		// dcgm-exporter prints them, and those of 64 bits, as numbers.
		return true
	case number < (1<<47)*below:
		// nvml.h: NVML_VALUE_NOT_AVAILABLE is -1, which a field of 32 bits without sign returns like
		// this. kgd_pp_interface.h: amdgpu sets all bits of what a table of metrics lacks.
		return number >= (1<<32-1)*below && number <= (1<<32-1)*above
	case number <= (1<<47+3)*above:
		// dcgm_structs.h: DCGM_FP64_BLANK and, above it, NOT_FOUND, NOT_SUPPORTED, NOT_PERMISSIONED.
		return true
	case number < 0x7ffffffffffffff0*below:
		return false
	case number <= 0x7ffffffffffffffe*above:
		// dcgm_structs.h: DCGM_INT64_BLANK and the others. A double has one number for all of them.
		return true
	default:
		// NVML_VALUE_NOT_AVAILABLE and amdgpu's tables, in 64 bits.
		return number >= (1<<64-1)*below && number <= (1<<64-1)*above
	}
}

// codeOf16Bits is how amdgpu's tables (kgd_pp_interface.h) and hwmon chips say, in 16 bits, that
// there is no value. Only gauges whose bounds include it need it.
const codeOf16Bits = 1<<16 - 1

// maxScales is the highest number of units in which interfaces give a quantity.
const maxScales = 6

// scalesOf returns the factors from the units in which interfaces give a quantity to its own,
// followed by zeros.
func scalesOf(unit string) [maxScales]float64 {
	const milli, micro, nano, percent, kibi, mebi = 1e-3, 1e-6, 1e-9, 1e-2, 1 << 10, 1 << 20
	switch unit {
	case "seconds":
		return [...]float64{1, milli, micro, nano, 0, 0}
	case "joules", "watts", "volts", "celsius":
		return [...]float64{1, milli, micro, 0, 0, 0}
	case "hertz":
		return [...]float64{1, 1e3, 1e6, 0, 0, 0}
	case "bytes":
		return [...]float64{1, 4, kibi, 1e3, mebi, 1e6}
	case "ratio":
		return [...]float64{1, percent, 0, 0, 0, 0}
	default:
		return [...]float64{1, 0, 0, 0, 0, 0}
	}
}

// leastCode is below the lowest code in any of the units in which interfaces give a quantity, but
// for times, which some give in nanoseconds, and but for codes of 16 bits.
const leastCode = 0x7ffffff0 * 1e-6 * below

// isCode reports whether a value stands for "no value".
func (s *Spec) isCode(value float64) bool {
	switch {
	case value < codeOf16Bits*1e-3*below && s.Unit != "seconds":
		return false
	case s.Unit == "volts" && value >= codeOf16Bits*1e-3*below && value <= codeOf16Bits*1e-3*above,
		s.Name == "fan_rotation" && value == codeOf16Bits:
		return true
	case value < leastCode && s.Unit != "seconds":
		return false
	}
	scales := scalesOf(s.Unit)
	for i := 0; i < maxScales && scales[i] > 0; i++ {
		if IsCode(value / scales[i]) {
			return true
		}
	}
	return false
}

// IsUnset reports whether all bits of a field of that many bytes are set, by which drivers say that
// the field has no value.
func IsUnset(value uint64, bytes int) bool { return value == ^uint64(0)>>(64-8*bytes) }

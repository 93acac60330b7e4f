package driver

import (
	"cmp"
	"slices"
	"sort"
)

// code is a range of numbers that stand for "no value" in an interface, in that interface's own
// unit.
type code struct{ low, high float64 }

// numberCodes returns the codes by which interfaces say that there is no number. They are wider
// than 16 bits, so that hardware hardly has such a value; if it has, one reading of it is lost.
func numberCodes() [5]code {
	return [...]code{
		// dcgm_structs.h: DCGM_INT32_BLANK and, above it, NOT_FOUND, NOT_SUPPORTED, NOT_PERMISSIONED.
		// dcgm-exporter prints them, and those of 64 bits, as numbers.
		{0x7ffffff0, 0x7ffffffe},
		// nvml.h: NVML_VALUE_NOT_AVAILABLE is -1, which a field of 32 bits without sign returns like
		// this. kgd_pp_interface.h: amdgpu sets all bits of what a table of metrics lacks.
		{1<<32 - 1, 1<<32 - 1},
		// dcgm_structs.h: DCGM_FP64_BLANK and, above it, NOT_FOUND, NOT_SUPPORTED, NOT_PERMISSIONED.
		{1 << 47, 1<<47 + 3},
		// dcgm_structs.h: DCGM_INT64_BLANK and the others. A double has one number for all of them.
		{0x7ffffffffffffff0, 0x7ffffffffffffffe},
		// NVML_VALUE_NOT_AVAILABLE and amdgpu's tables, in 64 bits.
		{1<<64 - 1, 1<<64 - 1},
	}
}

// codeOf16Bits is how amdgpu's tables (kgd_pp_interface.h) and hwmon chips say, in 16 bits, that
// there is no value. Only gauges whose bounds include it need it.
const codeOf16Bits = 1<<16 - 1

// scalesOf returns the factors from the units in which interfaces give a quantity to its own.
func scalesOf(unit string) []float64 {
	const milli, micro, nano, percent, kibi, mebi = 1e-3, 1e-6, 1e-9, 1e-2, 1 << 10, 1 << 20
	switch unit {
	case "seconds":
		return []float64{1, milli, micro, nano}
	case "joules", "watts", "volts", "celsius":
		return []float64{1, milli, micro}
	case "hertz":
		return []float64{1, 1e3, 1e6}
	case "bytes":
		return []float64{1, 4, kibi, 1e3, mebi, 1e6}
	case "ratio":
		return []float64{1, percent}
	default:
		return []float64{1}
	}
}

// codesOf returns the codes of a quantity in its unit, sorted.
func codesOf(s *Spec) []code {
	const rounding = 1e-12
	var out []code
	add := func(c code, scale float64) {
		out = append(out, code{c.low * scale * (1 - rounding), c.high * scale * (1 + rounding)})
	}
	for _, scale := range scalesOf(s.Unit) {
		for _, c := range numberCodes() {
			add(c, scale)
		}
	}
	switch {
	case s.Unit == "volts":
		add(code{codeOf16Bits, codeOf16Bits}, 1e-3)
	case s.Name == "fan_rotation":
		add(code{codeOf16Bits, codeOf16Bits}, 1)
	}
	slices.SortFunc(out, func(a, b code) int { return cmp.Compare(a.low, b.low) })
	return out
}

// isCode reports whether a value stands for "no value".
func (s *Spec) isCode(value float64) bool {
	if len(s.codes) == 0 || value < s.codes[0].low {
		return false
	}
	i := sort.Search(len(s.codes), func(i int) bool { return s.codes[i].low > value })
	return value <= s.codes[i-1].high
}

// IsCode reports whether a number stands for "no value", in an interface's own unit.
func IsCode(number float64) bool {
	for _, c := range numberCodes() {
		if number >= c.low && number <= c.high {
			return true
		}
	}
	return false
}

// IsUnset reports whether all bits of a field of that many bytes are set, by which drivers say that
// the field has no value.
func IsUnset(value uint64, bytes int) bool { return value == ^uint64(0)>>(64-8*bytes) }

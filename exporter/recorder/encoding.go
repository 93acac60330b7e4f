package recorder

import "math"

// code is a recorded value: its sign, 6 bits of its exponent, and mantissaBits of its mantissa,
// rounded. It has the values from a millionth to 10^13; smaller ones are 0. This suffices for all
// quantities in their units.
type code uint16

const (
	mantissaBits = 9
	dropped      = 52 - mantissaBits
	// lowest is the code that the smallest value would have with all bits of its exponent.
	lowest = (1023 - 20) << mantissaBits

	// absent is the code of an absent value, that of a negative zero.
	absent code = 1 << 15
	// Precision is the largest relative error of a value that the ring returns.
	Precision = 1.0 / (1 << (mantissaBits + 1))
)

// codeOf returns the code of a value, absent for one that is no finite number.
func codeOf(v float64) code {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return absent
	}
	rounded := (math.Float64bits(math.Abs(v)) + 1<<(dropped-1)) >> dropped
	if rounded <= lowest {
		return 0
	}
	c := code(min(rounded-lowest, uint64(absent)-1))
	if v < 0 {
		c |= absent
	}
	return c
}

// value returns the value of a code, NaN if it is absent.
func (c code) value() float64 {
	switch {
	case c == absent:
		return math.NaN()
	case c == 0:
		return 0
	}
	return math.Copysign(math.Float64frombits((uint64(c&^absent)+lowest)<<dropped), float64(int16(c)))
}

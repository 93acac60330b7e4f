package recorder

import (
	"encoding/binary"
	"math"
)

// A value is kept as a code: the upper bits of its float64, rounded to mantissaBits of the
// mantissa. Codes of the same sign have the order of the values, and close values have close codes.
// A series is kept as the differences of its codes.
const (
	mantissaBits = 9
	dropped      = 52 - mantissaBits

	// Precision is the largest relative error of a value that the ring returns.
	Precision = 1.0 / (1 << (mantissaBits + 1))
)

type code int32

// absent is the code of an absent value.
const absent code = math.MinInt32

// codeOf returns the code of a finite value. A magnitude that rounding would make infinite becomes
// the largest finite one.
func codeOf(v float64) code {
	bits := math.Float64bits(math.Abs(v))
	c := code((bits + 1<<(dropped-1)) >> dropped)
	c = min(c, code(math.Float64bits(math.MaxFloat64)>>dropped))
	if v < 0 {
		return -c
	}
	return c
}

func (c code) value() float64 {
	if c < 0 {
		return -math.Float64frombits(uint64(-c) << dropped)
	}
	return math.Float64frombits(uint64(c) << dropped)
}

// A series of a block is a sequence of varints, each of one or more ticks. The lowest bit says
// which kind it is:
//
// - 0: a tick at which the value differs from the one before by the zigzag number in the other
// bits;
//
// - 1: as many unchanged ticks as the other bits say. Zero means one tick at which the value is
// absent.
//
// Before the first tick the value is 0 and absent.
const (
	tokenChange = 0
	tokenRun    = 1
)

// encoder appends one series of a block.
type encoder struct {
	out    []byte
	last   code
	absent bool
	run    uint64 // unchanged ticks that are not yet written
	ticks  int
}

// put adds the value of a tick.
func (e *encoder) put(c code) {
	e.ticks++
	if !e.absent && c == e.last {
		e.run++
		return
	}
	e.flush()
	e.out = binary.AppendUvarint(e.out, zigzag(int64(c)-int64(e.last))<<1|tokenChange)
	e.last, e.absent = c, false
}

// skip adds ticks without a value.
func (e *encoder) skip(ticks int) {
	if ticks <= 0 {
		return
	}
	e.ticks += ticks
	if !e.absent {
		e.flush()
		e.out = append(e.out, tokenRun)
		e.absent = true
		ticks--
	}
	e.run += uint64(ticks)
}

// flush writes the unchanged ticks.
func (e *encoder) flush() {
	if e.run > 0 {
		e.out = binary.AppendUvarint(e.out, e.run<<1|tokenRun)
		e.run = 0
	}
}

// decode appends the values of at most the given number of ticks, NaN where they are absent. Ticks
// that the data lacks are absent. Damaged data gives wrong values, but not more of them.
func decode(out []float64, data []byte, ticks int) []float64 {
	end := len(out) + ticks
	var last code
	absent := true
	for len(data) > 0 && len(out) < end {
		token, n := binary.Uvarint(data)
		if n <= 0 {
			break
		}
		data = data[n:]
		switch {
		case token&1 == tokenChange:
			last += code(unzigzag(token >> 1))
			absent = false
			out = append(out, last.value())
		case token == tokenRun:
			absent = true
			out = append(out, math.NaN())
		default:
			v := last.value()
			if absent {
				v = math.NaN()
			}
			for range min(token>>1, uint64(end-len(out))) {
				out = append(out, v)
			}
		}
	}
	for len(out) < end {
		out = append(out, math.NaN())
	}
	return out
}

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

package recorder

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Decoded values equal the encoded ones within the precision, and are absent where these were.
func TestEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(
			rapid.SampledFrom([]float64{math.NaN(), math.NaN(), 0, 1, 1, 1, 0.5, -40, 300, math.MaxFloat64}),
			rapid.Float64(),
		)
		values := rapid.SliceOfN(value, 0, 200).Draw(t, "values")
		got := NewValues(values).Floats()
		must.That(t, len(got) == len(values), "%d values became %d", len(values), len(got))
		for i, v := range values {
			// The smallest numbers have fewer bits: below the smallest value of any quantity, the precision
			// is not relative.
			absent := math.IsNaN(v) || math.IsInf(v, 0)
			near := math.Abs(got[i]-v) <= Precision*math.Abs(v)+0x1p-1030
			must.That(t, absent == math.IsNaN(got[i]) && (absent || near), "value %d is %v, was %v", i, got[i], v)
		}
	})
}

// Data that was damaged gives as many values as were asked for, whatever they are.
func FuzzDecode(f *testing.F) {
	f.Add(NewValues([]float64{1, 2, math.NaN(), 3}).data, 4)
	f.Add([]byte{0xff, 0xff, 0xff}, 3)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 1000)
	f.Fuzz(func(t *testing.T, data []byte, ticks int) {
		ticks = min(max(ticks, 0), 1<<16)
		expect.Is(t, len(decode(nil, data, ticks)), ticks, "values")
	})
}

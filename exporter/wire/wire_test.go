package wire_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

// Written messages are read, whatever their length.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i, x := rapid.Int64().Draw(t, "int"), rapid.Float64().Draw(t, "float")
		text := string(rapid.SliceOfN(rapid.Byte(), 0, rapid.SampledFrom([]int{1, 127, 128, 16384}).Draw(t, "most")).
			Draw(t, "text"))
		b := wire.Message(nil, 7, func(b []byte) []byte {
			b = wire.Int(b, 1, i)
			b = wire.Message(b, 9, func(b []byte) []byte { return b }) // of a newer version
			return wire.String(wire.Float(wire.Bool(b, 2, i > 0), 3, x), 4, text)
		})
		b = wire.Uint(b, 8, uint64(len(text)))
		var gotInt int64
		var gotFloat float64
		var gotText string
		var gotBool bool
		var after uint64
		err := wire.Fields(b, func(f *wire.Field) error {
			if f.Number != 7 {
				after = f.Uint()
				return nil
			}
			return wire.Fields(f.Bytes, func(f *wire.Field) error {
				switch f.Number {
				case 1:
					gotInt = f.Int()
				case 2:
					gotBool = f.Bool()
				case 3:
					gotFloat = f.Float()
				case 4:
					gotText = f.String()
				}
				return nil
			})
		})
		if err != nil || gotInt != i || math.Float64bits(gotFloat) != math.Float64bits(x) && x != 0 || gotText != text ||
			gotBool != (i > 0) || after != uint64(len(text)) {
			t.Errorf("got %d, %v, %v, %q and %d, %v", gotInt, gotFloat, gotBool, gotText, after, err)
		}
	})
}

// Nothing that is read panics, or is read beyond its end.
func FuzzFields(f *testing.F) {
	f.Add(wire.String(wire.Float(wire.Uint(nil, 1, 300), 2, 0.5), 3, "text"))
	f.Add([]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		err := wire.Fields(b, func(f *wire.Field) error { n += len(f.Bytes); return nil })
		if n > len(b) || err != nil && driver.ReasonOf(err) != driver.ReasonMalformed {
			t.Errorf("%d bytes of %d, %v", n, len(b), err)
		}
	})
}

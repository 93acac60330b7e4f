// Package former decodes what programs before format 3 of the state wrote: messages in protobuf's
// encoding, whose types are defined where they are read.
package former

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Last is the last format of the state in this encoding.
const Last = 2

// Field is a field of a message.
type Field struct {
	Number int
	value  uint64
	Bytes  []byte // of a text, bytes or a message
}

// Uint returns a number that can't be negative.
func (f *Field) Uint() uint64 { return f.value }

// Int returns a number that may be negative.
func (f *Field) Int() int64 { return protowire.DecodeZigZag(f.value) }

// Float returns a floating-point number.
func (f *Field) Float() float64 { return math.Float64frombits(f.value) }

// Fields calls f for each field of a message, in order. It returns the error of f, or one with the
// reason malformed.
func Fields(b []byte, f func(f *Field) error) error {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		field := Field{Number: int(number)}
		switch wire {
		case protowire.VarintType:
			field.value, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			field.value, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			field.Bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, wire, b)
		}
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		if err := f(&field); err != nil {
			return err
		}
	}
	return nil
}

func malformed(code int) error {
	return driver.WithReason(driver.ReasonMalformed, fmt.Errorf("decode: %w", protowire.ParseError(code)))
}

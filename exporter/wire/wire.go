// Package wire writes and reads messages in protobuf's encoding, without type definitions. Fields
// have numbers, unknown fields are skipped, and absent fields are zero, so that versions can add
// fields.
package wire

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Uint appends a number, unless it is 0.
func Uint(b []byte, field int, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, protowire.Number(field), protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

// Int appends a number that may be negative, unless it is 0.
func Int(b []byte, field int, v int64) []byte { return Uint(b, field, protowire.EncodeZigZag(v)) }

// Bool appends true; false is an absent field.
func Bool(b []byte, field int, v bool) []byte { return Uint(b, field, protowire.EncodeBool(v)) }

// Float appends a number, unless it is 0.
func Float(b []byte, field int, v float64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, protowire.Number(field), protowire.Fixed64Type)
	return protowire.AppendFixed64(b, math.Float64bits(v))
}

// String appends a text, unless it is empty.
func String(b []byte, field int, v string) []byte {
	if v == "" {
		return b
	}
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendString(b, v)
}

// Bytes appends bytes, even an empty slice.
func Bytes(b []byte, field int, v []byte) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendBytes(b, v)
}

// Message appends one field with the message that f appends, even an empty one.
func Message(b []byte, field int, f func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	const room = 4 // for the length, which follows later
	start := len(b)
	b = f(append(b, make([]byte, room)...))
	var scratch [10]byte
	length := protowire.AppendVarint(scratch[:0], uint64(len(b)-start-room))
	copy(b[start:], length)
	if len(length) == room {
		return b
	}
	if len(length) > room {
		tail := append([]byte(nil), b[start+room:]...)
		return append(append(b[:start], length...), tail...)
	}
	n := copy(b[start+len(length):], b[start+room:])
	return b[:start+len(length)+n]
}

// Field is a field of a message.
type Field struct {
	Number int
	value  uint64
	Bytes  []byte // of a string, bytes or message
}

// Uint returns the number of a field that Uint wrote.
func (f *Field) Uint() uint64 { return f.value }

// Int returns the number of a field that Int wrote.
func (f *Field) Int() int64 { return protowire.DecodeZigZag(f.value) }

// Bool returns the value of a field that Bool wrote.
func (f *Field) Bool() bool { return f.value != 0 }

// Float returns the number of a field that Float wrote.
func (f *Field) Float() float64 { return math.Float64frombits(f.value) }

// String returns the text of a field that String wrote.
func (f *Field) String() string { return string(f.Bytes) }

// Fields calls f for each field of a message, in order. It returns the error of f, or one with the
// reason malformed.
func Fields(b []byte, f func(f *Field) error) error {
	var field Field
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed(n)
		}
		b = b[n:]
		field = Field{Number: int(number)}
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

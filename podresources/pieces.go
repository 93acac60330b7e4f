package podresources

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// pieces reads a protobuf message that is in memory in several pieces.
type pieces struct {
	first   []byte
	rest    [][]byte
	scratch []byte // of the last value that was in more than one piece
	read    uint64 // bytes
}

// errLargePod is the error for a pod that is larger than maxPod.
var errLargePod = errors.New("the pod is too large")

// distinct reads a message of a size and returns it without values of a field that it has had
// before. The further fields are those of these values, for which the same is done. It drops fields
// that are no bytes. Only the first values are remembered, since no more are used.
func (p *pieces) distinct(size uint64, field protowire.Number, of ...protowire.Number) ([]byte, error) {
	end, out := p.read+size, make([]byte, 0, min(size, 256))
	var had values
	for p.read < end {
		number, size, ok, err := p.begin(end)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		ours := number == field
		value, err := p.value(size, ours, of)
		tooLarge := len(out)+len(value) > maxPod || ours && len(out) > maxAnswerBytes
		if errors.Is(err, errLargePod) || tooLarge {
			return nil, cmp.Or(p.pass(end-p.read), errLargePod)
		}
		if err != nil {
			return nil, err
		}
		if ours && had.again(value) {
			continue
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), value)
		if ours && had.first == nil {
			had.first = out[len(out)-len(value):]
		}
	}
	if p.read > end {
		return nil, decodeError(io.ErrUnexpectedEOF)
	}
	return out, nil
}

// begin reads up to the value of the next field of a message, and returns the value's size. If the
// field is no bytes, it drops it: ok is false.
func (p *pieces) begin(end uint64) (number protowire.Number, size uint64, ok bool, err error) {
	tag, err := p.varint()
	if err != nil {
		return 0, 0, false, err
	}
	number, kind := protowire.DecodeTag(tag)
	if kind != protowire.BytesType {
		return number, 0, false, p.skip(number, kind)
	}
	if size, err = p.varint(); err == nil && size > end-min(p.read, end) {
		err = decodeError(io.ErrUnexpectedEOF)
	}
	return number, size, true, err
}

// value reads a value. If it is distinct, it is a message without second values of the fields.
func (p *pieces) value(size uint64, distinct bool, of []protowire.Number) ([]byte, error) {
	switch {
	case distinct && len(of) > 0:
		return p.distinct(size, of[0], of[1:]...)
	case size <= maxPod:
		return p.take(size)
	default:
		return nil, errLargePod
	}
}

// values are the first values of a field.
type values struct {
	first []byte
	all   map[string]bool // nil before the second value
}

// again reports whether a value is one of them. If not, it becomes one, unless it is the first.
func (v *values) again(value []byte) bool {
	if v.first != nil && v.all == nil {
		v.all = map[string]bool{string(v.first): true}
	}
	if v.all[string(value)] {
		return true
	}
	if v.all != nil && len(v.all) < maxRows {
		v.all[string(value)] = true
	}
	return false
}

// more reports whether there are more bytes.
func (p *pieces) more() bool {
	for len(p.first) == 0 && len(p.rest) > 0 {
		p.first, p.rest = p.rest[0], p.rest[1:]
	}
	return len(p.first) > 0
}

// take returns the next bytes, which are valid until the next call.
func (p *pieces) take(n uint64) ([]byte, error) {
	if uint64(len(p.first)) >= n {
		out := p.first[:n]
		p.first = p.first[n:]
		p.read += n
		return out, nil
	}
	p.scratch = p.scratch[:0]
	for uint64(len(p.scratch)) < n && p.more() {
		part := p.first[:min(uint64(len(p.first)), n-uint64(len(p.scratch)))]
		p.scratch, p.first = append(p.scratch, part...), p.first[len(part):]
	}
	p.read += uint64(len(p.scratch))
	if uint64(len(p.scratch)) < n {
		return nil, decodeError(io.ErrUnexpectedEOF)
	}
	return p.scratch, nil
}

// pass skips the next bytes.
func (p *pieces) pass(n uint64) error {
	for n > 0 {
		if !p.more() {
			return decodeError(io.ErrUnexpectedEOF)
		}
		part := min(n, uint64(len(p.first)))
		p.first = p.first[part:]
		p.read += part
		n -= part
	}
	return nil
}

// varint reads a number.
func (p *pieces) varint() (uint64, error) {
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		b, err := p.take(1)
		if err != nil {
			return 0, err
		}
		v |= uint64(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			return v, nil
		}
	}
	return 0, decodeError(errors.New("a number has more than 64 bits"))
}

// skip skips the value of a field.
func (p *pieces) skip(number protowire.Number, kind protowire.Type) error {
	if !number.IsValid() {
		return decodeError(errors.New("a field has no valid number"))
	}
	switch kind {
	case protowire.VarintType:
		_, err := p.varint()
		return err
	case protowire.Fixed32Type:
		return p.pass(4)
	case protowire.Fixed64Type:
		return p.pass(8)
	case protowire.BytesType:
		size, err := p.varint()
		if err != nil {
			return err
		}
		return p.pass(size)
	case protowire.StartGroupType, protowire.EndGroupType:
	}
	return decodeError(fmt.Errorf("a field is of type %d", kind)) // groups are not in proto3
}

func decodeError(err error) error { return fmt.Errorf("decode answer: %w", err) }

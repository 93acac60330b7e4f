package podresources

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// pieces reads a protobuf message that is in memory in several pieces.
type pieces struct {
	*mem.Reader
	scratch []byte // of the last value
}

// errLargePod is the error for a pod that is larger than maxPod.
var errLargePod = errors.New("the pod is too large")

// pod reads a pod of a size. One of stuckPod bytes or more lists nothing twice then: kubelet 1.36
// lists the devices of a pod again at each retry if one of its two drivers fails (kubernetes issue
// 141335), the k-th device with the CDI names of the k-1 before it. The bytes are valid until the
// next call.
func (p *pieces) pod(size uint64) ([]byte, error) {
	if size < stuckPod {
		return p.take(size)
	}
	return p.distinct(size, containersField, dynamicResourcesField, claimResourcesField, cdiDevicesField)
}

// distinct reads a message of a size and returns it without values of a field that it has had
// before. The further fields are those of these values, for which the same is done. It drops fields
// that are no bytes. Only the first values are remembered, since no more are used.
func (p *pieces) distinct(size uint64, field protowire.Number, of ...protowire.Number) ([]byte, error) {
	if size > uint64(p.Remaining()) {
		return nil, decodeError(io.ErrUnexpectedEOF)
	}
	end, out := p.Remaining()-int(size), make([]byte, 0, min(size, 256))
	var had values
	for p.Remaining() > end {
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
			return nil, cmp.Or(p.pass(uint64(p.Remaining()-end)), errLargePod)
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
	return out, nil
}

// begin reads up to the value of the next field of a message that ends when so many bytes remain,
// and returns the value's size. If the field is no bytes, it drops it: ok is false.
func (p *pieces) begin(end int) (number protowire.Number, size uint64, ok bool, err error) {
	tag, err := p.varint()
	if err != nil {
		return 0, 0, false, err
	}
	number, kind := protowire.DecodeTag(tag)
	if !number.IsValid() {
		return 0, 0, false, decodeError(errors.New("a field has no valid number"))
	}
	switch kind {
	case protowire.BytesType:
		size, err = p.varint()
		ok = true
	case protowire.VarintType:
		_, err = p.varint()
	case protowire.Fixed32Type:
		err = p.pass(4)
	case protowire.Fixed64Type:
		err = p.pass(8)
	default: // groups are not in proto3
		err = decodeError(fmt.Errorf("a field is of type %d", kind))
	}
	if err == nil && (p.Remaining() < end || size > uint64(p.Remaining()-end)) {
		err = decodeError(io.ErrUnexpectedEOF)
	}
	return number, size, ok, err
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

// take returns the next bytes, which are valid until the next call.
func (p *pieces) take(n uint64) ([]byte, error) {
	if n > uint64(p.Remaining()) {
		return nil, decodeError(io.ErrUnexpectedEOF)
	}
	p.scratch = slices.Grow(p.scratch[:0], int(n))[:n]
	_, err := io.ReadFull(p.Reader, p.scratch)
	return p.scratch, err
}

// pass skips the next bytes.
func (p *pieces) pass(n uint64) error {
	if n > uint64(p.Remaining()) {
		return decodeError(io.ErrUnexpectedEOF)
	}
	_, err := p.Discard(int(n))
	return err
}

// varint reads a number.
func (p *pieces) varint() (uint64, error) {
	v, err := binary.ReadUvarint(p.Reader)
	if err != nil {
		return 0, decodeError(err)
	}
	return v, nil
}

func decodeError(err error) error { return fmt.Errorf("decode answer: %w", err) }

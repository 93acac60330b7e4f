package distribution

import (
	"encoding/binary"
	"errors"
	"math"
)

// AppendBinary appends the histogram, in a form that [Histogram.UnmarshalBinary] reads.
func (h *Histogram) AppendBinary(b []byte) ([]byte, error) {
	b = binary.AppendVarint(b, int64(h.coarser))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(h.carry))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(h.sum))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(h.max))
	b = h.zero.append(b)
	for i := range h.buckets {
		b = h.buckets[i].append(b)
	}
	return b, nil
}

func (b *bucket) append(out []byte) []byte {
	out = binary.AppendVarint(out, int64(b.index))
	out = binary.AppendUvarint(out, uint64(b.count))
	return binary.AppendVarint(out, int64(b.lacks))
}

var errMalformed = errors.New("a histogram is malformed")

// UnmarshalBinary reads a histogram that AppendBinary has written.
func (h *Histogram) UnmarshalBinary(b []byte) error {
	out := Histogram{}
	coarser, n := binary.Varint(b)
	if n <= 0 || coarser < 0 || coarser > Schema-minSchema || len(b) < n+24 {
		return errMalformed
	}
	out.coarser, b = int8(coarser), b[n:]
	for _, v := range []*float64{&out.carry, &out.sum, &out.max} {
		*v = math.Float64frombits(binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	for first := true; len(b) > 0; first = false {
		of, rest, ok := parseBucket(b)
		switch {
		case !ok:
			return errMalformed
		case first:
			out.zero = of
		default:
			out.buckets = append(out.buckets, of)
		}
		out.pending += int32(of.lacks)
		b = rest
	}
	*h = out
	return nil
}

func parseBucket(b []byte) (of bucket, rest []byte, ok bool) {
	index, i := binary.Varint(b)
	if i <= 0 || index != int64(int16(index)) {
		return of, nil, false
	}
	count, j := binary.Uvarint(b[i:])
	if j <= 0 || count > math.MaxUint32 {
		return of, nil, false
	}
	lacks, k := binary.Varint(b[i+j:])
	if k <= 0 || lacks != int64(int16(lacks)) {
		return of, nil, false
	}
	return bucket{uint32(count), int16(index), int16(lacks)}, b[i+j+k:], true
}

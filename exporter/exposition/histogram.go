package exposition

import (
	"encoding/binary"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
)

// classicSchema is the resolution of classic buckets: each is 41 % wide. A distribution has a lower
// resolution only if its values span more than 32 powers of two.
const classicSchema = 1

// classicBounds returns the indexes of the classic buckets of a family, of classicSchema.
func classicBounds(f *Family) (indexes []int) {
	first, last := 2, 14 // 4 W to 16 kW
	switch f.Unit {
	case "seconds": // 0.25 s to 68 min: each is four times as wide
		for i := -2; i <= 12; i += 2 {
			indexes = append(indexes, i<<classicSchema)
		}
		return indexes
	case "ratio":
		first, last = -5, 4 // 3 % to 16 devices
	case "bytes":
		first, last = 26, 41 // 64 MiB to 2 TiB
	}
	for i := first << classicSchema; i <= last<<classicSchema; i++ {
		indexes = append(indexes, i)
	}
	return indexes
}

// eachClassic calls f with the upper bound and the cumulative count of each classic bucket but the
// last, +Inf. A bucket of the histogram counts in the first classic bucket that contains all of it.
func eachClassic(family *Family, h *distribution.Histogram, f func(bound float64, count uint64)) {
	type bucket struct {
		bound float64
		count uint64
	}
	var buckets []bucket
	for index, count := range h.Buckets() {
		buckets = append(buckets, bucket{distribution.Bound(h.Schema(), index), count})
	}
	count := h.Zero()
	for _, index := range classicBounds(family) {
		bound := distribution.Bound(classicSchema, index)
		for len(buckets) > 0 && buckets[0].bound <= bound {
			count += buckets[0].count
			buckets = buckets[1:]
		}
		f(bound, count)
	}
}

// histogram appends the samples of a classic histogram. Without buckets, it has that of all.
func (t textFormat) histogram(
	body []byte, f *Family, l *labels, h *distribution.Histogram, born int64, classic bool,
) []byte {
	bucket := func(bound float64, count uint64) {
		body = append(append(body, f.Name...), "_bucket{"...)
		if !l.empty() {
			body = append(l.appendText(body), ',')
		}
		body = t.appendFloat(append(body, `le="`...), bound)
		body = append(strconv.AppendUint(append(body, `"} `...), count, 10), '\n')
	}
	switch {
	case classic:
		eachClassic(f, h, bucket)
	case !f.Summed:
		return body
	}
	bucket(math.Inf(1), h.Count())
	body = append(appendName(body, f.Name+"_sum", l), ' ')
	body = append(t.appendFloat(body, h.Sum()), '\n')
	body = append(appendName(body, f.Name+"_count", l), ' ')
	body = append(strconv.AppendUint(body, h.Count(), 10), '\n')
	return t.appendCreated(body, f, l, born)
}

// histogram appends an io.prometheus.client.Histogram: sample_count (1), sample_sum (2), bucket (3)
// of classic ones, schema (5), zero_threshold (6), zero_count (7), positive_span (12),
// positive_delta (13) and created_timestamp (15).
func (protobufFormat) histogram(
	body []byte, f *Family, l *labels, h *distribution.Histogram, born int64, classic bool,
) []byte {
	var room [1024]byte
	m := protowire.AppendVarint(protowire.AppendTag(room[:0], 1, protowire.VarintType), h.Count())
	m = protowire.AppendFixed64(protowire.AppendTag(m, 2, protowire.Fixed64Type), math.Float64bits(h.Sum()))
	if classic {
		m = appendClassicBuckets(m, f, h)
	}
	m = protowire.AppendTag(m, 5, protowire.VarintType)
	m = protowire.AppendVarint(m, protowire.EncodeZigZag(int64(h.Schema())))
	m = protowire.AppendTag(m, 6, protowire.Fixed64Type)
	m = protowire.AppendFixed64(m, math.Float64bits(distribution.ZeroThreshold))
	m = protowire.AppendVarint(protowire.AppendTag(m, 7, protowire.VarintType), h.Zero())
	m = appendCreated(appendBuckets(m, h), 15, born)
	return appendMetric(body, l, 7, m)
}

// appendClassicBuckets appends Buckets of cumulative_count (1) and upper_bound (2).
func appendClassicBuckets(m []byte, f *Family, h *distribution.Histogram) []byte {
	eachClassic(f, h, func(bound float64, count uint64) {
		var room [24]byte
		b := protowire.AppendVarint(protowire.AppendTag(room[:0], 1, protowire.VarintType), count)
		b = protowire.AppendFixed64(protowire.AppendTag(b, 2, protowire.Fixed64Type), math.Float64bits(bound))
		m = protowire.AppendBytes(protowire.AppendTag(m, 3, protowire.BytesType), b)
	})
	return m
}

// maxGap is the largest number of empty buckets within a span, as in client_golang.
const maxGap = 2

// appendBuckets appends the spans, and each bucket's count as the difference to the one before. The
// differences are packed into one field, which saves a byte for each. Every parser of protobuf must
// accept this (https://protobuf.dev/programming-guides/encoding/#packed).
func appendBuckets(m []byte, h *distribution.Histogram) []byte {
	var room [3 * distribution.MaxBuckets]byte
	deltas := room[:0] // written after all spans
	offset, length, next, before := 0, 0, 0, uint64(0)
	for index, count := range h.Buckets() {
		if gap := index - next; length == 0 || gap > maxGap {
			m = appendSpan(m, offset, length)
			offset, length = gap, 1
		} else {
			length += gap + 1
			for range gap {
				deltas, before = appendDelta(deltas, before, 0), 0
			}
		}
		deltas, before = appendDelta(deltas, before, count), count
		next = index + 1
	}
	if length == 0 {
		return m
	}
	m = appendSpan(m, offset, length)
	return protowire.AppendBytes(protowire.AppendTag(m, 13, protowire.BytesType), deltas)
}

// appendSpan appends a BucketSpan of offset (1) and length (2), unless it is empty.
func appendSpan(m []byte, offset, length int) []byte {
	if length == 0 {
		return m
	}
	var room [2 * (1 + binary.MaxVarintLen32)]byte
	span := protowire.AppendVarint(
		protowire.AppendTag(room[:0], 1, protowire.VarintType), protowire.EncodeZigZag(int64(offset)),
	)
	span = protowire.AppendVarint(protowire.AppendTag(span, 2, protowire.VarintType), uint64(length))
	return protowire.AppendBytes(protowire.AppendTag(m, 12, protowire.BytesType), span)
}

func appendDelta(deltas []byte, before, count uint64) []byte {
	delta := protowire.EncodeZigZag(int64(count) - int64(before))
	if delta < 0x80 { // most are
		return append(deltas, byte(delta))
	}
	return protowire.AppendVarint(deltas, delta)
}

package exposition

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
)

// format is one of the formats that Prometheus accepts. The encoders of prometheus/common/expfmt
// write the same bytes, which tests check, but take 2.4 to 2.7 times as long (make bench
// BENCH=Scrape): they check and escape each name and label again for each sample.
type format interface {
	// sample appends a sample to the body of its family. born is the created timestamp in nanoseconds
	// of Unix time, 0 if there is none, as for gauges.
	sample(body []byte, f *Family, l *labels, value float64, born int64) []byte
	// histogram appends a distribution. Only a format with native histograms has more than the sum and
	// the count without the classic buckets.
	histogram(body []byte, f *Family, l *labels, h *distribution.Histogram, born int64, classic bool) []byte
	// family returns what precedes and follows the samples of a family, which have size bytes.
	family(f *Family, size int) (head, tail []byte)
	// end returns the end of an answer.
	end() []byte
}

// formatOf returns the format for a negotiated one. The default is text.
func formatOf(f expfmt.Format, created bool) format {
	switch f.FormatType() {
	case expfmt.TypeProtoDelim:
		return protobufFormat{}
	case expfmt.TypeOpenMetrics:
		return textFormat{open: true, created: created}
	default:
		return textFormat{}
	}
}

// textFormat is the text format 0.0.4, or that of OpenMetrics. If created is set, each counter is
// followed by a line with its created time.
type textFormat struct{ open, created bool }

func (t textFormat) sample(body []byte, f *Family, l *labels, value float64, born int64) []byte {
	body = append(appendName(body, f.Name, l), ' ')
	body = append(t.appendFloat(body, value), '\n')
	return t.appendCreated(body, f, l, born)
}

// appendCreated appends the line with a created time, if it is wanted and known.
func (t textFormat) appendCreated(body []byte, f *Family, l *labels, born int64) []byte {
	if !t.created || born == 0 {
		return body
	}
	body = append(appendName(body, t.name(f)+"_created", l), ' ')
	return append(t.appendFloat(body, float64(born)/1e9), '\n')
}

func (t textFormat) family(f *Family, _ int) (head, tail []byte) {
	name := t.name(f)
	head = appendComment(nil, "HELP", name, f.Help, t.open)
	head = appendComment(head, "TYPE", name, f.kind(), t.open)
	if t.open && f.Unit != "" {
		head = appendComment(head, "UNIT", name, f.Unit, true)
	}
	return head, nil
}

func (t textFormat) end() []byte {
	if t.open {
		return []byte("# EOF\n")
	}
	return nil
}

// name is the family's name; in OpenMetrics, without the suffix of a counter's samples.
func (t textFormat) name(f *Family) string {
	if t.open && f.Type == driver.Counter {
		return strings.TrimSuffix(f.Name, "_total")
	}
	return f.Name
}

// appendComment appends a line about a family. OpenMetrics escapes quotes in it, the text format
// does not.
func appendComment(out []byte, keyword, name, text string, quotes bool) []byte {
	out = append(append(append(out, "# "...), keyword...), ' ')
	out = append(append(out, name...), ' ')
	return append(appendEscaped(out, text, quotes), '\n')
}

func appendEscaped(out []byte, s string, quotes bool) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\n':
			out = append(out, `\n`...)
		case c == '\\', c == '"' && quotes:
			out = append(out, '\\', c)
		default:
			out = append(out, c)
		}
	}
	return out
}

func appendName(out []byte, name string, l *labels) []byte {
	out = append(out, name...)
	if l.empty() {
		return out
	}
	return append(l.appendText(append(out, '{')), '}')
}

// appendFloat appends a number in the fewest digits that represent it exactly; in OpenMetrics, with
// a point or an exponent, which it requires of floats. Most numbers are small and whole.
func (t textFormat) appendFloat(out []byte, v float64) []byte {
	start := len(out)
	if v == math.Trunc(v) && math.Abs(v) < 1e6 {
		out = strconv.AppendInt(out, int64(v), 10)
	} else {
		out = strconv.AppendFloat(out, v, 'g', -1, 64)
	}
	if t.open && !bytes.ContainsAny(out[start:], ".eNI") {
		out = append(out, ".0"...)
	}
	return out
}

// protobufFormat writes io.prometheus.client.MetricFamily messages, each after its length. The
// field numbers are those of prometheus/client_model's metrics.proto.
type protobufFormat struct{}

func (protobufFormat) sample(body []byte, f *Family, l *labels, value float64, born int64) []byte {
	var room [40]byte
	field, message := protowire.Number(2), appendValue(room[:0], value) // gauge
	if f.Type == driver.Counter {
		field, message = 3, appendCreated(message, 3, born)
	}
	return appendMetric(body, l, field, message)
}

// appendMetric appends field 4 of a MetricFamily: a Metric with its labels and its value.
func appendMetric(body []byte, l *labels, field protowire.Number, message []byte) []byte {
	l.makeProtobuf()
	size := l.sizeProtobuf() + 1 + protowire.SizeBytes(len(message))
	body = protowire.AppendVarint(protowire.AppendTag(body, 4, protowire.BytesType), uint64(size))
	body = l.appendProtobuf(body)
	return protowire.AppendBytes(protowire.AppendTag(body, field, protowire.BytesType), message)
}

// appendValue appends field 1 of a Gauge or Counter.
func appendValue(message []byte, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(message, 1, protowire.Fixed64Type), math.Float64bits(v))
}

// appendCreated appends the created time, if there is one, to a Counter (field 3) or a Histogram
// (field 15), as a google.protobuf.Timestamp of seconds (1) and nanos (2).
func appendCreated(message []byte, field protowire.Number, born int64) []byte {
	if born == 0 {
		return message
	}
	var room [20]byte
	stamp := room[:0]
	at := time.Unix(0, born)
	if s := at.Unix(); s != 0 {
		stamp = protowire.AppendVarint(protowire.AppendTag(stamp, 1, protowire.VarintType), uint64(s))
	}
	if n := at.Nanosecond(); n != 0 {
		stamp = protowire.AppendVarint(protowire.AppendTag(stamp, 2, protowire.VarintType), uint64(n))
	}
	return protowire.AppendBytes(protowire.AppendTag(message, field, protowire.BytesType), stamp)
}

func (protobufFormat) family(f *Family, size int) (head, tail []byte) {
	kind := uint64(1) // GAUGE
	switch {
	case f.Histogram:
		kind = 4
	case f.Type == driver.Counter:
		kind = 0
	}
	head = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), f.Name)
	head = protowire.AppendString(protowire.AppendTag(head, 2, protowire.BytesType), f.Help)
	head = protowire.AppendVarint(protowire.AppendTag(head, 3, protowire.VarintType), kind)
	if f.Unit != "" {
		tail = protowire.AppendString(protowire.AppendTag(nil, 5, protowire.BytesType), f.Unit)
	}
	return append(protowire.AppendVarint(nil, uint64(len(head)+size+len(tail))), head...), tail
}

func (protobufFormat) end() []byte { return nil }

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

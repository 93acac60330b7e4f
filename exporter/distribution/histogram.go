package distribution

import (
	"cmp"
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"slices"
)

const (
	// Schema is the resolution of a new histogram: a bucket is 9 % wide.
	Schema = 3
	// MaxBuckets is the largest number of buckets above [ZeroThreshold]. With more, each two buckets
	// are merged, as in Prometheus.
	MaxBuckets = 64
	// ZeroThreshold is the upper bound of the zero bucket, in the unit of the values.
	ZeroThreshold = 1.0 / 1024

	minSchema = -4 // the coarsest resolution that Prometheus knows
)

// Histogram is the distribution of non-negative values, weighted by the seconds for which they
// applied. The zero value is empty and ready to use. It is not safe for concurrent use.
//
// Native histograms have integer counts. So a bucket counts whole seconds. The counts never fall,
// and their sum is the whole seconds of all observations. A second that is spread over several
// buckets is counted in the bucket that lacks most. Therefore each bucket is exact to a few
// seconds, and their sum to one second.
type Histogram struct {
	buckets []bucket // by index
	zero    bucket
	pending int32   // milliseconds that no bucket has counted: the sum of lacks
	carry   float64 // less than a millisecond, in milliseconds
	sum     float64
	max     float64
	coarser int8 // the present resolution is Schema minus this
}

// bucket is the time of the values in a bucket: count seconds plus lacks milliseconds. lacks is
// negative if a second was counted early.
type bucket struct {
	count uint32
	index int16
	lacks int16
}

func (b *bucket) milliseconds() int64 { return int64(b.count)*1000 + int64(b.lacks) }

// Observe adds a value that applied for some seconds. It ignores negative and infinite values, NaN,
// and times that are not positive and finite.
func (h *Histogram) Observe(value, seconds float64) {
	if !(value >= 0 && seconds > 0) || math.IsInf(value, 0) || math.IsInf(seconds, 0) {
		return
	}
	h.sum += value * seconds
	h.max = max(h.max, value)
	h.carry += seconds * 1000
	whole := math.Floor(h.carry)
	h.carry -= whole
	h.bucket(value).add(h, int64(whole))
	h.count()
	h.limit()
}

// add adds milliseconds to the bucket.
func (b *bucket) add(h *Histogram, ms int64) {
	b.count += uint32(ms / 1000)
	b.lacks += int16(ms % 1000)
	h.pending += int32(ms % 1000)
}

// count assigns each whole pending second to the bucket that lacks most.
func (h *Histogram) count() {
	for ; h.pending >= 1000; h.pending -= 1000 {
		most := &h.zero
		for i := range h.buckets {
			if h.buckets[i].lacks > most.lacks {
				most = &h.buckets[i]
			}
		}
		most.count++
		most.lacks -= 1000
	}
}

// bucket returns the bucket of a value, and creates it if necessary.
func (h *Histogram) bucket(value float64) *bucket {
	if value <= ZeroThreshold {
		return &h.zero
	}
	index := coarse(indexOf(value), h.coarser)
	i, found := slices.BinarySearchFunc(h.buckets, index, func(b bucket, index int16) int {
		return cmp.Compare(b.index, index)
	})
	if !found {
		h.buckets = slices.Insert(h.buckets, i, bucket{index: index})
	}
	return &h.buckets[i]
}

// indexOf returns the index, at the finest resolution, of the bucket of a value above 0.
func indexOf(value float64) int16 {
	fraction, exponent := math.Frexp(value)
	bounds := bounds()
	i := 0
	for i < len(bounds) && bounds[i] < fraction {
		i++
	}
	return int16((exponent-1)*len(bounds) + i)
}

// bounds returns 2^(i/8-1): the upper bounds of the buckets from 0.5 to 1 at the finest resolution.
func bounds() [1 << Schema]float64 {
	return [...]float64{
		0.5, 0.5452538663326288, 0.5946035575013605, 0.6484197773255048,
		0.7071067811865475, 0.7711054127039704, 0.8408964152537144, 0.9170040432046711,
	}
}

// coarse returns a bucket's index at a resolution that was halved the given number of times.
func coarse(index int16, times int8) int16 { return (index + 1<<times - 1) >> times }

// limit lowers the resolution while there are too many buckets.
func (h *Histogram) limit() {
	for len(h.buckets) > MaxBuckets && h.Schema() > minSchema {
		h.coarsen()
	}
}

// coarsen halves the resolution.
func (h *Histogram) coarsen() {
	h.coarser++
	n := 0
	for _, b := range h.buckets {
		b.index = coarse(b.index, 1)
		if n > 0 && h.buckets[n-1].index == b.index {
			h.buckets[n-1].count += b.count
			h.buckets[n-1].lacks += b.lacks
			continue
		}
		h.buckets[n] = b
		n++
	}
	h.buckets = h.buckets[:n]
}

// Clone returns a copy.
func (h *Histogram) Clone() Histogram {
	c := *h
	c.buckets = slices.Clone(h.buckets)
	return c
}

// Len returns the number of buckets above [ZeroThreshold].
func (h *Histogram) Len() int { return len(h.buckets) }

// Seconds returns the time of all observations.
func (h *Histogram) Seconds() float64 { return float64(h.milliseconds())/1000 + h.carry/1000 }

func (h *Histogram) milliseconds() int64 {
	ms := h.zero.milliseconds()
	for i := range h.buckets {
		ms += h.buckets[i].milliseconds()
	}
	return ms
}

// Sum returns the sum of value times seconds: the integral over time.
func (h *Histogram) Sum() float64 { return h.sum }

// Max returns the highest value; 0 without observations.
func (h *Histogram) Max() float64 { return h.max }

// Quantile returns a value that was not exceeded in the part q of the time, from 0 to 1: the upper
// bound of its bucket, or Max if that is lower. It exceeds the true quantile by less than the width
// of a bucket, and is never below. It is NaN without observations.
func (h *Histogram) Quantile(q float64) float64 {
	total := h.milliseconds()
	if total <= 0 {
		return math.NaN()
	}
	rank := q * float64(total)
	below := h.zero.milliseconds()
	if float64(below) >= rank && below > 0 {
		return min(ZeroThreshold, h.max)
	}
	for i := range h.buckets {
		below += h.buckets[i].milliseconds()
		if float64(below) >= rank && below > 0 {
			return min(Bound(h.Schema(), int(h.buckets[i].index)), h.max)
		}
	}
	return h.max
}

// Schema returns the present resolution.
func (h *Histogram) Schema() int { return Schema - int(h.coarser) }

// Bound returns the upper bound of a bucket at a resolution from -4 to [Schema].
func Bound(schema, index int) float64 {
	finest := index << (Schema - schema)
	return math.Ldexp(bounds()[finest&(1<<Schema-1)], finest>>Schema+1)
}

// Count returns the whole seconds of all observations, including the zero bucket.
func (h *Histogram) Count() uint64 {
	n := uint64(h.zero.count)
	for i := range h.buckets {
		n += uint64(h.buckets[i].count)
	}
	return n
}

// Zero returns the whole seconds of values up to [ZeroThreshold].
func (h *Histogram) Zero() uint64 { return uint64(h.zero.count) }

// Buckets returns the indexes and whole seconds of the buckets that are not empty, in order.
func (h *Histogram) Buckets() iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		for _, b := range h.buckets {
			if b.count > 0 && !yield(int(b.index), uint64(b.count)) {
				return
			}
		}
	}
}

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

// Growing is a histogram for frequent observations and cheap, immutable views. The zero value is
// empty and ready to use. It is not safe for concurrent use.
type Growing struct {
	base  *Histogram    // shared with views, and so never changed
	since []observation // further observations; elements that views share are never changed
}

// observation is a value, and the time in seconds for which it applied.
type observation struct{ value, seconds float64 }

// maxSince is the number of observations after which a new base is made.
const maxSince = 8

// NewGrowing returns a histogram that begins with h, which must not be changed afterwards.
func NewGrowing(h *Histogram) Growing { return Growing{base: h} }

// Observe is [Histogram.Observe].
func (g *Growing) Observe(value, seconds float64) {
	if len(g.since) == maxSince {
		var next struct {
			base  Histogram
			since [maxSince]observation
		}
		g.View().Read(&next.base)
		g.base, g.since = &next.base, next.since[:0]
	}
	if g.since == nil {
		g.since = make([]observation, 0, maxSince)
	}
	g.since = append(g.since, observation{value, seconds})
}

// View returns the present state.
func (g *Growing) View() View { return View{g.base, slices.Clip(g.since)} }

// View is the state of a [Growing] at some time. It is immutable, and safe for concurrent use.
type View struct {
	base  *Histogram // nil: an empty one
	since []observation
}

// ViewOf returns a view of a histogram, which must not be changed afterwards.
func ViewOf(h *Histogram) View { return View{base: h} }

// Histogram returns a copy of the histogram.
func (v View) Histogram() *Histogram {
	h := &Histogram{}
	v.Read(h)
	return h
}

// Read copies the histogram to h, and reuses the memory of h.
func (v View) Read(h *Histogram) {
	room := h.buckets[:0]
	*h = Histogram{}
	if v.base != nil {
		*h = *v.base
	}
	h.buckets = append(room, h.buckets...)
	for _, o := range v.since {
		h.Observe(o.value, o.seconds)
	}
}

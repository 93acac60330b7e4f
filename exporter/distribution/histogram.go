package distribution

import (
	"cmp"
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

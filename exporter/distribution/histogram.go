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
	// MaxBuckets is the largest number of buckets above [ZeroThreshold]. Beyond it, buckets become
	// twice as wide (on a logarithmic scale), as in Prometheus.
	MaxBuckets = 64
	// ZeroThreshold is the upper bound of the zero bucket, in the unit of the values.
	ZeroThreshold = 1.0 / 1024

	minSchema = -4 // the coarsest resolution that Prometheus knows
)

// Histogram is a distribution of values that are not negative, by the seconds for which they stood.
// The zero value is empty and ready to use. It is used by one goroutine at a time.
//
// Native histograms count in whole numbers. The counts of the buckets are whole seconds, which
// never fall, and their sum is the whole seconds of all observations. A second that several buckets
// have parts of counts for that of them which lacks most. So each bucket is right to a few seconds
// at any time, and all together to one.
type Histogram struct {
	buckets []bucket // by index
	zero    bucket
	pending int32   // milliseconds that no bucket counts yet: the sum of what the buckets lack
	carry   float64 // of the next millisecond, in milliseconds
	sum     float64
	max     float64
	coarser int8 // the resolution is Schema less this
}

// bucket is the time for which values of one bucket stood: count seconds and lacks milliseconds,
// which are negative if a second was counted before it was complete.
type bucket struct {
	count uint32
	index int16
	lacks int16
}

func (b *bucket) milliseconds() int64 { return int64(b.count)*1000 + int64(b.lacks) }

// Observe adds a value that stood for some seconds. Values that are negative or not finite, and
// times that are not positive and finite, are ignored.
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

// count counts the whole seconds that are pending, each for the bucket that lacks most.
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

// bucket returns the bucket of a value, a new one if there is none.
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

// indexOf returns the index of the bucket of a value above 0 at the finest resolution.
func indexOf(value float64) int16 {
	fraction, exponent := math.Frexp(value)
	bounds := bounds()
	i := 0
	for i < len(bounds) && bounds[i] < fraction {
		i++
	}
	return int16((exponent-1)*len(bounds) + i)
}

// bounds returns 2^(i/8-1), the upper bounds of the buckets from 0.5 on at the finest resolution.
func bounds() [1 << Schema]float64 {
	return [...]float64{
		0.5, 0.5452538663326288, 0.5946035575013605, 0.6484197773255048,
		0.7071067811865475, 0.7711054127039704, 0.8408964152537144, 0.9170040432046711,
	}
}

// coarse returns the index of a bucket at a resolution that was halved some times.
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

// Max returns the highest value; 0 if there is none.
func (h *Histogram) Max() float64 { return h.max }

// Quantile returns the value below or at which the values were for the part q of the time, 0 to 1:
// the upper bound of its bucket, or the highest value if that is less. It is never below the true
// quantile, and above it by less than the width of a bucket. It is NaN if nothing was observed.
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

// Bound returns the upper bound of a bucket of a resolution from -4 to [Schema].
func Bound(schema, index int) float64 {
	finest := index << (Schema - schema)
	return math.Ldexp(bounds()[finest&(1<<Schema-1)], finest>>Schema+1)
}

// Count returns the whole seconds of all observations: those of the zero bucket and of
// [Histogram.Buckets].
func (h *Histogram) Count() uint64 {
	n := uint64(h.zero.count)
	for i := range h.buckets {
		n += uint64(h.buckets[i].count)
	}
	return n
}

// Zero returns the whole seconds of values up to [ZeroThreshold].
func (h *Histogram) Zero() uint64 { return uint64(h.zero.count) }

// Buckets returns the indexes and whole seconds of the buckets that have any, in order.
func (h *Histogram) Buckets() iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		for _, b := range h.buckets {
			if b.count > 0 && !yield(int(b.index), uint64(b.count)) {
				return
			}
		}
	}
}

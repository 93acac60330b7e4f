package distribution_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// observation is a value and the seconds for which it stood.
type observation struct{ value, seconds float64 }

// model is the plain list of observations.
type model []observation

func (m model) seconds() float64 {
	n := 0.0
	for _, o := range m {
		n += o.seconds
	}
	return n
}

func (m model) sum() float64 {
	n := 0.0
	for _, o := range m {
		n += o.value * o.seconds
	}
	return n
}

func (m model) max() float64 {
	n := 0.0
	for _, o := range m {
		n = max(n, o.value)
	}
	return n
}

// quantile returns the lowest value below or at which the values were for the part q of the time.
// It counts whole milliseconds, since the seconds of each value are not exact as binary fractions.
func (m model) quantile(q float64) float64 {
	sorted := slices.SortedFunc(slices.Values(m), func(a, b observation) int {
		if a.value < b.value {
			return -1
		}
		return 1
	})
	total := 0
	for _, o := range m {
		total += milliseconds(o.seconds)
	}
	rank, below := q*float64(total), 0
	for _, o := range sorted {
		if below += milliseconds(o.seconds); float64(below) >= rank {
			return o.value
		}
	}
	return m.max()
}

func milliseconds(seconds float64) int { return int(math.Round(seconds * 1000)) }

// within returns the seconds of values above low and up to high.
func (m model) within(low, high float64) float64 {
	n := 0.0
	for _, o := range m {
		if o.value > low && o.value <= high {
			n += o.seconds
		}
	}
	return n
}

// values draws readings as gauges have them, and those at the bounds of buckets.
func values() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.Float64Range(0, 1),
		rapid.Map(rapid.IntRange(0, 100), func(percent int) float64 { return float64(percent) / 100 }),
		rapid.Float64Range(50, 900),
		rapid.Map(rapid.IntRange(0, 80*1024), func(mib int) float64 { return float64(mib) * (1 << 20) }),
		rapid.Map(rapid.IntRange(-12, 42), func(n int) float64 { return math.Ldexp(1, n) }),
		rapid.Map(rapid.IntRange(-12, 42), func(n int) float64 { return math.Nextafter(math.Ldexp(1, n), 1e300) }),
		rapid.Just(distribution.ZeroThreshold),
		rapid.Map(rapid.IntRange(-60, 60), func(n int) float64 { return distribution.Bound(distribution.Schema, n) }),
	)
}

// observations draws a list, sometimes of so many magnitudes that the resolution must be lowered.
func observations(times *rapid.Generator[float64]) *rapid.Generator[model] {
	return rapid.Custom(func(t *rapid.T) model {
		list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) observation {
			return observation{values().Draw(t, "value"), times.Draw(t, "seconds")}
		}), 0, 100).Draw(t, "observations")
		from := rapid.IntRange(-100, 300).Draw(t, "from")
		for n := range rapid.SampledFrom([]int{0, 0, 50, 100, 300}).Draw(t, "magnitudes") {
			list = append(list, observation{math.Exp2(float64(from+n) / 8), times.Draw(t, "seconds")})
		}
		return list
	})
}

func durations() *rapid.Generator[float64] {
	return rapid.Map(rapid.OneOf(rapid.IntRange(1, 3000), rapid.Just(500), rapid.Just(30000)),
		func(ms int) float64 { return float64(ms) / 1000 })
}

func histogramOf(m model) *distribution.Histogram {
	var h distribution.Histogram
	for _, o := range m {
		h.Observe(o.value, o.seconds)
	}
	return &h
}

// library returns the native histogram of client_golang of the same values, each for one second.
func library(t *rapid.T, m model) *dto.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: distribution.MaxBuckets,
		NativeHistogramZeroThreshold: distribution.ZeroThreshold,
	})
	for _, o := range m {
		h.Observe(o.value)
	}
	var out dto.Metric
	must.Do(t, h.Write(&out))
	return out.GetHistogram()
}

// TestLibrary has client_golang count the same values: it must have the same resolution and the
// same buckets.
func TestLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := observations(rapid.Just(1.0)).Draw(t, "seconds")
		got, want := histogramOf(m), library(t, m)
		if int32(got.Schema()) != want.GetSchema() || got.Zero() != want.GetZeroCount() ||
			got.Count() != want.GetSampleCount() || !near(got.Sum(), want.GetSampleSum()) {
			t.Fatalf("schema %d, zero %d, count %d, sum %v; client_golang: %v",
				got.Schema(), got.Zero(), got.Count(), got.Sum(), want)
		}
		if diff := cmp.Diff(bucketsOf(want), bucketsIn(got)); diff != "" {
			t.Errorf("buckets (-client_golang +ours):\n%s", diff)
		}
	})
}

func bucketsIn(h *distribution.Histogram) map[int]int64 {
	out := map[int]int64{}
	for index, seconds := range h.Buckets() {
		out[index] = int64(seconds)
	}
	return out
}

func bucketsOf(h *dto.Histogram) map[int]int64 {
	out := map[int]int64{}
	index, delta, count := 0, 0, int64(0)
	for _, span := range h.GetPositiveSpan() {
		index += int(span.GetOffset())
		for range span.GetLength() {
			if count += h.GetPositiveDelta()[delta]; count > 0 {
				out[index] = count
			}
			index++
			delta++
		}
	}
	return out
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

// TestModel compares with the list of all observations.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := observations(durations()).Draw(t, "list")
		h := histogramOf(m)
		check(t, h, m)
		width := math.Exp2(math.Ldexp(1, -h.Schema()))
		for index, seconds := range h.Buckets() {
			exact := m.within(distribution.Bound(h.Schema(), index-1), distribution.Bound(h.Schema(), index))
			expect.That(t, math.Abs(exact-float64(seconds)) <= 6, "bucket %d counts %d s of %v s", index, seconds, exact)
		}
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 1} {
			got, want := h.Quantile(q), m.quantile(q)
			switch {
			case len(m) == 0:
				expect.That(t, math.IsNaN(got), "quantile %v of nothing is %v", q, got)
			case got < want*(1-1e-12) || got > max(distribution.ZeroThreshold, want*width*(1+1e-12)):
				t.Errorf("quantile %v is %v, want %v to %v", q, got, want, want*width)
			}
		}
	})
}

// check compares what does not depend on the buckets.
func check(t *rapid.T, h *distribution.Histogram, m model) {
	if got, want := h.Seconds(), m.seconds(); !near(got, want) {
		t.Errorf("%v seconds, want %v", got, want)
	}
	if got, want := float64(h.Count()), m.seconds(); got > want+1e-6 || got < want-1-1e-6 {
		t.Errorf("counts %v of %v seconds", got, want)
	}
	if got, want := h.Sum(), m.sum(); !near(got, want) {
		t.Errorf("sum %v, want %v", got, want)
	}
	if got, want := h.Max(), m.max(); got != want {
		t.Errorf("highest %v, want %v", got, want)
	}
	expect.That(t, h.Len() <= distribution.MaxBuckets, "%d buckets", h.Len())
}

// TestNeverFalls: the count of a bucket never falls as long as the resolution stays.
func TestNeverFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h distribution.Histogram
		before, schema := bucketsIn(&h), h.Schema()
		for _, o := range observations(durations()).Draw(t, "list") {
			h.Observe(o.value, o.seconds)
			now := bucketsIn(&h)
			for index, seconds := range before {
				if h.Schema() == schema && now[index] < seconds {
					t.Fatalf("bucket %d fell from %d to %d s", index, seconds, now[index])
				}
			}
			before, schema = now, h.Schema()
		}
	})
}

// TestFractions: fractions of a millisecond are counted later.
func TestFractions(t *testing.T) {
	var h, other distribution.Histogram
	for range 3001 {
		h.Observe(1, 1.0/3000)
		other.Observe(1, 2.0/3000)
	}
	expect.That(t, h.Count() == 1 && other.Count() == 2, "count %d and %d s, want 1 and 2", h.Count(), other.Count())
	for range 3001 {
		h.Observe(1, 1.0/3000)
	}
	got := h.Seconds()
	expect.That(t, h.Count() == 2 && near(got, 3001.0*2/3000), "%v s, counted %d", got, h.Count())
}

// TestClone: a copy and the original do not change each other.
func TestClone(t *testing.T) {
	h := histogramOf(model{{1, 2}, {2, 3}})
	c := h.Clone()
	h.Observe(1, 10)
	c.Observe(2, 4)
	expect.Equal(t, "the copy", map[int]int64{0: 2, 8: 7}, bucketsIn(&c))
	expect.Equal(t, "the original", map[int]int64{0: 12, 8: 3}, bucketsIn(h))
}

// TestGrowing: each view is the histogram of the observations before it, whatever is observed
// later.
func TestGrowing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin, m := observations(durations()).Draw(t, "begin"), observations(durations()).Draw(t, "list")
		g := distribution.NewGrowing(histogramOf(begin))
		want := histogramOf(begin)
		views, wants := []distribution.View{g.View()}, []string{fmt.Sprint(*want)}
		for _, o := range m {
			g.Observe(o.value, o.seconds)
			want.Observe(o.value, o.seconds)
			views, wants = append(views, g.View()), append(wants, fmt.Sprint(*want))
		}
		for n := range views {
			got := fmt.Sprint(*views[n].Histogram())
			must.That(t, got == wants[n], "after %d: %s, want %s", n, got, wants[n])
		}
	})
	var empty distribution.Growing
	if h := empty.View().Histogram(); h.Seconds() != 0 {
		t.Errorf("an empty one has %v s", h.Seconds())
	}
}

// TestIgnored: invalid values and times count nothing.
func TestIgnored(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	h := histogramOf(model{{-1, 1}, {nan, 1}, {inf, 1}, {1, 0}, {1, -1}, {1, nan}, {1, inf}})
	expect.That(t, h.Seconds() == 0 && h.Len() == 0 && h.Sum() == 0 && h.Max() == 0,
		"counts %v s in %d buckets, sum %v, highest %v", h.Seconds(), h.Len(), h.Sum(), h.Max())
}

// TestCoarsest has values of all magnitudes: Prometheus knows no resolution below -4.
func TestCoarsest(t *testing.T) {
	var h distribution.Histogram
	for n := -1000; n < 1024; n++ {
		h.Observe(math.Ldexp(1, n), 1)
	}
	expect.That(t, h.Schema() == -4 && h.Count() == 2024, "schema %d, %d s", h.Schema(), h.Count())
}

func BenchmarkObserve(b *testing.B) {
	b.ReportAllocs()
	var h distribution.Histogram
	for i := range b.N {
		h.Observe(float64(i%101)/100, 0.999)
	}
	b.ReportMetric(float64(h.Len()), "buckets")
}

// A written histogram is read, and continues as before.
func TestBinary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h, again distribution.Histogram
		observe := func(of ...*distribution.Histogram) {
			for range rapid.IntRange(0, 200).Draw(t, "observations") {
				value := rapid.Float64Range(0, 1e12).Draw(t, "value")
				seconds := rapid.Float64Range(0, 5).Draw(t, "seconds")
				for _, h := range of {
					h.Observe(value, seconds)
				}
			}
		}
		observe(&h)
		b := must.Get(h.AppendBinary(nil))(t)
		must.Do(t, again.UnmarshalBinary(b))
		observe(&h, &again)
		want, _ := h.AppendBinary(nil)
		got, _ := again.AppendBinary(nil)
		expect.That(t, bytes.Equal(got, want), "it goes on as %x, want %x", got, want)
	})
}

func FuzzUnmarshalBinary(f *testing.F) {
	var h distribution.Histogram
	h.Observe(3, 1.5)
	b, _ := h.AppendBinary(nil)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h distribution.Histogram
		if h.UnmarshalBinary(b) == nil {
			h.Observe(1, 1)
		}
	})
}

func TestMain(m *testing.M) { exportertest.Main(m) }

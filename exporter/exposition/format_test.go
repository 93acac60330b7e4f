package exposition

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func powerFamily() *Family {
	spec := driver.Power.Spec()
	f := distributionFamily(&spec)
	return &f
}

// randomHistogram draws one of whole seconds, with gaps between its buckets.
func randomHistogram(t *rapid.T) *distribution.Histogram {
	var h distribution.Histogram
	index := rapid.IntRange(-90, 200).Draw(t, "first")
	for range rapid.IntRange(0, 70).Draw(t, "buckets") {
		h.Observe(distribution.Bound(distribution.Schema, index), float64(rapid.IntRange(1, 1e6).Draw(t, "seconds")))
		index += rapid.SampledFrom([]int{1, 1, 1, 2, 3, 4, 50}).Draw(t, "gap")
	}
	return &h
}

// A distribution is written as client_golang writes its native histogram of the same buckets, but
// for the differences of the counts, which are one field.
func TestNativeHistogram(t *testing.T) {
	born := time.Date(2026, 11, 22, 1, 2, 3, 4000, time.UTC)
	f, l := powerFamily(), (*labels)(nil).with("namespace", "team", "resourceclaim_name", "c0")
	desc := prometheus.NewDesc(f.Name, f.Help, []string{"namespace", "resourceclaim_name"}, nil)
	rapid.Check(t, func(t *rapid.T) {
		h := randomHistogram(t)
		buckets := map[int]int64{}
		for index, count := range h.Buckets() {
			buckets[index] = int64(count)
		}
		var metric dto.Metric
		library := prometheus.MustNewConstNativeHistogram(desc, h.Count(), h.Sum(), buckets, nil, h.Zero(),
			int32(h.Schema()), distribution.ZeroThreshold, born, "team", "c0")
		must.Do(t, library.Write(&metric))
		want := &dto.MetricFamily{
			Name: &f.Name, Help: &f.Help, Type: dto.MetricType_HISTOGRAM.Enum(), Unit: &f.Unit, Metric: []*dto.Metric{&metric},
		}
		var out bytes.Buffer
		must.Get(protodelim.MarshalTo(&out, want))(t)
		p := protobufFormat{}
		body := p.histogram(nil, f, l, h, born.UnixNano(), false)
		head, tail := p.family(f, len(body))
		written := slices.Concat(head, body, tail)
		got := &dto.MetricFamily{}
		must.Do(t, protodelim.UnmarshalFrom(bytes.NewReader(written), got))
		expect.Is(t, cmp.Diff(want, got, protocmp.Transform()), "", "not as client_golang writes it")
		if deltas := len(metric.Histogram.PositiveDelta); len(written) > out.Len()-deltas+6 {
			t.Errorf("%d bytes, client_golang %d with a tag for each of %d differences", len(written), out.Len(), deltas)
		}
	})
}

// Classic buckets count values at or below their bounds, and never more than there are.
func TestClassicBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := randomHistogram(t)
		last := uint64(0)
		eachClassic(powerFamily(), h, func(bound float64, count uint64) {
			want := h.Zero()
			for index, n := range h.Buckets() {
				if distribution.Bound(h.Schema(), index) <= bound {
					want += n
				}
			}
			expect.That(t, count == want && count >= last, "%d s up to %v, want %d", count, bound, want)
			last = count
		})
	})
}

// The classic buckets are few, and end at round numbers.
func TestClassicBounds(t *testing.T) {
	for quantity, want := range map[driver.Quantity][3]float64{
		driver.Utilization: {19, 1. / 32, 16}, driver.MemoryUsed: {31, 64 << 20, 2 << 40}, driver.Power: {25, 4, 16384},
	} {
		spec := quantity.Spec()
		f := distributionFamily(&spec)
		indexes := classicBounds(&f)
		got := [3]float64{
			float64(len(indexes)), distribution.Bound(classicSchema, indexes[0]),
			distribution.Bound(classicSchema, indexes[len(indexes)-1]),
		}
		expect.Is(t, got, want, "%s", f.Name)
	}
}

// Numbers are written as client_golang's encoder writes them.
func TestNumbers(t *testing.T) {
	whole := rapid.Map(rapid.Int64(), func(n int64) float64 { return float64(n) })
	small := rapid.Map(rapid.IntRange(-2e6, 2e6), func(n int) float64 { return float64(n) })
	special := rapid.SampledFrom([]float64{
		0, math.Copysign(0, -1), 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), 999999, 1e6, 1e21, 1e-5, math.MaxFloat64,
	})
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.Float64(), whole, small, special).Draw(t, "value")
		f := &dto.MetricFamily{
			Name: proto.String("m"), Type: dto.MetricType_GAUGE.Enum(),
			Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &value}}},
		}
		for kind, own := range map[expfmt.FormatType]format{
			expfmt.TypeTextPlain: textFormat{}, expfmt.TypeOpenMetrics: textFormat{open: true},
		} {
			var want bytes.Buffer
			must.Do(t, expfmt.NewEncoder(&want, expfmt.NewFormat(kind)).Encode(f))
			if got := string(
				own.sample(nil, &Family{Name: "m"}, nil, value, 0),
			); got != strings.TrimPrefix(want.String(), "# TYPE m gauge\n") {
				t.Errorf("%v is written %q, not as in %q", value, got, want.String())
			}
		}
	})
}

// Control characters do not reach a terminal, in no format. Lines of an annotation stay lines.
func TestControlCharacters(t *testing.T) {
	l := (*labels)(nil).with("a", "\x1b[2J\x00é\u009b1m\x7f\tb\nc")
	expect.Is(t, l.text, `a="`+"\ufffd[2J\ufffdé\ufffd1m\ufffd\tb"+`\nc"`, "text")
	l.makeProtobuf()
	wire := string(l.appendProtobuf(nil))
	if want := "\ufffd[2J\ufffdé\ufffd1m\ufffd\tb\nc"; !strings.Contains(wire, want) {
		t.Errorf("wire: %q, want %q", wire, want)
	}
}

package exposition

import (
	"bytes"
	"math"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/test/must"
)

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

package recorder

import (
	"encoding/json"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// Values are kept within the precision, smaller ones than a millionth as 0, and are absent where
// they are no numbers; a document has them with four digits.
func TestEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(
			rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), 0, 1, 0.5, -40, 300, 8e10, 1e-5, -1e12, 0x1p-20, 8.9e12}),
			rapid.Float64Range(-1e13, 1e13),
		)
		values := rapid.SliceOfN(value, 0, 200).Draw(t, "values")
		kept := NewValues(values)
		var again Values
		must.Do(t, json.Unmarshal(must.Get(json.Marshal(kept))(t), &again))
		for precision, got := range map[float64][]float64{Precision: kept.Floats(), 2 * Precision: again.Floats()} {
			must.That(t, len(got) == len(values), "%d values became %d", len(values), len(got))
			for i, v := range values {
				absent := math.IsNaN(v) || math.IsInf(v, 0)
				near := math.Abs(got[i]-v) <= precision*math.Abs(v) || got[i] == 0 && math.Abs(v) < 1e-6
				must.That(t, absent == math.IsNaN(got[i]) && (absent || near), "value %d is %v, was %v", i, got[i], v)
			}
		}
	})
}

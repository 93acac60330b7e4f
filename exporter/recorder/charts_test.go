package recorder

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A merged chart has the times of all charts in the windows, and for each time the values of the
// last chart that has it.
func TestMergedCharts(t *testing.T) {
	nan := math.NaN()
	begin := time.Unix(1_800_000_000, 0).UTC()
	at := func(second int) time.Time { return begin.Add(time.Duration(second) * time.Second) }
	chart := func(first int, of map[string][]float64) *Chart {
		c := &Chart{}
		for _, name := range slices.Sorted(maps.Keys(of)) {
			labels := map[string]string{"sensor": name}
			c.Series = append(c.Series, ChartSeries{Of: OfDevice, Quantity: "q", Labels: labels, Values: NewValues(of[name])})
			for len(c.Times) < len(of[name]) {
				c.Times = append(c.Times, at(first+len(c.Times)))
			}
		}
		return c
	}
	got := merged([]*Chart{
		chart(0, map[string][]float64{"a": {1, 2, 4, 8, 16}, "b": {32, nan, 64, 128, 256}}),
		chart(20, map[string][]float64{"never": {1}}),
		chart(3, map[string][]float64{"a": {nan, 512, 1024}, "c": {1, 2, 4}}),
		chart(9, map[string][]float64{"b": {8}}),
	}, [][2]time.Time{{at(1), at(4)}, {at(9), at(10)}})
	want := map[string][]float64{
		"a": {2, 4, nan, 512, nan}, "b": {nan, 64, 128, 256, 8}, "c": {nan, nan, 1, 2, nan},
	}
	values := map[string][]float64{}
	for _, s := range got.Series {
		values[s.Labels["sensor"]] = s.Values.Floats()
	}
	expect.Equal(t, "values", want, values, cmpopts.EquateNaNs())
	expect.Equal(t, "times", []time.Time{at(1), at(2), at(3), at(4), at(9)}, got.Times)
}

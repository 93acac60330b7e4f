package join_test

import (
	"math"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestDivideParent(t *testing.T) {
	const unknown = -1
	held := func(share, activity float64) join.Part {
		return join.Part{Share: share, Activity: activity, Held: true}
	}
	for name, tc := range map[string]struct {
		idle  float64
		parts []join.Part
		want  []float64
	}{
		"idle by share, the rest by activity and share": {
			0.2,
			[]join.Part{held(0.25, 1), held(0.5, 0.25), held(0.125, 0)},
			[]float64{0.2*0.25 + 0.8*0.25/0.375, 0.2*0.5 + 0.8*0.125/0.375, 0.2 * 0.125},
		},
		"the idle power is unknown":  {0, []join.Part{held(0.25, 1), held(0.25, 0)}, []float64{1, 0}},
		"all is idle":                {1, []join.Part{held(0.25, 0), held(0.5, 0)}, []float64{0.25, 0.5}},
		"drawn, though none is busy": {0, []join.Part{held(0.25, 0), held(0.5, 0)}, []float64{0.25, 0.5}},
		"no activity is known":       {0.5, []join.Part{held(0.25, unknown), held(0.5, unknown)}, []float64{0.25, 0.5}},
		"one activity is unknown": {
			0, []join.Part{held(0.25, unknown), held(0.25, 0.1), held(0.25, 0.3)}, []float64{0.25, 0.1875, 0.5625},
		},
		"active, and held by nobody": {
			0.5, []join.Part{held(0.5, 0.5), {Share: 0.5, Activity: 0.5}, {Share: 0.25}}, []float64{0.5, 0.5, 0},
		},
		"one that could be made":     {0, []join.Part{held(0.5, unknown), {Share: 1, Activity: unknown}}, []float64{0.5, 0}},
		"an unknown share":           {0.5, []join.Part{held(0, 1), held(0.5, 1)}, []float64{0, 0.75}},
		"shares of more than all":    {1, []join.Part{held(1, 0), held(1, 0)}, []float64{0.5, 0.5}},
		"the same, activity unknown": {0, []join.Part{held(1, unknown), held(1, 1)}, []float64{0.5, 0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			join.DivideParent(tc.parts, tc.idle)
			for i, want := range tc.want {
				got := tc.parts[i].Fraction
				expect.That(t, math.Abs(got-want) <= 1e-12, "partition %d has %v, want %v", i, got, want)
			}
		})
	}
}

package ledger

import (
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Two shares of a claim are one portion. The part of its own CPUs is known if those of both shares
// are.
func TestAddPortion(t *testing.T) {
	var a, b account
	for name, tc := range map[string]struct{ one, other, want float64 }{
		"both known":         {0.25, 0.5, 0.75},
		"no more than all":   {0.75, 0.5, 1},
		"the first unknown":  {unknownOwn, 0.5, unknownOwn},
		"the second unknown": {0.25, unknownOwn, unknownOwn},
	} {
		got := addPortion(nil, portion{&a, 0.25, join.Evenly(0.25), tc.one})
		got = addPortion(got, portion{&b, 0.5, join.Evenly(0.5), 1})
		got = addPortion(got, portion{&a, 0.125, join.Evenly(0.125), tc.other})
		want := []portion{{&a, 0.375, join.Evenly(0.375), tc.want}, {&b, 0.5, join.Evenly(0.5), 1}}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

package divide

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

type holder string

// Dropped reports whether the holder's name begins with "dropped".
func (h holder) Dropped() bool { return len(h) > 6 && h[:7] == "dropped" }

// What the claims get, and what is left, sum to the amount. If a holder was dropped, all is left.
func TestDivide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.SampledFrom([]holder{"a", "b", "c", "dropped"}), 0, 6).Draw(t, "claims")
		var s Segment[holder]
		for _, h := range names {
			use := join.Evenly(rapid.Float64Range(0, 1).Draw(t, "use"))
			s.Claims = addPart(s.Claims, Part[holder]{h, 0.25, use, 1})
		}
		s.SetUnattributed()
		const amount = 8
		sum, worst := 0.0, 0.0
		left := s.Divide(driver.ByTime, amount, 2*amount, 1, true, func(h holder, part, doubt float64) {
			sum, worst = sum+part, max(worst, part+doubt)
		}, func(holder, float64) { t.Error("there is no pod") })
		expect.That(t, math.Abs(sum+left-amount) <= 1e-9, "%v and %v are not %v", sum, left, amount)
		switch {
		case slices.Contains(names, "dropped"):
			expect.That(t, sum == 0 && left == amount, "the others of a dropped holder got %v, left is %v", sum, left)
		case len(names) > 0 && worst < 2*amount:
			t.Errorf("a claim of a guessed part may have had %v, want up to %v", worst, 2*amount)
		}
	})
}

// Two shares of a claim are one part. The part of its own CPUs is known if those of both shares
// are.
func TestAddPart(t *testing.T) {
	for name, tc := range map[string]struct{ one, other, want float64 }{
		"both known":         {0.25, 0.5, 0.75},
		"no more than all":   {0.75, 0.5, 1},
		"the first unknown":  {UnknownOwn, 0.5, UnknownOwn},
		"the second unknown": {0.25, UnknownOwn, UnknownOwn},
	} {
		got := addPart(nil, Part[holder]{"a", 0.25, join.Evenly(0.25), tc.one})
		got = addPart(got, Part[holder]{"b", 0.5, join.Evenly(0.5), 1})
		got = addPart(got, Part[holder]{"a", 0.125, join.Evenly(0.125), tc.other})
		want := []Part[holder]{{"a", 0.375, join.Evenly(0.375), tc.want}, {"b", 0.5, join.Evenly(0.5), 1}}
		expect.That(t, slices.Equal(got, want), "%s: %+v, want %+v", name, got, want)
	}
}

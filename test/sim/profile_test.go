package sim

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// grid is the length of a cell. The pieces of profiles in tests begin and end at bounds of cells.
const grid = 100 * time.Millisecond

// anyProfile draws a profile whose pieces are whole cells.
func anyProfile(t *rapid.T) Profile {
	level := rapid.Float64Range(0, 1)
	cells := func(label string) time.Duration { return time.Duration(rapid.IntRange(0, 40).Draw(t, label)) * grid }
	pieces := func(label string) course {
		var list []piece
		for range rapid.IntRange(0, 4).Draw(t, label) {
			list = append(list, piece{cells("length"), level.Draw(t, "from"), level.Draw(t, "to")})
		}
		return newCourse(list...)
	}
	p := Profile{once: pieces("once"), loop: pieces("loop")}
	return rapid.SampledFrom([]Profile{
		p, Constant(level.Draw(t, "constant")), Ramp(level.Draw(t, "low"), level.Draw(t, "high"), cells("over")),
		After(cells("delay"), p), Hang(cells("hangs")+grid, p), After(cells("delay"), Hang(cells("hangs")+grid, p)),
	}).Draw(t, "profile")
}

// midpoints integrates a function that is linear within each cell. The result is exact except for
// rounding.
func midpoints(from, to time.Duration, f func(time.Duration) float64) float64 {
	sum := 0.0
	for at := from; at < to; at += grid {
		sum += f(at+grid/2) * grid.Seconds()
	}
	return sum
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func TestProfileIntegral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyProfile(t)
		until := time.Duration(rapid.IntRange(0, 600).Draw(t, "until")) * grid
		if got, want := p.Integral(until), midpoints(0, until, p.Level); !near(got, want) {
			t.Errorf("integral until %v: %v, want %v", until, got, want)
		}
		spins := func(at time.Duration) float64 {
			if p.Spins(at) {
				return 1
			}
			return 0
		}
		if got, want := p.Spun(until), midpoints(0, until, spins); !near(got, want) {
			t.Errorf("spun until %v: %v s, want %v", until, got, want)
		}
	})
}

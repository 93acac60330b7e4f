package podresources

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var limiterStart = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// TestLimiterRate: no second has more than three calls, no matter how long they take and how they
// end. A call may arrive at any time between its start and its end.
func TestLimiterRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Limiter
		now := limiterStart
		var ends, begins []time.Time
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "pause")) * time.Millisecond)
			expected := rapid.Bool().Draw(t, "expected")
			next := l.Next(expected)
			if allowed := l.Allow(now, expected); allowed == now.Before(next) {
				t.Fatalf("allowed %v at %v, next was %v", allowed, now, next)
			} else if !allowed {
				continue
			}
			begins = append(begins, now)
			now = now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "duration")) * time.Millisecond)
			ends = append(ends, now)
			l.Done(now, rapid.SampledFrom([]error{nil, nil, ErrUnavailable, ErrDeadline, ErrTooLarge}).Draw(t, "error"))
		}
		for i := 3; i < len(begins); i++ {
			if begins[i].Sub(ends[i-3]) < time.Second {
				t.Fatalf("four calls in less than a second: %v", begins[i-3:i+1])
			}
		}
	})
}

// A call with an expected change starts a third of a second after the previous call of this kind,
// and immediately after a call of the other kind. Other calls start two thirds of a second after
// the previous call.
func TestLimiterIsNotTighter(t *testing.T) {
	var l Limiter
	now := limiterStart
	for i, step := range []struct {
		after    time.Duration
		expected bool
		want     bool
	}{
		{0, false, true},
		{0, true, true},
		{expectedPause - 1, true, false},
		{1, true, true},
		{expectedPause, true, false},
		{callWindow - 2*expectedPause, true, true},
		{otherPause - 1, false, false},
		{1, false, true},
	} {
		now = now.Add(step.after)
		next := l.Next(step.expected)
		if got := l.Allow(now, step.expected); got != step.want {
			t.Errorf("call %d at %v: %v, want %v; next was %v", i+1, now.Sub(limiterStart), got, step.want, next)
		}
	}
}

func TestLimiterBackoff(t *testing.T) {
	seconds := func(s ...float64) []time.Duration {
		var delays []time.Duration
		for _, s := range s {
			delays = append(delays, time.Duration(s*float64(time.Second)))
		}
		return delays
	}
	for name, tt := range map[string]struct {
		err  error
		want []time.Duration
	}{
		"rate limited": {ErrRateLimited, seconds(1, 2, 4, 5, 5)},
		"too large":    {fmt.Errorf("list: %w", ErrTooLarge), seconds(1, 2, 4, 8, 16, 30, 30)},
		"unavailable":  {ErrUnavailable, seconds(0, .5, .5, .5)},
		"deadline":     {ErrDeadline, seconds(0, 1, 2, 4, 5, 5)},
		"other":        {errors.New("other"), seconds(0, 1, 2, 4, 5, 5)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, jitter := range []float64{0, 0.999} {
				l := Limiter{Jitter: func() float64 { return jitter }}
				now := limiterStart
				for i, want := range tt.want {
					must.That(t, l.Allow(now, false), "call %d is not allowed", i+1)
					l.Done(now, tt.err)
					got := l.notUntil.Sub(now)
					expect.That(t, got <= want && got >= want*3/4,
						"after failure %d: %v, want %v less a quarter at most", i+1, got, want)
					now = now.Add(time.Minute)
				}
				for range 1000 {
					l.Done(now, tt.err)
				}
				if got, bound := l.notUntil.Sub(now), tt.want[len(tt.want)-1]; got <= 0 || got > bound {
					t.Errorf("after many failures: %v, want %v at most", got, bound)
				}
				l.Done(now, nil)
				expect.That(t, !l.Next(true).After(now.Add(time.Second)), "a success does not end the delay")
			}
		})
	}
}

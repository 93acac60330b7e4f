package scrape

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func TestFreshness(t *testing.T) {
	type scrape struct {
		at      int // seconds
		changed bool
	}
	for _, test := range []struct {
		name    string
		refresh int // seconds
		scrapes []scrape
		want    []int // seconds
	}{
		{
			"fresh at each scrape",
			0,
			[]scrape{{0, true}, {5, false}, {10, false}, {15, true}},
			[]int{0, 5, 10, 15},
		},
		{
			"an equal answer is the old answer",
			30,
			[]scrape{{0, true}, {5, false}, {25, false}, {30, true}, {35, false}},
			[]int{0, 0, 0, 30, 30},
		},
		{
			"idle for longer than R",
			30,
			[]scrape{{0, true}, {30, false}, {35, false}, {40, false}, {41, true}},
			[]int{0, 0, 5, 10, 41},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := freshness{refresh: seconds(test.refresh)}
			epoch := time.Unix(1e9, 0)
			var got []int
			for _, s := range test.scrapes {
				at := f.date(epoch.Add(seconds(s.at)), s.changed)
				got = append(got, int(at.Sub(epoch)/time.Second))
			}
			expect.Equal(t, "", test.want, got)
		})
	}
}

// An exporter that refreshes every P, scraped every I ≤ P at any phase, with values that sometimes
// stay equal: the time never goes back, is never later than the scrape, is never later than the
// last refresh unless the values just changed, and never falls further behind than the refresh
// period.
func TestFreshnessProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period := seconds(rapid.IntRange(1, 55).Draw(t, "period"))
		interval := seconds(rapid.IntRange(1, int(period/time.Second)).Draw(t, "interval"))
		phase := time.Duration(rapid.Int64Range(0, int64(period)-1).Draw(t, "phase"))
		f := freshness{refresh: period}
		epoch := time.Unix(1e9, 0)
		values := map[int64]int{}
		value := func(refresh int64) int {
			if _, ok := values[refresh]; !ok {
				values[refresh] = rapid.IntRange(0, 1).Draw(t, "value")
			}
			return values[refresh]
		}
		var last time.Time
		var changedAt time.Duration
		before := -1
		for i := range 60 {
			now := phase + time.Duration(i)*interval
			refresh := int64(now / period)
			v := value(refresh)
			changed := v != before
			before = v
			if changed {
				changedAt = now
			}
			at := f.date(epoch.Add(now), changed)
			refreshed := epoch.Add(time.Duration(refresh) * period)
			switch {
			case at.Before(last):
				t.Fatalf("scrape %d: time went back from %v to %v", i, last, at)
			case at.After(epoch.Add(now)):
				t.Fatalf("scrape %d: %v is in the future", i, at)
			case at.After(driver.Later(epoch.Add(changedAt), refreshed)):
				t.Fatalf("scrape %d: dated %v, refreshed %v, changed %v", i, at, refreshed, changedAt)
			case epoch.Add(now).Sub(at) > period:
				t.Fatalf("scrape %d: %v behind, refresh period is %v", i, epoch.Add(now).Sub(at), period)
			}
			last = at
		}
	})
}

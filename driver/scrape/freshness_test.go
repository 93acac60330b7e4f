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
	zero, thirty := time.Duration(0), seconds(30)
	type scrape struct {
		at      int // seconds
		changed bool
	}
	unchanged := func(from, to, step int) (list []scrape) {
		for at := from; at <= to; at += step {
			list = append(list, scrape{at, false})
		}
		return list
	}
	for _, test := range []struct {
		name     string
		endpoint Endpoint
		scrapes  []scrape
		want     []int // seconds
	}{
		{
			"fresh at each scrape",
			Endpoint{Refresh: &zero},
			[]scrape{{0, true}, {5, false}, {10, false}, {15, true}},
			[]int{0, 5, 10, 15},
		},
		{
			"an equal answer is the old answer",
			Endpoint{Refresh: &thirty},
			[]scrape{{0, true}, {5, false}, {25, false}, {30, true}, {35, false}},
			[]int{0, 0, 0, 30, 30},
		},
		{
			"idle for longer than R",
			Endpoint{Refresh: &thirty},
			[]scrape{{0, true}, {30, false}, {35, false}, {40, false}, {41, true}},
			[]int{0, 0, 5, 10, 41},
		},
		{
			"nothing is known",
			Endpoint{},
			[]scrape{{0, true}, {60, false}, {65, false}},
			[]int{0, 0, 5},
		},
		{
			"learned: shorter than assumed, at once",
			Endpoint{},
			append([]scrape{{-5, true}, {0, true}, {10, true}}, unchanged(15, 35, 5)...),
			[]int{-5, 0, 10, 10, 10, 10, 15, 20}, // R = 15
		},
		{
			"learned: longer than assumed, after three gaps",
			Endpoint{presetRefresh: &thirty},
			[]scrape{
				{-5, true},
				{0, true},
				{60, true},
				{120, true},
				{155, false},
				{180, true},
				{215, false},
				{245, false},
				{250, false},
			},
			[]int{-5, 0, 60, 120, 125, 180, 180, 180, 185}, // R = 30, then 65
		},
		{
			"learned: one odd gap is forgotten",
			Endpoint{presetRefresh: &thirty},
			append([]scrape{{-5, true}, {0, true}, {5, true}}, []scrape{
				{35, true},
				{65, true},
				{95, true},
				{125, true},
				{155, true},
				{185, true},
				{215, true},
				{245, true},
				{275, false},
				{285, false},
			}...),
			[]int{-5, 0, 5, 35, 65, 95, 125, 155, 185, 215, 245, 245, 250}, // R = 35
		},
		{
			"learned: rare changes are no refresh period",
			Endpoint{},
			[]scrape{{0, true}, {3600, true}, {7200, true}, {10800, true}, {14400, true}, {18000, false}},
			[]int{0, 3600, 7200, 10800, 14400, 17700},
		},
		{
			"learned: the first answer begins no gap",
			Endpoint{presetRefresh: &thirty},
			[]scrape{{0, true}, {5, true}, {30, false}, {36, false}},
			[]int{0, 5, 5, 6},
		},
		{
			"given: nothing is learned",
			Endpoint{Refresh: &thirty},
			[]scrape{{0, true}, {5, true}, {10, true}, {15, true}, {20, true}, {45, false}},
			[]int{0, 5, 10, 15, 20, 20},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.endpoint.Interval = seconds(5)
			f := newFreshness(test.endpoint)
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
// period that can be known.
func TestFreshnessProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period := seconds(rapid.IntRange(1, 55).Draw(t, "period"))
		interval := seconds(rapid.IntRange(1, int(period/time.Second)).Draw(t, "interval"))
		phase := time.Duration(rapid.Int64Range(0, int64(period)-1).Draw(t, "phase"))
		e := Endpoint{Interval: interval}
		if rapid.Bool().Draw(t, "given") {
			e.Refresh = &period
		}
		f := newFreshness(e)
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
			case epoch.Add(now).Sub(at) > max(assumedRefresh, maxRefresh)+interval:
				t.Fatalf("scrape %d: %v behind", i, epoch.Add(now).Sub(at))
			case e.Refresh != nil && epoch.Add(now).Sub(at) > period:
				t.Fatalf("scrape %d: %v behind, refresh period is %v", i, epoch.Add(now).Sub(at), period)
			}
			last = at
		}
	})
}

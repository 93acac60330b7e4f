package scrape

import (
	"testing"
	"time"

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

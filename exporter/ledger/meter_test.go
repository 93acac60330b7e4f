package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// The sum of the increments of a counter's readings.
func TestIncrement(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	for name, test := range map[string]struct {
		values []float64
		since  map[int]time.Time // by position
		want   float64
	}{
		"rises":                        {values: []float64{1000, 1010, 1030}, want: 30},
		"stands still":                 {values: []float64{1000, 1000}, want: 0},
		"restarts at zero":             {values: []float64{1000, 1010, 5, 8}, want: 10 + 5 + 3},
		"falls a little":               {values: []float64{1000, 1010, 1009, 1012}, want: 12},
		"falls by half":                {values: []float64{1000, 500, 1001}, want: 1},
		"falls by more":                {values: []float64{1000, 499, 500}, want: 499 + 1},
		"falls a little several times": {values: []float64{1000, 999, 998, 997, 1001}, want: 1},
		"restarts, as its source says": {
			values: []float64{1000, 1010, 900}, since: map[int]time.Time{2: at(1).Add(500 * time.Millisecond)}, want: 910,
		},
		"same origin as before": {values: []float64{1000, 1010}, since: map[int]time.Time{0: at(-5), 1: at(-5)}, want: 10},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMeter(seriesKey{quantity: driver.Energy}, driver.Standard())
			got := 0.0
			for i, v := range test.values {
				r := driver.Reading{Quantity: driver.Energy, Value: v, At: at(i), Since: test.since[i]}
				if m.have {
					amount, from := increment(m.last, r)
					if amount < 0 || from.Before(m.last.At) {
						t.Fatalf("reading %d counts %v since %v", i, amount, from)
					}
					got += amount
				}
				m.settle(r)
			}
			if got != test.want {
				t.Errorf("counted %v, want %v", got, test.want)
			}
		})
	}
}

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

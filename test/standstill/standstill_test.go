package standstill_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/standstill"
)

func TestOverlap(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	still := []standstill.Span{{at(0), at(2)}, {at(4), at(5)}, {at(9), at(20)}}
	for _, test := range []struct {
		from, to int
		want     time.Duration
	}{
		{1, 10, 3 * time.Second},
		{2, 4, 0},
		{-5, 30, 14 * time.Second},
		{10, 12, 2 * time.Second},
		{21, 22, 0},
	} {
		if got := (standstill.Span{From: at(test.from), To: at(test.to)}).Overlap(still); got != test.want {
			t.Errorf("from %d to %d: %v, want %v", test.from, test.to, got, test.want)
		}
	}
	if got := standstill.Total(still); got != 14*time.Second {
		t.Errorf("in all %v, want 14s", got)
	}
}

func TestWatchEnds(t *testing.T) {
	found, stop := standstill.Watch()
	stop()
	stop()
	for _, s := range found() {
		if s.To.Sub(s.From) <= standstill.Shortest {
			t.Errorf("%v is too short", s)
		}
	}
}

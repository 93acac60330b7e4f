package standstill_test

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
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
		expect.Is(t, (standstill.Span{From: at(test.from), To: at(test.to)}).Overlap(still), test.want,
			"from %d to %d", test.from, test.to)
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
		expect.That(t, s.To.Sub(s.From) > standstill.Shortest, "%v is too short", s)
	}
}

// More programs than processors wait for one: the kernel's count of that is found.
func TestWatchPressure(t *testing.T) {
	if _, err := os.ReadFile("/proc/pressure/cpu"); err != nil {
		t.Skip("the kernel does not count who waits for a processor:", err)
	}
	found, stop := standstill.WatchPressure()
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 * runtime.NumCPU() {
		go func() {
			runtime.LockOSThread() // a thread each, which ends with it
			for n := 0; ctx.Err() == nil; n++ {
				runtime.KeepAlive(n)
			}
		}()
	}
	for standstill.Total(found()) < 200*time.Millisecond {
		time.Sleep(10 * time.Millisecond)
	}
	for _, s := range found() {
		expect.That(t, s.To.Sub(s.From) > 0, "%v is no span", s)
	}
}

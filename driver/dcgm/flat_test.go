//go:build cgo

package dcgm

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// footprint is the resources of a process.
type footprint struct {
	threads, goroutines, resident int
	live                          uint64
}

func footprintNow(t *testing.T) footprint {
	t.Helper()
	return footprint{status(t, "Threads:"), runtime.NumGoroutine(), status(t, "VmRSS:"), liveHeap()}
}

// Threads, goroutines and memory stay constant over many ticks: DCGM_TICKS of them, or 300. A call
// of the library occupies a thread, and the Go runtime keeps its threads. There is one call at a
// time. It hangs first, so that its thread exists. That is the limit.
func TestFlat(t *testing.T) {
	ticks := 300
	if text := os.Getenv("DCGM_TICKS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		ticks = n
	}
	c := newClock(8)
	machine.Partition(6, 7)
	machine.Partition(7, 3)
	s := newSource(t, c, nil)
	sample(t, s)
	bound := status(t, "Threads:") + 1 + runtime.GOMAXPROCS(0) // beside the call's thread, those that run Go
	hangOnce(t, s)
	var first footprint
	for i := range ticks {
		sample(t, s)
		c.advance(1)
		if i%100 == 99 { // partitions also change in the meantime
			machine.GPUs[7].Instances[2].Present ^= 1
		}
		switch i {
		case ticks / 10:
			first = footprintNow(t)
			t.Logf("after %d ticks: %+v", i, first)
		case ticks / 2:
			t.Logf("after %d ticks: %+v", i, footprintNow(t))
		}
	}
	last := footprintNow(t)
	t.Logf("after %d ticks: %+v", ticks, last)
	if last.threads > bound {
		t.Errorf("there are %d threads, want %d at most", last.threads, bound)
	}
	atMostGoroutines(t, first.goroutines+1)
	if last.live > first.live+first.live/20+64<<10 {
		t.Errorf("live memory went from %d to %d bytes", first.live, last.live)
	}
	if entities, fields := machine.Groups(); entities != 3 || fields != 12 {
		t.Errorf("the engine keeps %d groups of entities and %d of fields", entities, fields)
	}
}

// hangOnce lets a call hang, and then return.
func hangOnce(t *testing.T, s *Source) {
	t.Helper()
	const function = "dcgmGetValuesSince_v2"
	machine.Hang(function, true)
	defer machine.Hang(function, false)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Sample(ctx); err == nil {
		t.Fatal("no error while a call hangs")
	}
	machine.Hang(function, false)
	sample(t, s)
}

// status reads a number of /proc/self/status.
func status(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), name)
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkSample is a tick of 8 GPUs: cpu-ns/op is the CPU time of the whole process, that of the
// fake included.
func BenchmarkSample(b *testing.B) {
	for _, bench := range []struct {
		name            string
		gpus, instances int
	}{{"8 GPUs", 8, 0}, {"32 GPUs", 32, 0}, {"8 GPUs of 7 MIG instances", 8, 7}} {
		b.Run(bench.name, func(b *testing.B) {
			c := newClock(bench.gpus)
			for i := range bench.gpus {
				if bench.instances > 0 {
					machine.Partition(i, bench.instances)
				}
			}
			s := newSource(b, c, nil)
			sample(b, s)
			b.ReportAllocs()
			begun := cpuTime(b)
			for b.Loop() {
				c.advance(1)
				sample(b, s)
			}
			b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N), "cpu-ns/op")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

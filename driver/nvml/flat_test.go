//go:build cgo

package nvml

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// footprint is the resources of a process.
type footprint struct {
	threads, goroutines, files, resident int
	live                                 uint64
}

func footprintNow(t *testing.T) footprint {
	t.Helper()
	return footprint{status(t, "Threads:"), runtime.NumGoroutine(), len(openDevices(t)), status(t, "VmRSS:"), liveHeap()}
}

// Threads, goroutines, files and memory stay constant over many ticks: NVML_TICKS of them, or 300.
// A call of the library occupies a thread, and the Go runtime keeps its threads. So all parallel
// calls hang first, one for each GPU and one for events, which creates every thread that is ever
// needed. That is the limit.
func TestFlat(t *testing.T) {
	ticks := 300
	if text := os.Getenv("NVML_TICKS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		ticks = n
	}
	c := newClock()
	machine.Reset(8)
	machine.Partition(6, 7)
	machine.Partition(7, 3)
	s := newSource(t, c, nil)
	sample(t, s)
	bound := status(t, "Threads:") + 8 + 1 + runtime.GOMAXPROCS(0) // beside the calls' threads, those that run Go
	hangAll(t, s)
	var first footprint
	late := 0
	for i := range ticks {
		if _, err := s.Sample(t.Context()); err != nil {
			if driver.ReasonOf(err) != driver.ReasonHung {
				t.Fatal(err)
			}
			late++ // a machine that is so busy that nothing ran for the time of callTimeout
		}
		c.advance(1)
		switch i {
		case ticks / 10:
			first = footprintNow(t)
			t.Logf("after %d ticks: %+v", i, first)
		case ticks / 2:
			t.Logf("after %d ticks: %+v", i, footprintNow(t))
		}
	}
	last := footprintNow(t)
	t.Logf("after %d ticks, of which %d were late: %+v", ticks, late, last)
	if last.threads > bound {
		t.Errorf("there are %d threads, want %d at most", last.threads, bound)
	}
	atMostGoroutines(t, first.goroutines+1)
	if last.files != first.files {
		t.Errorf("open device files went from %d to %d", first.files, last.files)
	}
	if last.live > first.live+first.live/20+64<<10 {
		t.Errorf("live memory went from %d to %d bytes", first.live, last.live)
	}
	if late > ticks/100 {
		t.Errorf("%d ticks were late", late)
	}
	if machine.EventSets != 1 || machine.GPMSamples != 2*(6+7+3) {
		t.Errorf("%d event sets and %d GPM samples are allocated", machine.EventSets, machine.GPMSamples)
	}
}

// hangAll lets all calls that are made side by side hang at the same time, and then return.
func hangAll(t *testing.T, s *Source) {
	t.Helper()
	const ofGPU, ofNone = "nvmlDeviceGetPowerUsage", "nvmlEventSetWait_v2"
	hang := func(hang bool) {
		for i := range 8 {
			machine.Hang(ofGPU, i, hang)
		}
		machine.Hang(ofNone, -1, hang)
	}
	calls := machine.Calls(ofGPU) + machine.Calls(ofNone)
	hang(true)
	defer hang(false)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for end := time.Now().Add(30 * time.Second); machine.Calls(ofGPU)+machine.Calls(ofNone) < calls+9 &&
			time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := s.Sample(ctx); err == nil || strings.Count(err.Error(), "no answer in time") != 9 {
		t.Fatalf("while all calls hang: %v", err)
	}
	hang(false)
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err = s.Sample(t.Context()); err == nil {
			return
		}
	}
	t.Fatalf("after all calls hung: %v", err)
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
	}{{"8 GPUs", 8, 0}, {"64 GPUs", 64, 0}, {"8 GPUs of 7 MIG instances", 8, 7}} {
		b.Run(bench.name, func(b *testing.B) {
			c := newClock()
			machine.Reset(bench.gpus)
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

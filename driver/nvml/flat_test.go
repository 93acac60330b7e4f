//go:build cgo

package nvml

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Threads, goroutines, files and memory stay what they are over many ticks: NVML_TICKS of them, or 300.
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
	warm := min(ticks/2, 5000)
	var threads, goroutines, files, resident int
	var heap uint64
	late := 0
	for i := range ticks {
		if _, err := s.Sample(t.Context()); err != nil {
			if _, hung := errors.AsType[driver.HungError](err); !hung {
				t.Fatal(err)
			}
			late++ // a machine that is so busy that nothing ran for the time of patience
		}
		c.advance(1)
		if i == warm {
			threads, goroutines, files, heap = status(t, "Threads:"), runtime.NumGoroutine(), len(openDevices(t)), liveHeap()
			resident = status(t, "VmRSS:")
		}
	}
	t.Logf("%d ticks were late; after %d and %d: %d and %d threads, %d and %d kB resident, %d and %d bytes live",
		late, warm, ticks, threads, status(t, "Threads:"), resident, status(t, "VmRSS:"), heap, liveHeap())
	if now := status(t, "Threads:"); now > threads+8 {
		t.Errorf("threads went from %d to %d", threads, now)
	}
	atMostGoroutines(t, goroutines+1)
	if now := len(openDevices(t)); now != files {
		t.Errorf("open device files went from %d to %d", files, now)
	}
	if now := liveHeap(); now > heap+heap/10+1<<20 {
		t.Errorf("live memory went from %d to %d bytes", heap, now)
	}
	if late > ticks/100 {
		t.Errorf("%d ticks were late", late)
	}
	if machine.EventSets != 1 || machine.GPMSamples != 2*(6+7+3) {
		t.Errorf("%d event sets and %d GPM samples are allocated", machine.EventSets, machine.GPMSamples)
	}
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

// BenchmarkSample is a tick of 8 GPUs: cpu-ns/op is the CPU time of the whole process, that of the double included.
func BenchmarkSample(b *testing.B) {
	for _, bench := range []struct {
		name      string
		instances int
	}{{"8 GPUs", 0}, {"8 GPUs of 7 MIG instances", 7}} {
		b.Run(bench.name, func(b *testing.B) {
			c := newClock()
			machine.Reset(8)
			for i := range 8 {
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

//go:build cgo

package dcgm

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Threads, goroutines and memory stay what they are over many ticks: DCGM_TICKS of them, or 300.
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
	warm := min(ticks/2, 5000)
	var threads, goroutines, resident int
	var heap uint64
	for i := range ticks {
		sample(t, s)
		c.advance(1)
		if i%100 == 99 { // other partitions are a part of what goes on
			machine.GPUs[7].Instances[2].Present ^= 1
		}
		if i == warm {
			threads, goroutines, heap, resident = status(t, "Threads:"), runtime.NumGoroutine(), liveHeap(), status(t, "VmRSS:")
		}
	}
	t.Logf("after %d and %d ticks: %d and %d threads, %d and %d kB resident, %d and %d bytes live",
		warm, ticks, threads, status(t, "Threads:"), resident, status(t, "VmRSS:"), heap, liveHeap())
	if now := status(t, "Threads:"); now > threads+8 {
		t.Errorf("threads went from %d to %d", threads, now)
	}
	atMostGoroutines(t, goroutines+1)
	if now := liveHeap(); now > heap+heap/10+1<<20 {
		t.Errorf("live memory went from %d to %d bytes", heap, now)
	}
	if entities, fields := machine.Groups(); entities != 3 || fields != 6 {
		t.Errorf("the engine keeps %d groups of entities and %d of fields", entities, fields)
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
			c := newClock(8)
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

package nvidiatest

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Flat checks that threads, goroutines, files and memory stay constant over many ticks: 300, or as
// many as the environment variable says. A call of a library occupies a thread, and the Go runtime
// keeps its threads. So warm must let as many calls hang at a time as ever will, and then return.
// The number of threads may then be that of now and those, beside those that run Go. Files is the
// number of open files that count.
func Flat(t *testing.T, variable string, calls int, warm func(), tick func(i int), files func() int) {
	t.Helper()
	ticks := 300
	if text := os.Getenv(variable); text != "" {
		var err error
		if ticks, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	now := func(i int) footprint {
		f := footprint{status(t, "Threads:"), runtime.NumGoroutine(), files(), status(t, "VmRSS:"), liveHeap()}
		t.Logf("after %d of %d ticks: %+v", i, ticks, f)
		return f
	}
	bound := status(t, "Threads:") + calls + runtime.GOMAXPROCS(0)
	warm()
	var first footprint
	for i := range ticks {
		tick(i)
		switch i {
		case ticks / 10:
			first = now(i)
		case ticks / 2:
			now(i)
		}
	}
	last := now(ticks)
	expect.That(t, last.threads <= bound, "there are %d threads, want %d at most", last.threads, bound)
	AtMostGoroutines(t, first.goroutines+1)
	expect.That(t, last.files == first.files, "open files went from %d to %d", first.files, last.files)
	expect.That(t, last.live <= first.live+first.live/20+64<<10,
		"live memory went from %d to %d bytes", first.live, last.live)
}

// footprint is the resources of a process.
type footprint struct {
	threads, goroutines, files, resident int
	live                                 uint64
}

// status reads a number of /proc/self/status.
func status(t *testing.T, name string) int {
	text, err := os.ReadFile("/proc/self/status")
	must.Do(t, err)
	_, rest, _ := strings.Cut(string(text), name)
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	must.Do(t, err)
	return n
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// AtMostGoroutines waits for the goroutines that have done their work to be gone.
func AtMostGoroutines(t *testing.T, most int) {
	now := runtime.NumGoroutine()
	for end := time.Now().Add(10 * time.Second); now > most && time.Now().Before(end); now = runtime.NumGoroutine() {
		runtime.Gosched()
	}
	expect.That(t, now <= most, "there are %d goroutines, want at most %d", now, most)
}

// Bench measures the ticks of a source: cpu-ns/op
// is the CPU time of the whole process, that of the fake included.
func Bench(b *testing.B, c *Clock, s driver.Source) {
	Sample(b, s)
	b.ReportAllocs()
	begun := cpuTime(b)
	for b.Loop() {
		c.Advance(1)
		Sample(b, s)
	}
	b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N), "cpu-ns/op")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

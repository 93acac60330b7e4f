package e2e

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// The time in which a CPU is busy, as the kernel counts it, is attributed to the pod that holds it.
// The bounds hold unless the machine is stalled between a reading and its snapshot: it is enough if
// one of several attempts is within bounds.
func TestCPUTime(t *testing.T) {
	const cpu = 0
	n := newNode(t)
	n.setPods(pod("team", "burner", "core", podresourcestest.Device(cpuDriver, nodeName, "cpu-0")))
	p := start(t, n.flags(flags{
		"path.procfs":     "/proc",
		"sample.interval": "500ms",
		"inventory.file":  n.inventory(slice(cpuDriver, [2]string{"cpu-0", fmt.Sprintf("{dra.cpu/cpuID: {int: %d}}", cpu)})),
	}))
	p.eventually("counting", func() bool {
		_, ok := p.scrape().value("dra_pod_active_seconds_total", "pod", "burner")
		return ok
	})
	for range 4 {
		kernel := watchCPU(t, cpu)
		watched := time.Now()
		p.eventually("read again", func() bool { return p.report().Time.After(watched.Add(maxReading)) })
		before, begun := busy(p)
		burn(t, cpu, 3*time.Second)
		burnt := time.Now()
		p.eventually("charged", func() bool { return p.report().Time.After(burnt.Add(maxReading)) })
		after, ended := busy(p)
		record := kernel()

		if rise := after.pod - before.pod; !near(rise, after.claim-before.claim) {
			t.Errorf("attributed: %v s to the pod, %v s to the claim", rise, after.claim-before.claim)
		}
		if after.unattributed != before.unattributed {
			t.Errorf("unattributed: %v s, want %v s as before", after.unattributed, before.unattributed)
		}
		if conserved(t, p.report()) == 0 {
			t.Error("nothing was compared")
		}
		rise := after.claim - before.claim
		low := record.at(ended.Add(-maxReading)) - record.at(begun)
		high := record.at(ended) - record.at(begun.Add(-maxReading))
		if rise >= low-2*tickSeconds && rise <= high+2*tickSeconds && rise > 0.3 {
			return
		}
		t.Logf("attributed to the claim: %.2f s, counted by the kernel: %.2f to %.2f s", rise, low, high)
	}
	t.Error("the attributed time differs from the kernel's")
}

const (
	// tickSeconds is the kernel's unit of CPU times.
	tickSeconds = 0.01
	// maxReading is the longest time between the reading of a source and the snapshot: a tick waits
	// up to a quarter of the interval for the kubelet.
	maxReading = 150 * time.Millisecond
)

// times are the attributed and unattributed times of a CPU.
type times struct{ claim, pod, unattributed float64 }

// busy returns the times of a snapshot, and its time.
func busy(p *program) (times, time.Time) {
	p.t.Helper()
	r := p.report()
	values, snapshot := map[string]float64{}, r.Time
	for name, rows := range map[string]int{"claim": len(r.Claims), "pod": len(r.Pods), "device": len(r.Devices)} {
		if rows != 1 {
			p.t.Fatalf("%d rows of a %s, want one", rows, name)
		}
	}
	for _, v := range r.Claims[0].Values {
		values["claim "+v.Quantity] = v.Value
	}
	for _, v := range r.Pods[0].Values {
		values["pod "+v.Quantity] = v.Value
	}
	for _, v := range r.Devices[0].Unattributed {
		values["unattributed "+v.Quantity] = v.Value
	}
	return times{
		values["claim active_seconds"], values["pod active_seconds"],
		values["unattributed active_seconds"],
	}, snapshot
}

// burn keeps a CPU busy.
func burn(t *testing.T, cpu int, d time.Duration) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(cpu)
		err := unix.SchedSetaffinity(0, &set)
		spins := 0
		for begun := time.Now(); err == nil && time.Since(begun) < d; {
			spins++
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("stay on CPU %d: %v", cpu, err)
	}
}

// record holds how long a CPU was busy up to given times, in seconds.
type record []struct {
	time time.Time
	busy float64
}

// at returns the last value up to a time.
func (r record) at(when time.Time) float64 {
	busy := 0.0
	for _, entry := range r {
		if entry.time.After(when) {
			break
		}
		busy = entry.busy
	}
	return busy
}

// watchCPU records a CPU's time. The function that it returns ends it.
func watchCPU(t *testing.T, cpu int) func() record {
	t.Helper()
	type result struct {
		record record
		err    error
	}
	stop, done := make(chan struct{}), make(chan result, 1)
	go func() {
		var r result
		for r.err == nil {
			var busy float64
			at := time.Now()
			busy, r.err = busySeconds(cpu)
			r.record = append(r.record, struct {
				time time.Time
				busy float64
			}{at, busy})
			select {
			case <-stop:
				done <- r
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
		done <- r
	}()
	return func() record {
		close(stop)
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		return r.record
	}
}

// busySeconds returns the busy time of a CPU from /proc/stat, including stolen time.
func busySeconds(cpu int) (float64, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		// name user nice system idle iowait irq softirq steal
		fields := strings.Fields(line)
		if fields[0] != fmt.Sprintf("cpu%d", cpu) {
			continue
		}
		sum := 0.0
		for _, i := range []int{1, 2, 3, 6, 7, 8} {
			ticks, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return 0, err
			}
			sum += ticks * tickSeconds
		}
		return sum, nil
	}
	return 0, errors.New("no such CPU in /proc/stat")
}

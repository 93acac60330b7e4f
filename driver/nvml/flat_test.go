//go:build cgo

package nvml

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Threads, goroutines, files and memory stay constant over many ticks. All parallel calls hang
// first, one for each GPU and one for events, which creates every thread that is ever needed.
func TestFlat(t *testing.T) {
	c := newClock()
	machine.Reset(8)
	machine.Partition(6, 7)
	machine.Partition(7, 3)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	ticks, late := 0, 0
	nvidiatest.Flat(t, "NVML_TICKS", 8+1, func() { hangAll(t, s) }, func(i int) {
		if _, err := s.Sample(t.Context()); err != nil {
			must.That(t, driver.ReasonOf(err) == driver.ReasonHung, "%v", err)
			late++ // a machine that is so busy that nothing ran for the time of callTimeout
		}
		c.Advance(1)
		ticks = i + 1
	}, func() int { return len(openDevices(t)) })
	expect.That(t, late <= ticks/100, "%d ticks were late", late)
	expect.That(t, machine.EventSets == 1 && machine.GPMSamples == 2*(6+7+3),
		"%d event sets and %d GPM samples are allocated", machine.EventSets, machine.GPMSamples)
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
			nvidiatest.Bench(b, c, newSource(b, c, nil))
		})
	}
}

//go:build cgo

package nvml

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const completeEvery = 5 * time.Second

func paced(c *Config) { c.Complete = completeEvery }

// reading returns the reading of a quantity without labels.
func reading(tb testing.TB, s driver.Sample, q driver.Quantity) driver.Reading {
	tb.Helper()
	for _, r := range s.Readings {
		if r.Quantity == q {
			return r
		}
	}
	tb.Fatalf("no %v", q)
	return driver.Reading{}
}

// A sample reads everything every five seconds, after ReadAll, when the processes change, and when
// an idle GPU draws more power. Others read power and memory, and have the other readings of
// before.
func TestPace(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	g.Utilization, g.Power = 0, 70
	s := newSource(t, c, paced)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	before := nvidiatest.Sample(t, s)[0] // GPM has its second sample
	if busy := reading(t, before, driver.Utilization); busy.Value != 0 || !busy.At.Equal(c.Now()) {
		t.Fatalf("a second after the start, the utilization is %+v", busy)
	}
	step := func(what string, want bool) {
		t.Helper()
		c.Advance(1)
		energy, calls := g.Energy, machine.Calls("nvmlDeviceGetTotalEnergyConsumption")
		now := nvidiatest.Sample(t, s)[0]
		called := machine.Calls("nvmlDeviceGetTotalEnergyConsumption") > calls
		read, busy := reading(t, now, driver.Energy), reading(t, now, driver.Utilization)
		complete := read.At.Equal(c.Now())
		if complete != want || called != want || busy.At.Equal(c.Now()) != want || complete && read.Value != energy {
			t.Errorf("%s: read %v, called %v, energy %+v, utilization %+v; want %v", what, complete, called, read, busy, want)
		}
		expect.That(t, len(now.Readings) == len(before.Readings),
			"%s: %d readings, of %d", what, len(now.Readings), len(before.Readings))
		for _, q := range []driver.Quantity{driver.Power, driver.MemoryUsed} {
			if at := reading(t, now, q).At; !at.Equal(c.Now()) {
				t.Errorf("%s: %v of %v, now %v", what, q, at, c.Now())
			}
		}
	}
	for i := range 9 { // seconds 2 to 10
		step("in turn", i == 3 || i == 8)
	}
	s.ReadAll()
	step("after ReadAll", true)
	g.Power = 79
	step("hardly more power", false)
	g.Power = 125
	step("an idle GPU begins to work", true)
	g.Utilization = 0.5
	for range 4 {
		step("at work", false)
	}
	step("in turn", true)
	g.Power = 500
	step("more power, at work", false)
	g.Processes[0] = nvmltest.Process{PID: 100, Memory: 1 << 30, GPUInstance: -1}
	step("a process begins", true)
	step("it goes on", false)
	g.Processes[1] = nvmltest.Process{PID: 101, Memory: 1 << 30, GPUInstance: -1}
	step("another process begins", true)
	step("both go on", false)
	g.Processes[0], g.Processes[1] = g.Processes[1], nvmltest.Process{}
	step("a process ends", true)
	step("the other one goes on", false)
}

// The processes of a MIG instance are those of its GPU.
func TestPaceOfMIG(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	machine.Partition(0, 2)
	s := newSource(t, c, paced)
	energyIsRead := func() bool {
		c.Advance(1)
		return reading(t, nvidiatest.Sample(t, s)[0], driver.Energy).At.Equal(c.Now())
	}
	nvidiatest.Sample(t, s)
	expect.That(t, !energyIsRead(), "energy is read each second")
	gpu := &machine.GPUs[0]
	gpu.Processes[0] = nvmltest.Process{PID: 7, Memory: 1, GPUInstance: gpu.Instances[1].GPUInstance}
	expect.That(t, energyIsRead(), "a process begins in an instance, and the energy of its GPU is not read")
	expect.That(t, !energyIsRead(), "energy is read although nothing began")
}

// Utilization loses nothing: over any time that ends with a complete sample, it is the mean of all
// that happened. So are the parts of processes.
func TestPaceIsExact(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	g.Utilization = 0
	g.Processes[0] = nvmltest.Process{PID: 100, Memory: 1 << 30, GPUInstance: -1}
	s := newSource(t, c, paced)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	before := reading(t, nvidiatest.Sample(t, s)[0], driver.Utilization).At
	active, truth := 0., 0.
	for second := range 60 {
		g.Utilization = float64(second%7) / 10
		truth += g.Utilization
		c.Advance(1)
		if second == 59 {
			s.ReadAll()
		}
		now := nvidiatest.Sample(t, s)[0]
		busy := reading(t, now, driver.Utilization)
		active += busy.Value * busy.At.Sub(before).Seconds()
		before = busy.At
		if p := now.Processes; len(p) != 1 || len(p[0].Readings) != 2 || p[0].Readings[1] != busy {
			t.Fatalf("the only process has %+v, the GPU %+v", p, busy)
		}
	}
	diff := active - truth
	expect.That(t, diff <= 1e-6 && diff >= -1e-6, "%v active seconds, want %v", active, truth)
}

// With the times of an H100's calls, reading takes at most 0.35 % of a processor for each GPU.
func TestCost(t *testing.T) {
	for name, processes := range map[string]int{"idle": 0, "one process": 1, "two processes": 2} {
		t.Run(name, func(t *testing.T) {
			const most, seconds = 3500 * time.Microsecond, 60
			c := newClock()
			machine.Reset(1)
			machine.CostAsH100(processes > 1)
			defer machine.Reset(1)
			for i := range processes {
				machine.GPUs[0].Processes[i] = nvmltest.Process{PID: int64(100 + i), Memory: 1 << 30, GPUInstance: -1}
			}
			s := newSource(t, c, paced)
			for range 2 {
				nvidiatest.Sample(t, s)
				c.Advance(1)
			}
			before := machine.Spent()
			for range seconds {
				nvidiatest.Sample(t, s)
				c.Advance(1)
			}
			spent := (machine.Spent() - before) / seconds
			t.Logf("%v a second", spent)
			expect.That(t, spent <= most && spent >= most/10, "the calls take %v a second, want at most %v", spent, most)
		})
	}
}

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

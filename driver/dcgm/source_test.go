//go:build cgo

package dcgm

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const engineAddress = "127.0.0.1:5555"

// newSource returns a source on the machine, which lets go of the engine when the test ends.
func newSource(tb testing.TB, c *nvidiatest.Clock, change func(*Config)) *Source {
	config := Config{Address: engineAddress, Profiling: true, Now: c.Now}
	if change != nil {
		change(&config)
	}
	s := must.Get(New(config))(tb)
	s.callTimeout = time.Minute // for machines under load: what hangs has a test of its own
	misuse := machine.Misuse
	tb.Cleanup(func() {
		if s.session.Current() != nil {
			_ = s.close(context.Background())
		}
		expect.That(tb, machine.Misuse == misuse, "%d calls that DCGM's headers forbid", machine.Misuse-misuse)
	})
	return s
}

func TestSuite(t *testing.T) {
	for _, tc := range []struct {
		name   string
		gpus   int
		layout func()
	}{
		{"8 GPUs", 8, func() {}},
		{"4 GPUs of 7 MIG instances", 4, func() {
			for i := range 4 {
				machine.Partition(i, 7)
			}
		}},
		{"mixed", 3, func() {
			machine.Partition(1, 3)
			machine.GPUs[1].Instances[2].ComputeInstances = 2
			machine.GPUs[2].Encoder = nan()
			machine.XID(0, 31, -1, -1)
			machine.XID(1, 43, 0, 0)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			drivertest.Run(t, suite(func() *nvidiatest.Clock {
				c := newClock(tc.gpus)
				tc.layout()
				return c
			}))
		})
	}
}

// suite is the configuration of drivertest for a machine.
func suite(layout func() *nvidiatest.Clock) drivertest.Config {
	var c *nvidiatest.Clock
	var open *Source // there can be only one
	fresh := func(tb testing.TB) *Source {
		if open != nil && open.session.Current() != nil {
			_ = open.close(context.Background())
		}
		c = layout()
		open = newSource(tb, c, nil)
		return open
	}
	of := func(uuid string) func(driver.Sample, driver.Reading) bool {
		return func(s driver.Sample, _ driver.Reading) bool {
			return s.Hardware.UUID == uuid || s.Hardware.Parent == uuid
		}
	}
	read := func(uuid string) func(driver.Sample, driver.Reading) bool { // values the engine does not report
		return func(s driver.Sample, r driver.Reading) bool {
			return of(uuid)(s, r) && r.Labels[0] != "xid" && r.Quantity != driver.Health
		}
	}
	first := "GPU-00000000-0000-4000-8000-000000000000"
	return drivertest.Config{
		Fills:   Fills(),
		New:     func(tb testing.TB) driver.Source { return fresh(tb) },
		Advance: func() { c.Advance(1) },
		Now:     func() time.Time { return c.Now() },
		Absent: func(tb testing.TB) driver.Source {
			s := fresh(tb)
			machine.Count = 0
			return s
		},
		Faults: []drivertest.Fault{
			{
				Name: "a GPU is lost",
				New: func(tb testing.TB) (driver.Source, func()) {
					return fresh(tb), func() { machine.GPUs[0].Lost = 1; c.Advance(10) }
				},
				Hits: read(first),
			},
			{
				Name: "the engine reads nothing new of a GPU",
				New: func(tb testing.TB) (driver.Source, func()) {
					return fresh(tb), func() { machine.GPUs[0].Stalled = 1; c.Advance(60) }
				},
				Hits: read(first),
			},
			{
				Name: "the memory's temperature is not supported", Silent: true,
				New: func(tb testing.TB) (driver.Source, func()) {
					return fresh(tb), func() { machine.GPUs[0].MemoryTemperature = nan(); c.Advance(1) }
				},
				Hits: func(s driver.Sample, r driver.Reading) bool {
					return of(first)(s, r) && r.Labels[0] == "memory" && r.Quantity == driver.Temperature
				},
			},
			{
				Name: "values can't be had",
				New: func(tb testing.TB) (driver.Source, func()) {
					return fresh(tb), func() { machine.Fail("dcgmGetValuesSince_v2", dcgm.DCGM_ST_GENERIC_ERROR) }
				},
				Hits: func(driver.Sample, driver.Reading) bool { return true },
			},
			{
				Name: "the engine is gone",
				New: func(tb testing.TB) (driver.Source, func()) {
					return fresh(tb), func() { machine.Down = 1 }
				},
				Hits: func(driver.Sample, driver.Reading) bool { return true },
			},
		},
	}
}

// A process without the library reads nothing, and reports why. This test also is that process.
func TestNoLibrary(t *testing.T) {
	if os.Getenv(withoutLibrary) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoLibrary$")
		cmd.Env = append(os.Environ(), withoutLibrary+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("without the library: %v\n%s", err, out)
		}
		return
	}
	s := must.Get(New(Config{Address: Embedded}))(t)
	for range 2 {
		samples, err := s.Sample(t.Context())
		if !errors.Is(err, driver.ErrAbsent) || driver.ReasonOf(err) != driver.ReasonNoLibrary ||
			len(samples) != 0 {
			t.Errorf("got %d samples and error %v", len(samples), err)
		}
	}
}

// While the engine is gone, everything is unreadable, and the delays between attempts to connect
// grow. A new engine is found, and counters continue.
func TestReconnect(t *testing.T) {
	c := newClock(2)
	machine.Partition(1, 2)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	before := nvidiatest.Sample(t, s)
	machine.XID(0, 31, -1, -1)
	c.Advance(1)
	nvidiatest.Sample(t, s)
	machine.Down = 1
	attempts := machine.Calls("dcgmConnect_v2")
	for i := range 120 {
		c.Advance(1)
		samples, err := s.Sample(t.Context())
		must.That(t, err != nil && len(samples) == 4,
			"second %d without an engine: %d samples, error %v", i, len(samples), err)
		for _, sample := range samples {
			read := func(r driver.Reading) bool { return r.Labels[0] != "xid" }
			must.That(t, !slices.ContainsFunc(sample.Readings, read) && sample.Unreadable,
				"%s has readings without an engine: %v", sample.Hardware.UUID, sample.Readings)
		}
	}
	if n := machine.Calls("dcgmConnect_v2") - attempts; n < 5 || n > 8 {
		t.Errorf("%d attempts to connect in 120 s", n)
	}
	machine.Down = 0
	machine.Restart()
	machine.XID(0, 31, -1, -1)
	c.Advance(retryMost.Seconds())
	nvidiatest.Sample(t, s)
	c.Advance(1)
	after := nvidiatest.Sample(t, s)
	if err := drivertest.Follows(before, after); err != nil {
		t.Errorf("after the engine came back: %v", err)
	}
	if n, _ := nvidiatest.Value(after[0], driver.Errors, "xid", "31"); n != 2 {
		t.Errorf("%v XID errors were counted, want the one before and the one while nobody was connected", n)
	}
	if n, _ := nvidiatest.Value(after[0], driver.Power); n != machine.GPUs[0].Power {
		t.Errorf("power is %v after the engine came back", n)
	}
}

func TestHung(t *testing.T) {
	for _, function := range []string{
		"dcgmConnect_v2", "dcgmGetEntityGroupEntities", "dcgmWatchFields",
		"dcgmGetValuesSince_v2", "dcgmHealthCheck",
	} {
		t.Run(function, func(t *testing.T) {
			c := newClock(2)
			s := newSource(t, c, nil)
			machine.Hang(function, true)
			defer machine.Hang(function, false)
			before := runtime.NumGoroutine()
			s.callTimeout = 10 * time.Millisecond
			for range 5 {
				samples, err := s.Sample(t.Context())
				must.That(t, driver.ReasonOf(err) == driver.ReasonHung && len(samples) == 0,
					"got %d samples and error %v", len(samples), err)
				c.Advance(1)
			}
			nvidiatest.AtMostGoroutines(t, before+1)
			machine.Hang(function, false)
			s.callTimeout = time.Minute
			nvidiatest.Sample(t, s)
			c.Advance(1)
			if samples := nvidiatest.Sample(t, s); len(samples) != 2 || len(samples[0].Readings) == 0 {
				t.Errorf("samples once it returned: %v", samples)
			}
		})
	}
}

// An engine inside the process is started, and is stopped while GPUs may be handed to guests.
func TestEmbedded(t *testing.T) {
	c := newClock(2)
	passthrough := false
	s := newSource(t, c, func(config *Config) {
		config.Address, config.Passthrough = Embedded, func() bool { return passthrough }
	})
	if samples := nvidiatest.Sample(t, s); len(samples) != 2 || machine.Embedded != 1 {
		t.Errorf("%d samples of 2 GPUs, embedded %d", len(samples), machine.Embedded)
	}
	passthrough = true
	if samples := nvidiatest.Sample(t, s); len(samples) != 0 || machine.Embedded != 0 {
		t.Errorf("%d samples, embedded %d while GPUs may be handed to guests", len(samples), machine.Embedded)
	}
	passthrough = false
	if samples := nvidiatest.Sample(t, s); len(samples) != 2 || len(samples[1].Readings) == 0 {
		t.Errorf("samples after that: %v", samples)
	}
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"localhost:5555": "dcgmConnect_v2", "[::1]:5555": "dcgmConnect_v2", "/run/dcgm.sock": "dcgmConnect_v2",
		"tcp://localhost:5555": "dcgmConnect_v3", "unix:///run/dcgm.sock": "dcgmConnect_v3",
		"vsock://2:5555": "dcgmConnect_v3",
		Embedded:         "dcgmStartEmbedded", "localhost": "", ":5555": "", "": "", "http://localhost": "", "on": "",
	} {
		c := newClock(1)
		s, err := New(Config{Address: address, Now: c.Now})
		expect.That(t, (err == nil) == (want != ""), "%q: error %v", address, err)
		if err != nil {
			continue
		}
		if nvidiatest.Sample(t, s); machine.Calls(want) != 1 {
			t.Errorf("%q: %s was not called", address, want)
		}
		if err := s.close(t.Context()); err != nil || machine.Misuse != 0 {
			t.Errorf("%q: error %v, %d calls that the headers forbid", address, err, machine.Misuse)
		}
	}
}

// What the engine rejects does not affect other values, causes an error from time to time, and is
// read once possible.
func TestProfilingRefused(t *testing.T) {
	c := newClock(1)
	machine.Profiling = -36 // DCGM_ST_PROFILING_NOT_SUPPORTED
	s := newSource(t, c, nil)
	failed := 0
	for range 60 {
		samples, err := s.Sample(t.Context())
		if err != nil {
			failed++
		}
		if v, _ := nvidiatest.Value(samples[0], driver.Utilization); v != machine.GPUs[0].Utilization {
			t.Fatalf("utilization is %v", v)
		}
		c.Advance(1)
	}
	expect.That(t, failed == 1, "%d of 60 samples failed, want the first", failed)
	machine.Profiling = 0
	nvidiatest.Sample(t, s)
	c.Advance(1)
	if v, _ := nvidiatest.Value(nvidiatest.Sample(t, s)[0], driver.Utilization); v != machine.GPUs[0].Work.Graphics {
		t.Errorf("utilization is %v once the engine profiles", v)
	}
	if entities, fields := machine.Groups(); entities != 2 || fields != 5 {
		t.Errorf("the engine keeps %d groups of entities and %d of fields", entities, fields)
	}
}

// GPUs whose pipes can't be profiled have all other values, without an error.
func TestPipesRefused(t *testing.T) {
	c := newClock(1)
	machine.Pipes = -36 // DCGM_ST_PROFILING_NOT_SUPPORTED
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(10)
	got := nvidiatest.Sample(t, s)[0]
	if v, _ := nvidiatest.Value(got, driver.Occupancy); v != machine.GPUs[0].Work.Occupancy {
		t.Errorf("occupancy is %v", v)
	}
	if v, ok := nvidiatest.Value(got, driver.EngineUtilization, "fp64"); ok {
		t.Errorf("there is a reading of fp64: %v", v)
	}
}

func TestNotAskedForProfiling(t *testing.T) {
	c := newClock(1)
	machine.Profiling = -36
	s := newSource(t, c, func(config *Config) { config.Profiling = false })
	nvidiatest.Sample(t, s)
	for _, r := range nvidiatest.Sample(t, s)[0].Readings {
		expect.That(t, r.Quantity != driver.Occupancy && r.Quantity != driver.IOBytes && r.Labels[0] != "fp64",
			"there is a reading of %v", r.Quantity)
	}
}

// Errors have a reason. The XID error with the cause is reported while a GPU is lost.
func TestErrorsNameTheirReason(t *testing.T) {
	c := newClock(2)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	machine.GPUs[1].Lost = 1
	machine.XID(1, 79, -1, -1)
	c.Advance(10)
	samples, err := s.Sample(t.Context())
	expect.That(t, driver.ReasonOf(err) == driver.ReasonGPULost && strings.Contains(err.Error(), machine.GPUs[1].UUID()),
		"of a lost GPU: %v", err)
	reported := func(what string) {
		t.Helper()
		if n, _ := nvidiatest.Value(samples[1], driver.Errors, "xid", "79"); n != 1 || !samples[1].Unreadable {
			t.Errorf("of %s XID 79 is reported %v times, unreadable: %v", what, n, samples[1].Unreadable)
		}
	}
	reported("a lost GPU")
	machine.Down = 1
	samples, err = s.Sample(t.Context())
	expect.That(t, driver.ReasonOf(err) == driver.ReasonHostEngine, "of a lost engine: %v", err)
	reported("a lost engine")
}

// Threads, goroutines and memory stay constant over many ticks. There is one call at a time. It
// hangs first, so that its thread exists.
func TestFlat(t *testing.T) {
	c := newClock(8)
	machine.Partition(6, 7)
	machine.Partition(7, 3)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	nvidiatest.Flat(t, "DCGM_TICKS", 1, func() { hangOnce(t, s) }, func(i int) {
		nvidiatest.Sample(t, s)
		c.Advance(1)
		if i%100 == 99 { // partitions also change in the meantime
			machine.GPUs[7].Instances[2].Present ^= 1
		}
	}, func() int { return 0 })
	if entities, fields := machine.Groups(); entities != 3 || fields != 9 {
		t.Errorf("the engine keeps %d groups of entities and %d of fields", entities, fields)
	}
}

// hangOnce lets a call hang, and then return.
func hangOnce(t *testing.T, s *Source) {
	const function = "dcgmGetValuesSince_v2"
	machine.Hang(function, true)
	defer machine.Hang(function, false)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Sample(ctx)
	must.That(t, err != nil, "no error while a call hangs")
	machine.Hang(function, false)
	nvidiatest.Sample(t, s)
}

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
			nvidiatest.Bench(b, c, newSource(b, c, nil))
		})
	}
}

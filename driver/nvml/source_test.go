//go:build cgo

package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// newSource returns a source on the machine, which lets go of the library when the test ends.
func newSource(tb testing.TB, c *nvidiatest.Clock, change func(*Config)) *Source {
	config := Config{Library: machine.Library, Sysfs: tb.TempDir(), Now: c.Now}
	if change != nil {
		change(&config)
	}
	s := must.Get(New(config))(tb)
	s.callTimeout = time.Minute // for machines under load: what hangs has a test of its own
	tb.Cleanup(func() {
		if o := s.session.Current(); o != nil && machine.Users > 0 {
			_ = o.session.close(s.gpus)
		}
		expect.That(tb, machine.Misuse == 0, "%d calls with stale handles, or that NVML's header forbids", machine.Misuse)
	})
	return s
}

// of returns the sample of the hardware with that UUID.
func of(tb testing.TB, samples []driver.Sample, uuid string) driver.Sample {
	tb.Helper()
	for _, s := range samples {
		if s.Hardware.UUID == uuid {
			return s
		}
	}
	tb.Fatalf("no sample of %s", uuid)
	return driver.Sample{}
}

func TestSuite(t *testing.T) {
	for _, tc := range []struct {
		name   string
		layout func()
	}{
		{"8 GPUs", func() { machine.Reset(8) }},
		{"4 GPUs of 7 MIG instances", func() {
			machine.Reset(4)
			for i := range 4 {
				machine.Partition(i, 7)
			}
		}},
		{"mixed", func() {
			machine.Reset(3)
			machine.Partition(1, 3)
			machine.GPUs[2].MaxMIG, machine.GPUs[2].GPM = 0, 0
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { drivertest.Run(t, suite(tc.layout)) })
	}
}

// suite is the configuration of drivertest for a machine.
func suite(layout func()) drivertest.Config {
	c := newClock()
	fresh := func(tb testing.TB) driver.Source {
		layout()
		return newSource(tb, c, nil)
	}
	fault := func(name string, breakIt func(), silent bool,
		hits func(driver.Sample, driver.Reading) bool,
	) drivertest.Fault {
		return drivertest.Fault{
			Name: name, Silent: silent, Hits: hits,
			New: func(tb testing.TB) (driver.Source, func()) { return fresh(tb), breakIt },
		}
	}
	first := func(s driver.Sample) bool {
		uuid := machine.GPUs[0].UUID()
		return s.Hardware.UUID == uuid || s.Hardware.Parent == uuid
	}
	is := func(quantity driver.Quantity) func(driver.Sample, driver.Reading) bool {
		return func(s driver.Sample, r driver.Reading) bool { return first(s) && r.Quantity == quantity }
	}
	failing := func(function string, answer nvml.Return) func() {
		return func() { machine.Fail(function, 0, int(answer)) }
	}
	return drivertest.Config{
		Fills:   Fills(),
		New:     fresh,
		Advance: func() { c.Advance(11) }, // beyond the interval of slow fields
		Now:     c.Now,
		Absent: func(tb testing.TB) driver.Source {
			return newSource(tb, c, func(config *Config) { config.Library = filepath.Join(tb.TempDir(), "libnvidia-ml.so.1") })
		},
		Faults: []drivertest.Fault{
			fault("power can't be read", failing("nvmlDeviceGetPowerUsage", nvml.ERROR_UNKNOWN), false, is(driver.Power)),
			fault("energy is not supported", failing("nvmlDeviceGetTotalEnergyConsumption", nvml.ERROR_NOT_SUPPORTED), true,
				is(driver.Energy)),
			fault("memory can't be read", failing("nvmlDeviceGetMemoryInfo_v2", nvml.ERROR_UNKNOWN), false,
				func(s driver.Sample, r driver.Reading) bool {
					return first(s) && (r.Quantity == driver.MemoryUsed || r.Quantity == driver.MemoryCapacity ||
						r.Quantity == driver.MemoryReserved)
				}),
			fault("a field is not supported", func() { machine.GPUs[0].PCIeReplays = nan() }, true,
				func(s driver.Sample, r driver.Reading) bool { return first(s) && r.Labels[0] == "pcie_replay" }),
			fault("off the bus", func() { machine.GPUs[0].Lost = 1 }, false,
				func(s driver.Sample, _ driver.Reading) bool { return first(s) }),
			fault("driver unloaded", func() { machine.Init, machine.Users = int64(nvml.ERROR_LIB_RM_VERSION_MISMATCH), 0 },
				false,
				func(driver.Sample, driver.Reading) bool { return true }),
		},
	}
}

func TestNoDriver(t *testing.T) {
	c := newClock()
	machine.Reset(0)
	machine.Init = int64(nvml.ERROR_DRIVER_NOT_LOADED)
	s := newSource(t, c, nil)
	absent := func() {
		t.Helper()
		samples, err := s.Sample(t.Context())
		if len(samples) != 0 || !errors.Is(err, driver.ErrAbsent) || driver.ReasonOf(err) != driver.ReasonDriverNotLoaded {
			t.Errorf("without a driver: error %v, samples %v", err, samples)
		}
	}
	absent()
	before := machine.Calls("nvmlInit_v2")
	absent()
	expect.That(t, machine.Calls("nvmlInit_v2") == before, "NVML is initialised again at once")
	machine.Reset(1)
	c.Advance(retryFirst.Seconds())
	if samples := nvidiatest.Sample(t, s); len(samples) != 1 || len(samples[0].Readings) == 0 {
		t.Errorf("samples after the driver came: %v", samples)
	}
}

// A container that may not read a GPU in MIG mode gets an error that names the missing permission.
func TestNoPermission(t *testing.T) {
	machine.Reset(1)
	machine.Partition(0, 1)
	machine.Fail("nvmlDeviceGetPowerUsage", 0, int(nvml.ERROR_NO_PERMISSION))
	_, err := newSource(t, newClock(), nil).Sample(t.Context())
	if driver.ReasonOf(err) != driver.ReasonForbidden || !strings.Contains(err.Error(), "nvidia.migMonitor=true") {
		t.Errorf("error %v", err)
	}
}

// Why a library can't be opened is said as the dynamic linker does.
func TestNoLibrary(t *testing.T) {
	machine.Reset(1)
	missing := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	text := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	must.Do(t, os.WriteFile(text, []byte("no library\n"), 0o600))
	for path, want := range map[string]string{missing: "No such file", text: "too short"} {
		s := newSource(t, newClock(), func(c *Config) { c.Library = path })
		_, err := s.Sample(t.Context())
		if !errors.Is(err, driver.ErrAbsent) || driver.ReasonOf(err) != driver.ReasonNoLibrary ||
			!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q of %s", err, want, path)
		}
	}
}

func TestHungInitialisation(t *testing.T) {
	machine.Reset(2)
	machine.Hang("nvmlInit_v2", -1, true)
	defer machine.Hang("nvmlInit_v2", -1, false)
	s := newSource(t, newClock(), nil)
	before := runtime.NumGoroutine()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		begun := time.Now()
		samples, err := s.Sample(ctx)
		cancel()
		must.That(t, driver.ReasonOf(err) == driver.ReasonHung && len(samples) == 0,
			"got %d samples and %v", len(samples), err)
		took := time.Since(begun)
		expect.That(t, took <= callTimeout, "it took %v", took)
	}
	nvidiatest.AtMostGoroutines(t, before+1)
	machine.Hang("nvmlInit_v2", -1, false)
	if samples := nvidiatest.Sample(t, s); len(samples) != 2 {
		t.Errorf("%d samples once it returned", len(samples))
	}
}

// A GPU whose calls hang is unreadable; the others are read, and after the first time are not even
// late.
func TestHungGPU(t *testing.T) {
	c := newClock()
	machine.Reset(8)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	s.callTimeout = callTimeout
	hung := machine.GPUs[3].UUID()
	const function = "nvmlDeviceGetPowerUsage"
	machine.Hang(function, 3, true)
	defer machine.Hang(function, 3, false)
	before := runtime.NumGoroutine()
	for i := range 5 {
		c.Advance(1)
		begun := time.Now()
		samples, err := s.Sample(t.Context())
		took := time.Since(begun)
		expect.That(t, err != nil && strings.Contains(err.Error(), hung), "error %v", err)
		expect.That(t, len(of(t, samples, hung).Readings) == 0, "the GPU that hangs has readings")
		if i == 0 { // others are late too if the machine stands still
			for j, g := range s.gpus {
				if j != 3 && g.reading != nil {
					g.reading.Wait(t.Context())
				}
			}
			s.callTimeout = time.Minute
			_, _ = s.Sample(t.Context()) // what was late
			continue
		}
		expect.That(t, strings.Count(err.Error(), "GPU-") == 1, "error %v", err)
		for j := range 8 {
			if s := of(t, samples, machine.GPUs[j].UUID()); j != 3 && (len(s.Readings) == 0 || !s.Readings[0].At.Equal(c.Time)) {
				t.Errorf("sample %d: GPU %d has no new readings", i, j)
			}
		}
		expect.That(t, took <= s.callTimeout/2, "sample %d took %v: it waited for the GPU that hangs", i, took)
	}
	nvidiatest.AtMostGoroutines(t, before+1)
	machine.Hang(function, 3, false)
	readAgain(t, s, c, hung)
}

// readAgain samples until a device has readings again.
func readAgain(t *testing.T, s *Source, c *nvidiatest.Clock, uuid string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		c.Advance(1)
		samples, _ := s.Sample(t.Context())
		if len(of(t, samples, uuid).Readings) > 0 {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%s is not read again", uuid)
}

// Only the GPU that falls off the bus is lost. It recovers by itself. XID 79, which reports it, is
// reported at once.
func TestLostGPU(t *testing.T) {
	c := newClock()
	machine.Reset(3)
	machine.Partition(1, 2)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	nvidiatest.Sample(t, s)
	machine.GPUs[1].Lost = 1
	machine.XID(1, 79, -1, -1)
	lost, generation := machine.GPUs[1].UUID(), machine.Generation
	for range 30 {
		c.Advance(1)
		samples, err := s.Sample(t.Context())
		if driver.ReasonOf(err) != driver.ReasonGPULost {
			t.Fatalf("after %v: error %v", c.Sub(newClock().Time), err)
		}
		for _, sample := range samples {
			isLost := sample.Hardware.UUID == lost || sample.Hardware.Parent == lost
			reported, _ := nvidiatest.Value(sample, driver.Errors, "xid", "79")
			must.That(t, isLost == sample.Unreadable && isLost != (len(sample.Readings) > 1),
				"%s has %d readings, unreadable: %v", sample.Hardware.UUID, len(sample.Readings), sample.Unreadable)
			must.That(t, (sample.Hardware.UUID == lost) == (reported == 1),
				"%s has %v errors of XID 79", sample.Hardware.UUID, reported)
		}
		must.That(t, len(samples) == 5, "%d samples of 3 GPUs and 2 instances", len(samples))
	}
	again := machine.Generation - generation
	expect.That(t, again >= 1 && again <= 3, "NVML was initialised %d times in 30 s for the sake of a lost GPU", again)
	machine.GPUs[1].Lost = 0
	readAgain(t, s, c, lost)
	c.Advance(1)
	got := of(t, nvidiatest.Sample(t, s), lost)
	n, ok := nvidiatest.Value(got, driver.Errors, "xid", "79")
	expect.That(t, ok && n == 1, "XID 79 was counted %v times", n)
}

func TestDriverReload(t *testing.T) {
	c := newClock()
	machine.Reset(2)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	machine.Users, machine.Init = 0, int64(nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	for range 3 {
		c.Advance(1)
		samples, err := s.Sample(t.Context())
		must.That(t, err != nil && len(samples) == 2 && len(samples[0].Readings)+len(samples[1].Readings) == 0,
			"without the driver: %d samples, error %v", len(samples), err)
	}
	machine.Init = 0
	machine.GPUs[0].Energy = 1
	c.Advance(retryMost.Seconds())
	samples := nvidiatest.Sample(t, s)
	got, _ := nvidiatest.Value(of(t, samples, machine.GPUs[1].UUID()), driver.Power)
	expect.That(t, got == machine.GPUs[1].Power, "power after the reload: %v", got)
}

// Where GPUs may be handed to guests, no device file is open between samples.
func TestPassthroughClosesFiles(t *testing.T) {
	for _, passthrough := range []bool{false, true} {
		c := newClock()
		machine.Reset(4)
		s := newSource(t, c, func(config *Config) { config.Passthrough = func() bool { return passthrough } })
		for range 3 {
			samples := nvidiatest.Sample(t, s)
			must.That(t, len(samples) == 4 && len(samples[0].Readings) != 0,
				"passthrough %v: %d samples", passthrough, len(samples))
			open := openDevices(t)
			if passthrough && len(open) > 0 {
				t.Errorf("passthrough: open between samples: %v", open)
			}
			if !passthrough && len(open) != 4 {
				t.Errorf("the fake has %v open, and not the files of 4 devices: the test shows nothing", open)
			}
			c.Advance(1)
		}
	}
}

func openDevices(t *testing.T) []string {
	fds := must.Get(os.ReadDir("/proc/self/fd"))(t)
	var open []string
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && filepath.Dir(target) == machine.Files {
			open = append(open, filepath.Base(target))
		}
	}
	slices.Sort(open)
	return open
}

// NVML knows the GPUs from its initialisation. sysfs shows whether others are bound to the driver.
func TestFollowsTheDriversDevices(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	var sysfs string
	s := newSource(t, c, func(config *Config) { sysfs = config.Sysfs })
	bind := func(address string) {
		must.Do(t, os.MkdirAll(filepath.Join(sysfs, "bus", "pci", "drivers", "nvidia", address), 0o755))
	}
	bind("0000:1b:00.0")
	nvidiatest.Sample(t, s)
	generation := machine.Generation
	c.Advance(1)
	nvidiatest.Sample(t, s)
	expect.That(t, machine.Generation == generation, "NVML is initialised anew though nothing changed")
	machine.Count = 2
	machine.GPUs[1] = machine.GPUs[0]
	machine.GPUs[1].SetUUID("GPU-new", "NVIDIA H100")
	bind("0000:1c:00.0")
	nvidiatest.Sample(t, s)
	c.Advance(1)
	of(t, nvidiatest.Sample(t, s), "GPU-new")
	must.Do(t, os.Remove(filepath.Join(sysfs, "bus", "pci", "drivers", "nvidia", "0000:1c:00.0")))
	nvidiatest.Sample(t, s)
	machine.Count = 1
	c.Advance(1)
	samples := nvidiatest.Sample(t, s)
	expect.That(t, len(samples) == 1, "%d samples of one GPU", len(samples))
}

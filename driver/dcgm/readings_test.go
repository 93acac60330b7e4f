//go:build cgo

package dcgm

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/dcgm/dcgmtest"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func nan() float64 { return math.NaN() }

// Everything that the source reads of a GPU, against the machine's state in base units.
func TestQuantities(t *testing.T) {
	c := newClock(1)
	g := &machine.GPUs[0]
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	for range 10 { // a second more would be the errors' next
		c.Advance(1)
		nvidiatest.Sample(t, s)
	}
	got := nvidiatest.Sample(t, s)[0]
	want := nvidiatest.Quantities(g)
	maps.Copy(want, map[string]float64{
		"utilization": g.Work.Graphics, "engine_utilization sm": g.Work.SM, "engine_utilization tensor": g.Work.Tensor,
		"engine_utilization dram": g.Work.DRAM, "occupancy": g.Work.Occupancy, "engine_utilization int": g.Work.Integer,
		"engine_utilization fp64": g.Work.FP64, "engine_utilization fp32": g.Work.FP32,
		"engine_utilization fp16": g.Work.FP16, "io_bytes pcie transmit": 10 * g.PCIeTransmitRate,
		"io_bytes pcie receive": 10 * g.PCIeReceiveRate, "io_bytes nvlink transmit": 10 * g.NVLinkTransmitRate,
		"io_bytes nvlink receive": 10 * g.NVLinkReceiveRate,
		"throttled_seconds power": g.ThrottledPower, "throttled_seconds thermal": g.ThrottledThermal,
		"throttled_seconds sync_boost": g.ThrottledSyncBoost, "throttled_seconds board_limit": g.ThrottledBoardLimit,
		"throttled_seconds reliability": g.ThrottledReliability, "health healthy": 1,
	})
	expect.Equal(t, "readings", want, nvidiatest.Values(got), nvidiatest.Approximately())
	for _, r := range got.Readings {
		age := c.Sub(r.At)
		expect.That(t, age >= 0 && age <= 10*time.Second, "%v%q is of %v ago", r.Quantity, r.Labels, age)
	}
	wantHardware := driver.Hardware{
		UUID: g.UUID(), PCI: "0000:1b:00.0", Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", Serial: "1650823456700",
		FirmwareVersion: "96.00.61.00.01", DriverVersion: "580.65.06", CUDAVersion: "13.0",
	}
	expect.Equal(t, "hardware", wantHardware, got.Hardware)
}

// For a GPU in MIG mode, the instances have utilization and memory, and the GPU has only values of
// the whole.
func TestInstances(t *testing.T) {
	c := newClock(2)
	machine.Partition(1, 2)
	machine.GPUs[1].Instances[1].ComputeInstances = 2
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	machine.XID(1, 43, 0, 0)  // of the compute instance
	machine.XID(1, 44, 0, -1) // of the GPU instance
	machine.XID(1, 45, 1, 1)
	machine.XID(1, 48, -1, -1)
	c.Advance(1)
	samples := nvidiatest.Sample(t, s)
	got := map[string]map[string]float64{}
	for _, sample := range samples[1:] {
		got[sample.Hardware.Instance] = nvidiatest.Values(sample)
	}
	parent := got[""]
	delete(got, "")
	work := machine.GPUs[1].Instances[0].Work
	want := map[string]map[string]float64{
		"7/0": {
			"utilization": work.Graphics, "engine_utilization sm": work.SM, "engine_utilization tensor": work.Tensor,
			"engine_utilization dram": work.DRAM, "occupancy": work.Occupancy, "memory_used": work.Memory,
			"memory_capacity": work.MemoryTotal,
			"memory_reserved": work.MemoryReserved, "engine_utilization int": work.Integer, "engine_utilization fp64": work.FP64,
			"engine_utilization fp32": work.FP32, "engine_utilization fp16": work.FP16,
			"errors xid 43": 1, "errors xid 44": 1,
		},
		"8/0": {},
		"8/1": {"errors xid 45": 1},
	}
	expect.Equal(t, "readings of the instances", want, got, nvidiatest.Approximately())
	for _, name := range []string{"utilization", "memory_used", "memory_capacity", "occupancy", "engine_utilization sm"} {
		v, ok := parent[name]
		expect.That(t, !ok, "the parent has %s %v, which its instances have too", name, v)
	}
	expect.That(t, parent["power"] == machine.GPUs[1].Power && parent["errors xid 48"] == 1, "the parent has %v", parent)
	wantHardware := driver.Hardware{
		Kind: driver.KindPartition, Parent: machine.GPUs[1].UUID(), Instance: "7/0", Vendor: "nvidia",
		DriverVersion: "580.65.06", CUDAVersion: "13.0",
	}
	expect.Equal(t, "hardware of an instance", wantHardware, samples[2].Hardware)
}

// A GPU that is partitioned, and otherwise partitioned, while it is read.
func TestRepartition(t *testing.T) {
	c := newClock(1)
	s := newSource(t, c, nil)
	instances := func() (out []string) {
		c.Advance(1)
		for _, sample := range nvidiatest.Sample(t, s) {
			out = append(out, sample.Hardware.Instance)
		}
		return out
	}
	for _, step := range []struct {
		change func()
		want   []string
	}{
		{func() {}, []string{""}},
		{func() { machine.Partition(0, 3) }, []string{"", "7/0", "8/0", "9/0"}},
		{func() { machine.GPUs[0].Instances[1].Present = 0 }, []string{"", "7/0", "9/0"}},
		{func() { machine.GPUs[0].MIG = 0 }, []string{""}},
	} {
		step.change()
		expect.Equal(t, "instances", step.want, instances())
	}
	c.Advance(10)
	_, ok := nvidiatest.Value(nvidiatest.Sample(t, s)[0], driver.MemoryUsed)
	expect.That(t, ok, "the memory of a GPU whose MIG mode was switched off is not read")
}

// A MIG device of another profile is another one, though its numbers are the same: nothing that was
// counted is its own.
func TestOtherInstanceOfTheSameNumber(t *testing.T) {
	c := newClock(1)
	machine.Partition(0, 1)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	machine.XID(0, 43, 0, 0)
	c.Advance(1)
	if n, _ := nvidiatest.Value(nvidiatest.Sample(t, s)[1], driver.Errors, "xid", "43"); n != 1 {
		t.Errorf("the error was counted %v times", n)
	}
	machine.GPUs[0].Instances[0].Profile = 9
	c.Advance(1)
	if n, ok := nvidiatest.Value(nvidiatest.Sample(t, s)[1], driver.Errors, "xid", "43"); ok {
		t.Errorf("a new instance has %v errors", n)
	}
}

// XID errors are events: each counts once, however often the same code stands in the field, and
// none of before.
func TestXIDs(t *testing.T) {
	c := newClock(1)
	machine.XID(0, 13, -1, -1) // before the exporter was there
	c.Advance(1)
	s := newSource(t, c, nil)
	count := func(code string) float64 {
		n, _ := nvidiatest.Value(nvidiatest.Sample(t, s)[0], driver.Errors, "xid", code)
		return n
	}
	if n := count("13"); n != 0 {
		t.Errorf("an error of before was counted %v times", n)
	}
	c.Advance(1)
	machine.XID(0, 31, -1, -1)
	c.Advance(0.01)
	machine.XID(0, 31, -1, -1)
	machine.XID(0, 79, -1, -1)
	c.Advance(1)
	for range 5 {
		a, b := count("31"), count("79")
		expect.That(t, a == 2 && b == 1, "XID 31 was counted %v times, want 2, and 79 %v times, want 1", a, b)
		c.Advance(1)
	}
	machine.XID(0, 31, -1, -1)
	c.Advance(1)
	if n := count("31"); n != 3 {
		t.Errorf("XID 31 was counted %v times, want 3", n)
	}
	for _, r := range nvidiatest.Sample(t, s)[0].Readings {
		if r.Labels[0] == "xid" && r.Labels[1] == "31" && !r.Since.Before(c.Add(-7*time.Second)) {
			t.Errorf("there was none until %v, though one came earlier", r.Since)
		}
	}
}

func TestHealth(t *testing.T) {
	c := newClock(2)
	s := newSource(t, c, nil)
	status := func() (out []string) {
		c.Advance(10)
		for _, sample := range nvidiatest.Sample(t, s) {
			for _, r := range sample.Readings {
				if r.Quantity == driver.Health {
					out = append(out, strings.TrimSpace(fmt.Sprintf("%s %v %s", r.Labels[0], r.Value, sample.HealthReason)))
				}
			}
		}
		return out
	}
	for _, step := range []struct {
		health dcgm.HealthResult
		want   string
	}{
		{dcgm.DCGM_HEALTH_RESULT_PASS, "healthy 1"},
		{dcgm.DCGM_HEALTH_RESULT_WARN, "healthy 1"},
		{dcgm.DCGM_HEALTH_RESULT_FAIL, "unhealthy 1 the fake says 20"},
		{dcgm.DCGM_HEALTH_RESULT_PASS, "healthy 1"},
	} {
		machine.GPUs[1].Health = int64(step.health)
		expect.Equal(t, fmt.Sprintf("result %d", step.health), []string{"healthy 1", step.want}, status())
	}
}

// An engine whose clock is ahead does not cause readings in the future.
func TestClockAhead(t *testing.T) {
	c := newClock(1)
	machine.Time += 30
	s := newSource(t, c, nil)
	for range 3 {
		for _, r := range nvidiatest.Sample(t, s)[0].Readings {
			expect.That(t, !r.At.After(c.Time), "%v is of %v, and it is %v", r.Quantity, r.At, c.Time)
		}
		c.Advance(1)
	}
}

// Infrequent samples include everything that the engine read in between.
func TestSlowReader(t *testing.T) {
	c := newClock(1)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	for range 4 {
		c.Advance(3)
		nvidiatest.Sample(t, s)
	}
	rate := machine.GPUs[0].PCIeTransmitRate
	v, _ := nvidiatest.Value(nvidiatest.Sample(t, s)[0], driver.IOBytes, "pcie", "transmit")
	expect.That(t, v == 12*rate, "%v bytes in 12 s at %v per second", v, rate)
}

// A rate applies to the time since the previous one, unless that is too long ago.
func TestIntegral(t *testing.T) {
	var i integral
	at := time.Unix(1_800_000_000, 0)
	for _, step := range []struct {
		seconds, rate, want float64
	}{
		{0, 10, 0}, {0.5, 10, 5}, {2, 4, 13}, {0, 100, 13}, {-1, 100, 13}, {1, -7, 13}, {60, 10, 13}, {1, 1, 14},
	} {
		at = at.Add(time.Duration(step.seconds * float64(time.Second)))
		if i.take(step.rate, at); i.sum != step.want {
			t.Errorf("after %v s at %v: %v, want %v", step.seconds, step.rate, i.sum, step.want)
		}
	}
}

func FuzzNumber(f *testing.F) {
	for _, kind := range []uint{
		dcgm.DCGM_FT_INT64, dcgm.DCGM_FT_DOUBLE, dcgm.DCGM_FT_STRING, dcgm.DCGM_FT_TIMESTAMP,
		dcgm.DCGM_FT_BINARY, 0,
	} {
		for _, bits := range []uint64{
			0, 1, uint64(dcgm.DCGM_FT_INT64_BLANK), uint64(dcgm.DCGM_FT_INT64_NOT_PERMISSIONED),
			math.Float64bits(dcgm.DCGM_FT_FP64_BLANK),
			math.Float64bits(dcgm.DCGM_FT_FP64_NOT_SUPPORTED), math.Float64bits(nan()), math.Float64bits(math.Inf(-1)),
			math.MaxUint64,
		} {
			f.Add(kind, bits)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint, bits uint64) {
		v, ok := number(kind, bits)
		if !ok {
			return
		}
		blank := dcgm.DCGM_FT_FP64_BLANK
		if kind == dcgm.DCGM_FT_INT64 {
			blank = float64(dcgm.DCGM_FT_INT64_BLANK)
			expect.That(t, int64(bits) < dcgm.DCGM_FT_INT64_BLANK, "the blank value %x became %v", bits, v)
		}
		expect.That(t, !math.IsNaN(v) && !math.IsInf(v, 0) && v <= blank, "type %d: %x became %v", kind, bits, v)
	})
}

// library is the source on a machine of one GPU. An earlier engine does not know all conditions.
func library() nvidiatest.Library {
	early := map[string]int64{"early": 1}
	return nvidiatest.Library{
		Versions: map[string][]string{"4.6": nil, "early": {"unrepairable_memory", "recovery_action"}},
		Start: func(t *testing.T, version string) (*nvidiatest.Clock, driver.Source) {
			c := newClock(1)
			machine.Early = early[version]
			return c, newSource(t, c, nil)
		},
		GPU: &machine.GPUs[0], Wait: slow.interval(),
	}
}

func TestNeedsAttention(t *testing.T) { library().NeedsAttention(t) }

func TestThrottleActive(t *testing.T) { library().ThrottleActive(t) }

func TestNVLink5(t *testing.T) { library().NVLink5(t, "4.6") }

// readingsOf returns the readings of a quantity by their labels, after a time in which the engine
// reads everything.
func readingsOf(t *testing.T, change func(*dcgmtest.Condition), q driver.Quantity) map[string]float64 {
	c := newClock(1)
	change(&machine.GPUs[0].Condition)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(slow.interval().Seconds())
	return nvidiatest.Readings(nvidiatest.Sample(t, s)[0], q)
}

// The state of a GPU in its fabric: dcgmFabricManagerStatus_t, and NVML's summary of its health.
func TestFabricState(t *testing.T) {
	for in, want := range map[[2]float64]string{
		{0, 0}: "", {1, 0}: "not_started", {2, 0}: "in_progress", {3, 1}: "healthy", {3, nan()}: "healthy",
		{4, 1}: "failed", {3, 2}: "unhealthy", {3, 3}: "limited", {5, 0}: "", {6, 0}: "", {nan(), 1}: "",
	} {
		t.Run(fmt.Sprint(in), func(t *testing.T) {
			states := map[string]float64{}
			if want != "" {
				states[want] = 1
			}
			got := readingsOf(t, func(c *dcgmtest.Condition) { c.FabricStatus, c.FabricSummary = in[0], in[1] },
				driver.FabricState)
			expect.Equal(t, "", states, got)
		})
	}
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../nvidia/README.md", "DCGM", Fills()) }

//go:build cgo

package nvml

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func nan() float64 { return math.NaN() }

// Everything that the source reads of a GPU, against the machine's state in base units.
func TestQuantities(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	g.GPM = 0
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	got := of(t, nvidiatest.Sample(t, s), g.UUID())
	want := nvidiatest.Quantities(g)
	maps.Copy(want, map[string]float64{
		"utilization": g.Utilization, "clock graphics": g.ClockGraphics, "engine_utilization dram": g.MemoryUtilization,
		"io_bytes nvlink transmit": g.NVLinkTransmit, "io_bytes nvlink receive": g.NVLinkReceive,
		"throttled_seconds power": g.Throttled.Power, "throttled_seconds thermal": g.Throttled.SoftThermal,
		"throttled_seconds hw_thermal": g.Throttled.HardThermal, "throttled_seconds hw_power_brake": g.Throttled.PowerBrake,
		"throttled_seconds sync_boost": g.Throttled.SyncBoost, "throttled_seconds board_limit": g.Throttled.BoardLimit,
		"throttled_seconds reliability": g.Throttled.Reliability,
		"engine_utilization jpeg":       g.JPEG, "engine_utilization ofa": g.OFA,
	})
	expect.Equal(t, "readings", want, nvidiatest.Values(got), nvidiatest.Approximately())
	wantHardware := driver.Hardware{
		UUID: g.UUID(), PCI: "0000:1b:00.0", DeviceNodes: []string{"/dev/nvidia0"},
		Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", Serial: "1650823456700", FirmwareVersion: "96.00.61.00.01",
		DriverVersion: "580.65.06", CUDAVersion: "13.0",
	}
	expect.Equal(t, "hardware", wantHardware, got.Hardware)
}

// The numbers of the throttling fields depend on the driver. A number with another meaning in a
// driver is not read as throttling: settings of power smoothing are 0 there.
func TestDriverVersions(t *testing.T) {
	whole := []string{"power", "thermal", "hw_thermal", "hw_power_brake", "sync_boost", "board_limit", "reliability"}
	older := []string{"power", "thermal", "sync_boost", "board_limit", "reliability"}
	for version, reasons := range map[string][]string{
		"570.86.15": older, "575.51.03": whole, "580.65.06": whole, "580.159.04": whole, "590.44.01": whole, "": older,
	} {
		t.Run(version, func(t *testing.T) {
			machine.Reset(1)
			machine.SetDriver(version)
			g := &machine.GPUs[0]
			g.PowerSmoothing = 1
			want := map[string]float64{
				"power": g.Throttled.Power, "thermal": g.Throttled.SoftThermal, "sync_boost": g.Throttled.SyncBoost,
				"board_limit": g.Throttled.BoardLimit, "reliability": g.Throttled.Reliability,
				"hw_thermal": g.Throttled.HardThermal, "hw_power_brake": g.Throttled.PowerBrake,
			}
			if len(reasons) == len(older) {
				want["thermal"] = g.Throttled.Thermal
			}
			maps.DeleteFunc(want, func(reason string, _ float64) bool { return !slices.Contains(reasons, reason) })
			got := map[string]float64{}
			for _, r := range of(t, nvidiatest.Sample(t, newSource(t, newClock(), nil)), g.UUID()).Readings {
				if r.Quantity == driver.ThrottledSeconds {
					got[r.Labels[0]] = r.Value
				}
			}
			expect.Equal(t, "seconds of throttling", want, got, nvidiatest.Approximately())
		})
	}
}

// GPM is taken before the coarser rates, and gives what these have not.
func TestGPM(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	s := newSource(t, c, nil)
	first := nvidiatest.Values(of(t, nvidiatest.Sample(t, s), g.UUID()))
	expect.That(t, first["utilization"] == g.Utilization && first["occupancy"] == 0,
		"the first sample has utilization %v and occupancy %v", first["utilization"], first["occupancy"])
	g.Utilization = 0.505 // no percentage has this value
	c.Advance(1)
	got := nvidiatest.Values(of(t, nvidiatest.Sample(t, s), g.UUID()))
	for name, want := range map[string]float64{
		"utilization": 0.505, "engine_utilization sm": 0.505 / 2, "occupancy": 0.505 / 4,
		"engine_utilization tensor": 0.505 / 8,
		"engine_utilization dram":   0.25, "engine_utilization decoder": g.Decoder, "engine_utilization int": 0.11,
		"engine_utilization fp64": 0.12, "engine_utilization fp32": 0.13, "engine_utilization fp16": 0.14,
	} {
		expect.That(t, math.Abs(got[name]-want) <= 1e-6, "%s is %v, want %v", name, got[name], want)
	}
	g.Utilization = 0.9
	c.Advance(0.05) // too soon for another GPM sample: the readings are those of before, with their time
	for _, r := range of(t, nvidiatest.Sample(t, s), g.UUID()).Readings {
		if r.Quantity == driver.Utilization && (math.Abs(r.Value-0.505) > 1e-6 || !r.At.Equal(c.Add(-50*time.Millisecond))) {
			t.Errorf("utilization %v of %v", r.Value, r.At)
		}
	}
	expect.That(t, machine.GPMSamples == 2, "%d GPM samples are allocated for one GPU", machine.GPMSamples)
	machine.GPMNaN = int64(nvml.GPM_METRIC_GRAPHICS_UTIL)
	c.Advance(1)
	v, ok := nvidiatest.Value(of(t, nvidiatest.Sample(t, s), g.UUID()), driver.Utilization)
	expect.That(t, ok && v == g.Utilization, "utilization is %v, want NVML's own where GPM answers NaN", v)
}

// The node of the GPU's memory is sysfs's, where that has one.
func TestNUMANode(t *testing.T) {
	for content, want := range map[string]string{"1": "1", "0": "0", "-1": ""} {
		c := newClock()
		machine.Reset(1)
		machine.Partition(0, 1)
		s := newSource(t, c, func(config *Config) {
			drivertest.WriteTree(t, config.Sysfs, "bus/pci/devices/0000:1b:00.0/numa_node: "+content)
		})
		for _, got := range nvidiatest.Sample(t, s) {
			expect.Is(t, got.Hardware.NUMANode, want, "%q: %s is of node", content, got.Hardware.UUID)
		}
	}
}

// Values that hardly change are read every 10 s, all of them in one call.
func TestSlowFields(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	s := newSource(t, c, nil)
	for range 10 {
		nvidiatest.Sample(t, s)
		c.Advance(1)
	}
	if n := machine.Calls("nvmlDeviceGetFieldValues"); n != 10+1 {
		t.Errorf("nvmlDeviceGetFieldValues was called %d times in 10 samples, want one each and one for what is slow", n)
	}
	g.Corrected += 7
	v, _ := nvidiatest.Value(nvidiatest.Sample(t, s)[0], driver.Errors, "ecc_corrected")
	expect.That(t, v == g.Corrected, "ecc_corrected is %v after 10 s, want %v", v, g.Corrected)
}

// Traffic is counted by GPM, and over NVLink by the GPU's counters where there is no GPM.
func TestTraffic(t *testing.T) {
	for gpm, want := range map[int64]map[string]float64{
		1: {
			"pcie transmit": 10 * 2e9, "pcie receive": 10 * 1e9, "nvlink transmit": 10 * 1000 * 1024, "nvlink receive": 10 * 3e6,
		},
		0: {"nvlink transmit": 1<<40 + 10*1000*1024, "nvlink receive": 1 << 41},
	} {
		c := newClock()
		machine.Reset(1)
		machine.GPUs[0].GPM = gpm
		s := newSource(t, c, nil)
		for range 10 {
			nvidiatest.Sample(t, s)
			c.Advance(1)
		}
		got := nvidiatest.Readings(nvidiatest.Sample(t, s)[0], driver.IOBytes)
		expect.Equal(t, "traffic after 10 s", want, got, nvidiatest.Approximately())
	}
}

// The memory's temperature is an integer also where the driver gives it another type. What no
// memory has is none.
func TestMemoryTemperature(t *testing.T) {
	for _, tc := range []struct {
		driver  string
		celsius float64
		want    bool
	}{{"580.65.06", 70, true}, {"580.65.06", 0, false}, {"580.65.06", 255, false}} {
		machine.Reset(1)
		machine.SetDriver(tc.driver)
		machine.GPUs[0].MemoryTemperature = tc.celsius
		got, ok := nvidiatest.Value(nvidiatest.Sample(t, newSource(t, newClock(), nil))[0], driver.Temperature, "memory")
		expect.That(t, ok == tc.want && (!ok || got == tc.celsius),
			"%s: %v °C is read as %v, %v", tc.driver, tc.celsius, got, ok)
	}
}

// The library of an old driver lacks functions: they are not called, which would end the program.
func TestOldLibrary(t *testing.T) {
	machine.Reset(1)
	s := newSource(t, newClock(), func(c *Config) { c.Library = machine.OldLibrary })
	got := nvidiatest.Values(of(t, nvidiatest.Sample(t, s), machine.GPUs[0].UUID()))
	expect.That(t, got["power"] == machine.GPUs[0].Power, "power is %v", got["power"])
	for _, function := range []string{
		"nvmlDeviceGetTemperatureV", "nvmlDeviceGetJpgUtilization",
		"nvmlDeviceGetOfaUtilization", "nvmlDeviceGetFieldValues", "nvmlGpmSampleGet",
	} {
		expect.That(t, machine.Calls(function) == 0, "%s was called", function)
	}
	_, ok := got["engine_utilization jpeg"]
	expect.That(t, !ok, "what the library has no function for has a reading")
}

// Unsupported values are requested from time to time, not every time.
func TestUnsupportedIsNotAskedFor(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	machine.GPUs[0].JPEG = nan()
	s := newSource(t, c, nil)
	for range 20 {
		nvidiatest.Sample(t, s)
		c.Advance(1)
	}
	if n := machine.Calls("nvmlDeviceGetJpgUtilization"); n != 1 {
		t.Errorf("asked for %d times in 20 s", n)
	}
	machine.GPUs[0].JPEG = 0.5
	c.Advance(recheck.Seconds())
	v, ok := nvidiatest.Value(nvidiatest.Sample(t, s)[0], driver.EngineUtilization, "jpeg")
	expect.That(t, ok && v == 0.5, "jpeg is %v after it came to be supported", v)
}

func FuzzDecode(f *testing.F) {
	for kind := range uint32(nvml.VALUE_TYPE_COUNT) + 1 {
		f.Add(kind, uint64(0x8000_0000_ffff_0001))
	}
	f.Add(uint32(nvml.VALUE_TYPE_DOUBLE), math.Float64bits(math.Inf(1)))
	f.Fuzz(func(t *testing.T, kind uint32, bits uint64) {
		var value [8]byte
		for i := range value {
			value[i] = byte(bits >> (8 * i))
		}
		v, ok := decode(nvml.ValueType(kind), value)
		if ok == (kind >= uint32(nvml.VALUE_TYPE_COUNT)) && kind != uint32(nvml.VALUE_TYPE_DOUBLE) {
			t.Errorf("type %d: %v", kind, ok)
		}
		if ok && (math.IsNaN(v) || math.IsInf(v, 0)) {
			t.Errorf("type %d: %v", kind, v)
		}
		if kind == uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG) && uint64(v) != bits && v != float64(bits) {
			t.Errorf("%d became %v", bits, v)
		}
	})
}

package intelgpu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A GT's utilization is unknown where its counter of idle time can't be believed, and then the
// GPU's is too.
func TestIdleCounter(t *testing.T) {
	const idle, status = "tile0/gt0/gtidle/idle_residency_ms: ", "tile0/gt0/gtidle/idle_status: "
	for name, tc := range map[string]struct {
		before, after string
		want          float64
		known         bool
	}{
		"half":                      {idle + "1000", idle + "1500", 0.5, true},
		"read a little late":        {idle + "1000", idle + "2010", 0, true},
		"busy all the time":         {idle + "1000", idle + "1000", 1, true},
		"fell":                      {idle + "1000", idle + "10", 0, false},
		"rose by more than time":    {idle + "1000", idle + "9000", 0, false},
		"never counted":             {idle + "0", idle + "0", 0, false},
		"stands still while idle":   {idle + "1000\n" + battlemageFolder + status + "gt-c6", idle + "1000", 0, false},
		"idle state that is active": {idle + "1000\n" + battlemageFolder + status + "gt-c6", idle + "1500", 0.5, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, server(t))
			m.later(time.Second)
			m.Write(battlemageFolder + tc.before + "\n")
			m.sample()
			m.later(time.Second)
			m.Write(battlemageFolder + tc.after + "\n")
			got := drivertest.Values(m.sample()[battlemage])
			share, known := got["utilization"]
			engine, knownEngine := got["engine_utilization render"]
			expect.That(t, known == tc.known && knownEngine == tc.known && share == tc.want && engine == tc.want,
				"utilization %v, %v, of the engine %v, %v; want %v, %v", share, known, engine, knownEngine, tc.want, tc.known)
			_, ok := got["engine_utilization video"]
			expect.That(t, ok, "the other GT's is unknown too")
		})
	}
}

// A GT of i915 that may not enter its idle state is not busy for that.
func TestNoIdleState(t *testing.T) {
	for enabled, known := range map[string]bool{"0": false, "1": true} {
		m := newMachine(t, server(t))
		m.Write(arcGT + "rc6_enable: " + enabled + "\n")
		m.sample()
		m.Clock = m.Clock.Add(time.Second) // the counter stands still
		share, ok := drivertest.Values(m.sample()[arc])["utilization"]
		expect.That(t, ok == known && (!known || share == 1), "rc6_enable %s: utilization %v, %v", enabled, share, ok)
	}
}

// Samples that follow each other closely repeat the utilization of the last window.
func TestWindow(t *testing.T) {
	m := newMachine(t, server(t))
	m.sample()
	m.later(time.Second)
	want := utilization(t, m)
	m.later(50 * time.Millisecond)
	expect.Is(t, utilization(t, m), want, "after a short while")
	m.later(100 * time.Millisecond)
	if got := utilization(t, m); !got.At.Equal(m.Clock) {
		t.Errorf("%+v after a window, at %v", got, m.Clock)
	}
}

func utilization(t *testing.T, m *machine) driver.Reading {
	t.Helper()
	for _, r := range m.sample()[battlemage].Readings {
		if r.Quantity == driver.Utilization {
			return r
		}
	}
	t.Fatal("no utilization")
	return driver.Reading{}
}

// A suspended device is idle, and is not woken: nothing else of it is read.
func TestSuspended(t *testing.T) {
	m := newMachine(t, server(t))
	m.sample()
	m.later(time.Second)
	m.sample()
	m.Write(battlemageFolder + "power/runtime_status: suspended\n" + battlemageFolder + "tile0/gt0/gtidle/name: unread\n")
	m.later(slowEvery)
	want := map[string]float64{"utilization": 0, "engine_utilization render": 0, "engine_utilization video": 0}
	expect.Equal(t, "while it is suspended", want, drivertest.Values(m.sample()[battlemage]))
	m.Write(battlemageFolder + "power/runtime_status: active\n" + battlemageFolder + "tile0/gt0/gtidle/name: gt0-rc\n")
	m.later(time.Second)
	got := drivertest.Values(m.sample()[battlemage])
	expect.That(t, got["energy"] != 0 && got["utilization"] == 0 && got["power"] == 0, "just after: %v", got)
	m.later(slowEvery)
	m.sample()
	expect.Equal(t, "series later", len(wholeServer()[battlemage]), len(drivertest.Values(m.sample()[battlemage])))
}

// A status that names no reason is another reason; reasons of later hardware have a name.
func TestThrottling(t *testing.T) {
	const throttle = battlemageFolder + "tile0/gt1/freq0/throttle/"
	m := newMachine(t, server(t), battlemageFolder+"tile0/gt0/freq0/throttle/status: 0\n", throttle+"status: 1\n")
	check := func(want string) {
		t.Helper()
		got := drivertest.Values(m.sample()[battlemage])
		for _, reason := range []string{"power", "thermal", "hw_thermal", "other"} {
			if active := got["throttle_active "+reason] == 1; active != (reason == want) {
				t.Errorf("%s is %v, want %s alone", reason, active, want)
			}
		}
	}
	check("other")
	m.Write(throttle + "reason_soc_thermal: 1\n")
	m.later(slowEvery)
	check("thermal")
	for reason, want := range map[string]string{
		"pl2": "power", "psys_pl1": "power", "ratl": "thermal", "vr_thermalert": "hw_thermal", "iccmax": "other",
		"of a later kernel": "other",
	} {
		expect.Is(t, reasonName(reason), want, "%s", reason)
	}
}

// Each status of a Gaudi is a condition, or none.
func TestStatus(t *testing.T) {
	for status, want := range map[string]string{
		"Operational": "none ok", "In reset": "none ok", "Needs reset": "reset recovery_action",
		"Malfunction": "investigate recovery_action", "Of a later kernel": "",
	} {
		m := newMachine(t, server(t), gaudiFolder+"status: "+status+"\n")
		got := ""
		for series, value := range drivertest.Values(m.sample()[gaudi]) {
			if condition, ok := strings.CutPrefix(series, "needs_attention "); ok && value == 1 {
				got += condition
			}
		}
		expect.That(t, got == want, "%s: %q, want %q", status, got, want)
	}
}

// An NPU is read once a second at most, as its kernel driver asks.
func TestNPUInTurn(t *testing.T) {
	m := newMachine(t, server(t))
	m.sample()
	first := m.Clock
	m.later(npuEvery / 3)
	for _, r := range m.sample()[npu].Readings {
		expect.That(t, r.At.Equal(first), "%v was read again after %v", r.Quantity, npuEvery/3)
	}
	m.later(npuEvery)
	for _, r := range m.sample()[npu].Readings {
		expect.That(t, r.At.Equal(m.Clock), "%v is of %v, want %v", r.Quantity, r.At, m.Clock)
	}
}

// Devices are added and removed; the counters of the others continue.
func TestHotplug(t *testing.T) {
	m := newMachine(t, server(t))
	m.sample()
	m.later(time.Second)
	m.sample()
	must.Do(t, os.Remove(filepath.Join(m.Root, "class", "drm", "card3")))
	must.Do(t, os.Remove(filepath.Join(m.Root, "class", "accel", "accel0")))
	m.later(time.Second)
	got := m.sample()
	if _, ok := got[arc]; ok {
		t.Error("a graphics card that is gone has a sample")
	}
	if _, ok := got[gaudi]; ok {
		t.Error("an accelerator that is gone has a sample")
	}
	expect.Is(t, drivertest.Values(got[battlemage])["utilization"], 0.75, "utilization of a card that stayed")
	m.Write("class/drm/card3 -> ../../" + strings.TrimSuffix(arcFolder, "/") + "/drm/card3\n")
	m.later(time.Second)
	expect.Is(t, drivertest.Values(m.sample()[arc])["energy"], 40_300, "energy of a card that came back")
	must.Do(t, os.RemoveAll(filepath.Join(m.Root, "devices", "pci0000:0a")))
	if _, ok := m.sample()[arc]; ok {
		t.Error("a card whose folder is gone has a sample")
	}
}

// Of many devices a sample reads all of a few.
func TestInTurns(t *testing.T) {
	const devices = 2*slowAtOnce + 1
	m := newMachine(t, cards(devices))
	read := map[string]bool{}
	for tick := range 4 {
		slow := 0
		for address, s := range m.sample() {
			for _, r := range s.Readings {
				if r.Quantity == driver.PowerLimit && r.At.Equal(m.Clock) {
					slow++
					read[address] = true
				}
			}
		}
		if want := min(slowAtOnce, devices-tick*slowAtOnce); slow != max(0, want) {
			t.Errorf("tick %d: %d devices were read wholly, want %d", tick, slow, want)
		}
		m.Clock = m.Clock.Add(time.Second)
	}
	expect.That(t, len(read) == devices, "%d devices were read wholly", len(read))
}

// cards is a tree of GPUs of xe.
func cards(n int) string {
	var tree strings.Builder
	for i := range n {
		number := strconv.Itoa(i)
		address := "0000:" + strconv.FormatInt(int64(0x10+i), 16) + ":00.0"
		folder := "devices/pci0000:00/" + address + "/"
		line := func(path, content string) { tree.WriteString(folder + path + ": " + content + "\n") }
		tree.WriteString("class/drm/card" + number + " -> ../../" + folder + "drm/card" + number + "\n" +
			folder + "drm/card" + number + "/device -> ../../../" + address + "\n" +
			folder + "driver -> ../../../bus/pci/drivers/xe\n")
		line("power/runtime_status", "active")
		for _, gt := range []string{"tile0/gt0/", "tile0/gt1/"} {
			line(gt+"gtidle/name", map[string]string{"tile0/gt0/": "gt0-rc", "tile0/gt1/": "gt1-mc"}[gt])
			line(gt+"gtidle/idle_status", "gt-c0")
			line(gt+"gtidle/idle_residency_ms", "1000")
			line(gt+"freq0/act_freq", "1000")
			line(gt+"freq0/throttle/status", "0")
			for _, reason := range []string{"pl1", "pl2", "pl4", "prochot", "thermal", "ratl", "vr_tdc", "vr_thermalert"} {
				line(gt+"freq0/throttle/reason_"+reason, "0")
			}
		}
		for file, content := range map[string]string{
			"name": "xe", "energy1_input": "1000000", "power1_max": "100000000", "temp2_input": "50000", "temp2_label": "pkg",
			"temp3_input": "60000", "temp3_label": "vram", "fan1_input": "1000",
		} {
			line("hwmon/hwmon"+number+"/"+file, content)
		}
	}
	return tree.String()
}

func TestSource(t *testing.T) {
	fault := func(name, tree, address string, hits func(driver.Reading) bool) drivertest.FileFault[*machine] {
		return drivertest.FileFault[*machine]{
			Name: name, Break: func(m *machine) { m.Write(tree); m.later(slowEvery) },
			Hits: func(s driver.Sample, r driver.Reading) bool { return s.Hardware.PCI == address && hits(r) },
		}
	}
	of := func(quantities ...driver.Quantity) func(driver.Reading) bool {
		return func(r driver.Reading) bool { return slices.Contains(quantities, r.Quantity) && r.Labels[0] != "video" }
	}
	drivertest.Files[*machine]{
		Fills: Fills(),
		New: func(tb testing.TB) *machine {
			m := newMachine(tb, server(tb))
			m.sample() // rates are of the second one
			m.later(time.Second)
			return m
		},
		Absent:  func(tb testing.TB) *machine { return newMachine(tb) },
		Source:  func(m *machine) driver.Source { return m.source },
		Advance: func(m *machine) { m.later(slowEvery) },
		Needed:  []string{"/throttle"}, // a reason that is not there is none
		Faults: []drivertest.FileFault[*machine]{
			fault("idle time without a number", battlemageFolder+"tile0/gt0/gtidle/idle_residency_ms: long\n", battlemage,
				of(driver.Utilization, driver.EngineUtilization)),
			fault("energy without a number", arcFolder+"hwmon/hwmon6/energy1_input: much\n", arc,
				of(driver.Energy, driver.Power)),
			fault("a clock without a number", arcGT+"rps_act_freq_mhz: fast\n", arc, of(driver.Clock)),
			fault("throttling without a number", arcGT+"throttle_reason_status: yes\n", arc, of(driver.ThrottleActive)),
			fault("a limit without a number", gaudiFolder+"max_power: all\n", gaudi, of(driver.PowerLimit)),
			fault("busy time without a number", npuFolder+"npu_busy_time_us: -1\n", npu,
				of(driver.Utilization, driver.ActiveSeconds)),
			fault("a temperature without a number", battlemageFolder+"hwmon/hwmon3/temp3_input: hot\n", battlemage,
				func(r driver.Reading) bool { return r.Quantity == driver.Temperature && r.Labels[0] == "memory" }),
		},
	}.Run(t)
}

// BenchmarkSample reads GPUs, of a tree on disk, a second a sample; and a machine without any.
func BenchmarkSample(b *testing.B) {
	for _, devices := range []int{64, 8, 0} {
		b.Run(strconv.Itoa(devices), func(b *testing.B) {
			m := newMachine(b, cards(devices))
			b.ReportAllocs()
			for b.Loop() {
				m.Clock = m.Clock.Add(time.Second)
				samples, err := m.source.Sample(b.Context())
				if err != nil || len(samples) != devices {
					b.Fatal(len(samples), err)
				}
			}
		})
	}
}

// one is a GPU of the driver i915 or xe at 0000:00:02.0, and nothing that it shows.
func one(kernelDriver string) string {
	return `
class/drm/card0 -> ../../devices/pci0000:00/0000:00:02.0/drm/card0
devices/pci0000:00/0000:00:02.0/drm/card0/device -> ../../../0000:00:02.0
devices/pci0000:00/0000:00:02.0/drm/renderD128/device -> ../../../0000:00:02.0
devices/pci0000:00/0000:00:02.0/driver -> ../../../bus/pci/drivers/` + kernelDriver + `
devices/pci0000:00/0000:00:02.0/subsystem -> ../../../bus/pci
devices/pci0000:00/0000:00:02.0/vendor: 0x8086
`
}

const (
	oneFolder = "devices/pci0000:00/0000:00:02.0/"
	oneCard   = oneFolder + "drm/card0/"
)

// A GPU without cardN/gt, as kernels before 5.18 have it, or with a part of it alone, has the
// card's own files.
func TestWithoutGT(t *testing.T) {
	const clock = oneCard + "gt_act_freq_mhz: 300\n"
	const idle = oneCard + "power/rc6_residency_ms: "
	for name, tc := range map[string]struct {
		tree string
		want map[string]float64
	}{
		"clock alone (Comet Lake)": {clock, map[string]float64{"clock graphics": 300e6}},
		"all": {clock + idle + "1000\n", map[string]float64{
			"clock graphics": 300e6, "utilization": 0.25, "engine_utilization render": 0.25,
		}},
		"a folder of which a part is there": {
			clock + idle + "1000\n" + oneCard + "gt/gt0/id: 0\n",
			map[string]float64{"clock graphics": 300e6, "utilization": 0.25, "engine_utilization render": 0.25},
		},
		"nothing": {"", map[string]float64{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, one(i915)+tc.tree)
			m.sample()
			m.Later(time.Second)
			if tc.want["utilization"] > 0 {
				m.Write(idle + "1750\n")
			}
			s := m.sample()["0000:00:02.0"]
			diff := cmp.Diff(tc.want, drivertest.Values(s))
			expect.That(t, diff == "" && !s.Unreadable, "unreadable %v, readings (-want +got):\n%s", s.Unreadable, diff)
		})
	}
}

// A device without any readable value is unreadable. One whose values are no numbers is not.
func TestUnreadable(t *testing.T) {
	for file, unreadable := range map[string]bool{"gt_act_freq_mhz/folder: 1\n": true, "gt_act_freq_mhz: fast\n": false} {
		m := newMachine(t, one(i915)+oneCard+file)
		samples, err := m.source.Sample(m.Context())
		expect.That(t, err != nil && len(samples) == 1 && samples[0].Unreadable == unreadable,
			"samples %+v, error %v, want one that is unreadable: %v", samples, err, unreadable)
	}
}

// The limit that is enforced is the first that there is; one of peaks is another.
func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		kernelDriver, files string
		want                map[string]float64
	}{
		"A380 with i915": {i915, "power1_max=55 power1_rated_max=0", map[string]float64{"power_limit enforced": 55}},
		"A380 with xe":   {xe, "power2_max=55", map[string]float64{"power_limit enforced": 55}},
		"B580": {xe, "power1_cap=190 power1_crit=380", map[string]float64{
			"power_limit enforced": 190, "power_limit critical": 380,
		}},
		"B580 with 6.16": {xe, "power1_crit=380", map[string]float64{"power_limit critical": 380}},
		"all": {xe, "power1_max=150 power2_max=120 power1_cap=200 power1_rated_max=140", map[string]float64{
			"power_limit enforced": 150, "power_limit default": 140,
		}},
		"off": {xe, "power1_max=0 power2_max=120", map[string]float64{"power_limit enforced": 120}},
	} {
		t.Run(name, func(t *testing.T) {
			const monitor = oneFolder + "hwmon/hwmon1/"
			m := newMachine(t, one(tc.kernelDriver)+monitor+"name: "+tc.kernelDriver+"\n")
			drivertest.WriteTree(t, m.Root, limits(monitor, tc.files))
			expect.Equal(t, "", tc.want, drivertest.Values(m.sample()["0000:00:02.0"]))
		})
	}
}

// limits returns the tree of a monitor with limits in watts.
func limits(monitor, files string) string {
	var tree strings.Builder
	for file := range strings.FieldsSeq(files) {
		name, watts, _ := strings.Cut(file, "=")
		tree.WriteString(monitor + name + ": " + watts + "000000" + "\n")
	}
	return tree.String()
}

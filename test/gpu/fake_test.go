//go:build cgo

package gpu

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
)

// fakeMachine has three GPUs on the fake of NVML: the first is idle and not partitioned, the second
// has MIG devices, the third is busy.
type fakeMachine struct {
	*nvmltest.Machine
	mu      sync.Mutex
	now     time.Time
	program string
	calls   string
	loads   int
	ended   bool
}

func newFakeMachine(t *testing.T) *fakeMachine {
	t.Helper()
	machine, err := nvmltest.New(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeMachine{
		Machine: machine, now: time.Unix(1_800_000_000, 0), program: buildLoad(t),
		calls: filepath.Join(t.TempDir(), "calls"),
	}
	machine.Reset(3)
	machine.Partition(1, 2)
	g := &machine.GPUs[0]
	g.Utilization, g.MemoryUtilization, g.Power, g.Memory, g.PCIeReceiveRate, g.PCIeTransmitRate = 0, 0, 75, 600<<20, 0, 0
	machine.GPUs[2].Processes[0] = nvmltest.Process{PID: 77, Memory: 5 << 30, Utilization: 0.75}
	return d
}

func (d *fakeMachine) bench(t *testing.T) bench {
	t.Helper()
	source, err := nvml.New(nvml.Config{
		Library: d.Library, Sysfs: t.TempDir(), Passthrough: func() bool { return d.ended },
		Now: func() time.Time {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.now
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // releases the library, which a process can have only once
		d.ended = true
		if _, err := source.Sample(context.WithoutCancel(t.Context())); err != nil || d.Users != 0 {
			t.Errorf("NVML is initialised %d times at the end: %v", d.Users, err)
		}
	})
	return bench{
		source: source, start: func(device string, b burden) (*load, error) { return d.start(t.Context(), device, b) },
		wait: func(seconds float64) {
			d.mu.Lock()
			d.now = d.now.Add(time.Duration(seconds * float64(time.Second)))
			d.mu.Unlock()
			d.Advance(seconds)
		},
		smi: func(_ context.Context, args ...string) (string, error) {
			switch args[0] {
			case "-q":
				return d.query(), nil
			case "-L":
				return d.list(), nil
			default:
				return d.links(), nil
			}
		},
	}
}

// start starts the load on the fake of CUDA, and sets its effects on the machine.
func (d *fakeMachine) start(ctx context.Context, device string, b burden) (*load, error) {
	l, err := startLoad(ctx, d.program, device, b, fakeCUDA(d.program, d.calls)...)
	if err != nil {
		return nil, err
	}
	const overhead = 500 << 20 // of a context
	g := &d.GPUs[0]
	g.Processes[d.loads] = nvmltest.Process{PID: int64(l.pid), Memory: float64(b.Bytes) + overhead, Utilization: b.Share}
	d.loads++
	g.Memory += float64(b.Bytes) + overhead
	g.Utilization += b.Share
	g.Power += 300 * b.Share
	g.PCIeReceiveRate += 20 * float64(b.Copy)
	return l, nil
}

// set sets the text at a path. The last element is created if its name starts with a plus.
func (e *element) set(path, text string) *element {
	name, rest, deeper := strings.Cut(path, "/")
	name, create := strings.CutPrefix(name, "+")
	i := slices.IndexFunc(e.Elements, func(child element) bool { return child.XMLName.Local == name })
	if i < 0 || create {
		e.Elements = append(e.Elements, element{XMLName: xml.Name{Local: name}})
		i = len(e.Elements) - 1
	}
	if deeper {
		return e.Elements[i].set(rest, text)
	}
	e.Elements[i].Text = text
	return &e.Elements[i]
}

// query returns the output of `nvidia-smi -q -x`, in nvidia-smi's units.
func (d *fakeMachine) query() string {
	log := element{XMLName: xml.Name{Local: "nvidia_smi_log"}}
	log.set("driver_version", "580.65.06")
	log.set("cuda_version", "13.0")
	for i := range d.Count {
		d.printGPU(log.set("+gpu", ""), &d.GPUs[i])
	}
	text, err := xml.Marshal(log)
	if err != nil {
		panic(err)
	}
	return "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n" + string(text)
}

func (d *fakeMachine) printGPU(e *element, g *nvmltest.GPU) {
	e.set("uuid", g.UUID())
	e.set("product_name", "NVIDIA H100 80GB HBM3")
	e.set("serial", "1320000000000")
	e.set("vbios_version", "96.00.61.00.01")
	e.set("pci/pci_bus_id", fmt.Sprintf("00000000:%02X:00.0", g.PCIBus))
	for path, v := range map[string]float64{
		"temperature/gpu_temp": g.Temperature, "temperature/memory_temp": g.MemoryTemperature,
		"gpu_power_readings/average_power_draw": g.Power,
		"clocks/graphics_clock":                 g.ClockGraphics / 1e6, "clocks/sm_clock": g.ClockSM / 1e6,
		"clocks/mem_clock": g.ClockMem / 1e6, "clocks/video_clock": g.ClockVideo / 1e6,
		"fb_memory_usage/total": g.MemoryTotal / mebibyte, "fb_memory_usage/used": g.Memory / mebibyte,
		"utilization/gpu_util": g.Utilization * 100, "utilization/memory_util": g.MemoryUtilization * 100,
		"utilization/encoder_util": 40, "utilization/decoder_util": 37.5, // of GPM's two units each in nvmltest
		"utilization/jpeg_util": g.JPEG * 100, "utilization/ofa_util": g.OFA * 100,
		"ecc_errors/volatile/sram_correctable": 2, "ecc_errors/volatile/dram_correctable": g.Corrected - 2,
		"ecc_errors/volatile/sram_uncorrectable_parity": 0, "ecc_errors/volatile/dram_uncorrectable": g.Uncorrected,
		"retired_pages/multiple_single_bit_retirement/retired_count": g.RetiredSBE,
		"retired_pages/double_bit_retirement/retired_count":          g.RetiredDBE,
		"remapped_rows/remapped_row_corr":                            g.RemappedCorrected,
		"remapped_rows/remapped_row_unc":                             g.RemappedUncorrected,
		"pci/replay_counter":                                         g.PCIeReplays,
	} {
		e.set(path, printed(path, v))
	}
	for name, seconds := range map[string]float64{
		"sw_power_cap": g.Throttled.Power, "sync_boost": g.Throttled.SyncBoost, "sw_therm_slowdown": g.Throttled.SoftThermal,
		"hw_therm_slowdown": g.Throttled.HardThermal, "hw_power_brake": g.Throttled.PowerBrake,
	} {
		e.set("clocks_event_reasons_counters/clocks_event_reasons_counters_"+name, fmt.Sprintf("%.0f us", seconds*1e6))
	}
	printCondition(e, g)
	e.set("mig_mode/current_mig", "Disabled")
	if g.MIG != 0 {
		e.set("mig_mode/current_mig", "Enabled")
		e.set("utilization", "").Elements = nil
		e.set("remapped_rows", "N/A").Elements = nil
	}
	for i := range g.Instances {
		m := &g.Instances[i]
		if m.Present == 0 {
			continue
		}
		device := e.set("mig_devices/+mig_device", "")
		device.set("gpu_instance_id", fmt.Sprint(m.GPUInstance))
		device.set("compute_instance_id", fmt.Sprint(m.ComputeInstance))
		device.set("fb_memory_usage/total", fmt.Sprintf("%.0f MiB", m.MemoryTotal/mebibyte))
		device.set("fb_memory_usage/used", fmt.Sprintf("%.0f MiB", m.Memory/mebibyte))
	}
	for _, p := range g.Processes {
		if p.PID != 0 {
			process := e.set("processes/+process_info", "")
			process.set("pid", fmt.Sprint(p.PID))
			process.set("used_memory", fmt.Sprintf("%.0f MiB", p.Memory/mebibyte))
		}
	}
}

// printCondition prints the condition of a GPU, its limits and links.
func printCondition(e *element, g *nvmltest.GPU) {
	c := &g.Condition
	for path, v := range map[string]float64{
		"gpu_power_readings/current_power_limit": c.LimitEnforced, "gpu_power_readings/default_power_limit": c.LimitDefault,
		"gpu_power_readings/min_power_limit": c.LimitMin, "gpu_power_readings/max_power_limit": c.LimitMax,
		"temperature/gpu_temp_tlimit": c.Margin, "fb_memory_usage/reserved": g.MemoryReserved / mebibyte,
		"pci/pci_gpu_link_info/pcie_gen/current_link_gen": c.LinkGeneration,
		"pci/pci_gpu_link_info/pcie_gen/max_link_gen":     c.LinkGenerationMax,
		"ecc_errors/aggregate/sram_correctable":           5,
		"ecc_errors/aggregate/dram_correctable":           c.LifetimeCorrected - 5,
		"ecc_errors/aggregate/sram_uncorrectable_parity":  1, "ecc_errors/aggregate/sram_uncorrectable_secded": 0,
		"ecc_errors/aggregate/dram_uncorrectable": c.LifetimeUncorrected - 1,
	} {
		e.set(path, printed(path, v))
	}
	e.set("performance_state", fmt.Sprintf("P%.0f", c.PerformanceState))
	e.set("fan_speed", fmt.Sprintf("%.0f %%", c.Fan*100))
	e.set("pci/pci_gpu_link_info/link_widths/current_link_width", fmt.Sprintf("%.0fx", c.LinkWidth))
	e.set("pci/pci_gpu_link_info/link_widths/max_link_width", fmt.Sprintf("%.0fx", c.LinkWidthMax))
	for name, bit := range map[string]int{
		"sw_power_cap": 0x4, "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80,
	} {
		e.set("clocks_event_reasons/clocks_event_reason_"+name,
			map[bool]string{true: "Active", false: "Not Active"}[int(c.Throttling)&bit != 0])
	}
	for path := range attention() {
		e.set(path, "No")
	}
	e.set("gpu_recovery_action", "None")
	e.set("fabric/state", "Completed")
	e.set("fabric/status", "Success")
	e.set("fabric/health/summary", "Healthy")
}

// printed formats a number with nvidia-smi's unit at a path.
func printed(path string, v float64) string {
	for part, format := range map[string]string{
		"temperature/": "%.0f C", "power": "%.2f W", "clocks/": "%.0f MHz", "fb_memory_usage/": "%.0f MiB",
		"utilization/": "%.0f %%",
	} {
		if strings.Contains(path, part) {
			return fmt.Sprintf(format, v)
		}
	}
	return fmt.Sprint(v)
}

func (d *fakeMachine) list() string {
	var text strings.Builder
	for i := range d.Count {
		fmt.Fprintf(&text, "GPU %d: NVIDIA H100 80GB HBM3 (UUID: %s)\n", i, d.GPUs[i].UUID())
		for j := range d.GPUs[i].Instances {
			if m := &d.GPUs[i].Instances[j]; m.Present != 0 {
				fmt.Fprintf(&text, "  MIG 1g.10gb     Device  %d: (UUID: %s)\n", j, m.UUID())
			}
		}
	}
	return text.String()
}

func (d *fakeMachine) links() string {
	var text strings.Builder
	for i := range d.Count {
		g := &d.GPUs[i]
		fmt.Fprintf(&text, "GPU %d: NVIDIA H100 80GB HBM3 (UUID: %s)\n", i, g.UUID())
		fmt.Fprintf(&text, "\t Link 0: Data Tx: %.0f KiB\n\t Link 0: Data Rx: %.0f KiB\n", g.NVLinkTransmit/1024,
			g.NVLinkReceive/1024)
	}
	return text.String()
}

// The trial on the fake of NVML, and the errors that it must detect.
func TestTrial(t *testing.T) {
	d := newFakeMachine(t)
	b := d.bench(t)
	done := b.try(t)
	done.Loads[0].Copied = 20 * float64(done.Loads[0].Burden.Copy) // by the machine's clock, not by the test's
	dir := t.TempDir()
	if err := record(dir, done, "the fake"); err != nil {
		t.Fatal(err)
	}
	result, err := replay(dir)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(result.Busy.query, "1320000000000") {
		t.Error("the recording has serial numbers")
	}
	if result.Device != d.GPUs[0].UUID() || !result.seen() {
		t.Fatalf("%s was loaded; its processes are visible: %v", result.Device, result.seen())
	}
	check(t, result)
	t.Run("not compared", func(t *testing.T) { notComparedOn(t, result.Busy, d.GPUs[0].UUID()) })
	t.Run("wrong values", func(t *testing.T) { findsWrongValues(t, result.Busy) })
	t.Run("wrong loads", func(t *testing.T) { findsWrongLoads(t, result) })
}

// notComparedOn checks the values of a GPU that are not compared: those that nvidia-smi does not
// print, or defines differently, and the serial number, which a recording does not have.
func notComparedOn(t *testing.T, l look, uuid string) {
	t.Helper()
	findings, err := compare(l)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		if f.verdict == notCompared && f.device == uuid {
			got = append(got, f.what)
		}
	}
	want := []string{
		"energy", "engine_utilization dram", "engine_utilization fp16", "engine_utilization fp32",
		"engine_utilization fp64", "engine_utilization int", "engine_utilization sm", "engine_utilization tensor",
		"errors nvlink crc", "errors nvlink recovery", "errors nvlink replay", "io_bytes pcie receive",
		"io_bytes pcie transmit", "occupancy", "serial number", "throttle_active other", "throttled_seconds board_limit",
		"throttled_seconds reliability",
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not compared (-want +got):\n%s", diff)
	}
}

// findsWrongValues changes the output of nvidia-smi in one place after the other.
func findsWrongValues(t *testing.T, l look) {
	t.Helper()
	wrong := func(l look) (out []finding) {
		findings, err := compare(l)
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(findings, func(f finding) bool { return f.verdict == agrees || f.verdict == notCompared })
	}
	log, err := parseQuery(l.query)
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{
		"driver_version", "cuda_version", "gpu/product_name", "gpu/vbios_version", "gpu/pci/pci_bus_id", "gpu/uuid",
		"gpu/processes/process_info/used_memory", "gpu/gpu_recovery_action", "gpu/fabric/status",
	}
	for path := range attention() {
		paths = append(paths, "gpu/"+path)
	}
	for _, c := range gpuColumns() {
		for _, path := range slices.Concat(c.paths...) {
			if e := log.all("gpu/" + path); len(e) > 0 && !c.rated {
				paths = append(paths, "gpu/"+path)
			}
		}
	}
	for _, c := range instanceColumns() {
		paths = append(paths, "gpu/mig_devices/mig_device/"+c.paths[0][0])
	}
	for _, path := range paths {
		e := log.all(path)[0]
		was := e.Text
		opposite := map[string]string{
			"Yes": "No", "No": "Yes", "Active": "Not Active", "Not Active": "Active", "None": "GPU Reset", "Success": "Failure",
		}[was]
		digits, unit, _ := strings.Cut(was, " ")
		state, isState := strings.CutPrefix(was, "P")
		switch {
		case opposite != "":
			e.Text = opposite
		case isState:
			e.Text = "P9" + state
		case !strings.Contains(path, "pci_bus_id") && len(digits) < 20:
			e.Text = "9999999" + digits + " " + unit
		default:
			e.Text = "1" + was[1:]
		}
		text, err := xml.Marshal(log)
		if err != nil {
			t.Fatal(err)
		}
		changed := l
		if changed.query = string(text); len(wrong(changed)) == 0 {
			t.Errorf("%s is %s instead of %s, which is not detected", path, e.Text, was)
		}
		e.Text = was
	}
	for name, changed := range map[string]look{
		"a device is not listed":  {l.before, l.after, l.query, strings.Replace(l.list, "MIG-", "MIG-1", 1), l.links},
		"a device is not read":    {l.before, l.after[:3], l.query, l.list, l.links},
		"other bytes over NVLink": {l.before, l.after, l.query, l.list, strings.Replace(l.links, "Rx: ", "Rx: 1", 1)},
		"a process that was not read": {
			l.before, l.after, strings.Replace(l.query, "<pid>77<", "<pid>78<", 1), l.list,
			l.links,
		},
	} {
		if len(wrong(changed)) == 0 {
			t.Errorf("%s, which is not detected", name)
		}
	}
}

// findsWrongLoads changes the effects of the load and the results of the exporter.
func findsWrongLoads(t *testing.T, result trial) {
	t.Helper()
	scaled := func(q driver.Quantity, by float64) trial {
		changed := result
		changed.BusySeries = nil
		for _, samples := range result.BusySeries {
			changed.BusySeries = append(changed.BusySeries, scale(samples, q, by))
		}
		return changed
	}
	swapped := result
	swapped.Loads = []loaded{result.Loads[0], result.Loads[1]}
	swapped.Loads[0].PID, swapped.Loads[1].PID = result.Loads[1].PID, result.Loads[0].PID
	idle := result
	idle.BusySeries = result.IdleSeries
	for name, tc := range map[string]struct {
		trial trial
		want  string
	}{
		"nothing moved":        {idle, "the increase of utilization"},
		"no power":             {scaled(driver.Power, 0.2), "the increase of power"},
		"energy in kilojoules": {scaled(driver.Energy, 1e-3), "energy per second"},
		"memory in kB":         {scaled(driver.MemoryUsed, 1./1024), "the increase of memory"},
		"traffic in kB":        {scaled(driver.IOBytes, 1./1024), "the traffic over PCIe"},
		"processes mixed up":   {swapped, "the heavy claim's"},
		"percentages":          {scaled(driver.Utilization, 100), "the increase of utilization"},
	} {
		wrong, _ := tc.trial.checkMoved()
		more, _ := tc.trial.checkAttribution()
		if all := strings.Join(append(wrong, more...), "\n"); !strings.Contains(all, tc.want) {
			t.Errorf("%s: %q does not contain %s", name, all, tc.want)
		}
	}
}

// scale returns samples with other values of a quantity.
func scale(samples []driver.Sample, q driver.Quantity, by float64) []driver.Sample {
	out := slices.Clone(samples)
	for i := range out {
		out[i].Readings = slices.Clone(out[i].Readings)
		for j := range out[i].Readings {
			if out[i].Readings[j].Quantity == q {
				out[i].Readings[j].Value *= by
			}
		}
	}
	return out
}

// Differences between two sources are detected, and values that cannot be compared are not.
func TestCompareSources(t *testing.T) {
	ours := []driver.Sample{
		{Hardware: driver.Hardware{UUID: "GPU-a"}, Readings: []driver.Reading{
			{Quantity: driver.Power, Value: 300},
			{Quantity: driver.Energy, Value: 1e6},
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: 1},
			{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: 5},
			{Quantity: driver.Clock, Labels: driver.Labels{"sm"}, Value: 1.7e9},
		}},
		{
			Hardware: driver.Hardware{UUID: "MIG-b", Parent: "GPU-a", Instance: "7/0"},
			Readings: []driver.Reading{{Quantity: driver.MemoryUsed, Value: 1 << 30}},
		},
	}
	others := []driver.Sample{
		{Hardware: driver.Hardware{UUID: "GPU-a"}, Readings: []driver.Reading{
			{Quantity: driver.Power, Value: 0.3},
			{Quantity: driver.Energy, Value: 1.0005e6},
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: 7},
			{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: 9e9},
			{Quantity: driver.Clock, Labels: driver.Labels{"sm"}, Value: 1700},
			{Quantity: driver.Occupancy, Value: 0.5},
		}},
		{
			Hardware: driver.Hardware{Parent: "GPU-a", Instance: "7/0"},
			Readings: []driver.Reading{{Quantity: driver.MemoryUsed, Value: 2 << 30}},
		},
	}
	got := map[string]verdict{}
	for _, f := range compareSources(ours, others) {
		got[f.what] = f.verdict
	}
	want := map[string]verdict{
		"power": differs, "energy": agrees, "errors xid 31": notCompared, "io_bytes pcie receive": notCompared,
		"clock sm": differs, "occupancy": notCompared,
		"memory_used": differs,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// An incomplete recording is rejected.
func TestReplayRejects(t *testing.T) {
	if _, err := replay(t.TempDir()); err == nil {
		t.Error("an empty folder is accepted as a recording")
	}
	if _, err := fromRecord([]recordedSample{{Readings: []recordedReading{{Quantity: "joy"}}}}); err == nil ||
		!strings.Contains(err.Error(), "joy") {
		t.Errorf("an unknown quantity: %v", errors.Unwrap(err))
	}
}

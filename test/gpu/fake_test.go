//go:build cgo

package gpu

import (
	"context"
	"encoding/xml"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
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
	machine := must.Get(nvmltest.New(t.Context(), t.TempDir()))(t)
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
	must.Do(t, err)
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

// The trial on the fake of NVML, and the errors that it must detect.
func TestTrial(t *testing.T) {
	d := newFakeMachine(t)
	b := d.bench(t)
	done := b.try(t)
	done.Loads[0].Copied = 20 * float64(done.Loads[0].Burden.Copy) // by the machine's clock, not by the test's
	dir := t.TempDir()
	must.Do(t, record(dir, done, "the fake"))
	result := must.Get(replay(dir))(t)
	expect.That(t, !strings.Contains(result.Busy.query, "1320000000000"), "the recording has serial numbers")
	must.That(t, result.Device == d.GPUs[0].UUID() && result.seen(),
		"%s was loaded; its processes are visible: %v", result.Device, result.seen())
	check(t, result)
	t.Run("not compared", func(t *testing.T) { notComparedOn(t, result.Busy, d.GPUs[0].UUID()) })
	t.Run("wrong values", func(t *testing.T) { findsWrongValues(t, result.Busy) })
	t.Run("wrong loads", func(t *testing.T) { findsWrongLoads(t, result) })
}

// notComparedOn checks the values of a GPU that are not compared: those that nvidia-smi does not
// print, or defines differently, and the serial number, which a recording does not have.
func notComparedOn(t *testing.T, l look, uuid string) {
	t.Helper()
	findings := must.Get(compare(l))(t)
	var got []string
	for _, f := range findings {
		if f.verdict == notCompared && f.device == uuid {
			got = append(got, f.what)
		}
	}
	want := []string{
		"energy", "engine_utilization decoder", "engine_utilization dram", "engine_utilization encoder",
		"engine_utilization fp16", "engine_utilization fp32", "engine_utilization fp64", "engine_utilization int",
		"engine_utilization jpeg", "engine_utilization ofa",
		"engine_utilization sm", "engine_utilization tensor",
		"errors nvlink crc", "errors nvlink recovery", "errors nvlink replay", "io_bytes pcie receive",
		"io_bytes pcie transmit", "occupancy", "serial number", "throttle_active other", "throttled_seconds board_limit",
		"throttled_seconds reliability",
	}
	slices.Sort(want)
	slices.Sort(got)
	expect.Equal(t, "not compared", want, got)
}

// findsWrongValues changes the output of nvidia-smi in one place after the other.
func findsWrongValues(t *testing.T, l look) {
	t.Helper()
	wrong := func(l look) (out []finding) {
		findings := must.Get(compare(l))(t)
		return slices.DeleteFunc(findings, func(f finding) bool { return f.verdict == agrees || f.verdict == notCompared })
	}
	log := must.Get(parseQuery(l.query))(t)
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
		text := must.Get(xml.Marshal(log))(t)
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
		expect.That(t, len(wrong(changed)) != 0, "%s, which is not detected", name)
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
	expect.Equal(t, "verdicts", want, got)
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

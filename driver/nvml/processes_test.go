//go:build cgo

package nvml

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
)

func TestProcesses(t *testing.T) {
	c := newClock()
	machine.Reset(2)
	machine.Partition(1, 2)
	g := &machine.GPUs[0]
	g.ProcessTime = 1e9
	g.Processes = [8]nvmltest.Process{
		{PID: 4242, Memory: 3 << 30, Utilization: 0.25},
		{PID: 77, Memory: 1 << 30},
		{PID: 78, Memory: nan(), Utilization: 0.5},
		{PID: 4242, Graphics: 1, Memory: 3 << 30},
	}
	machine.GPUs[1].Processes[0] = nvmltest.Process{PID: 99, Memory: 1 << 20, GPUInstance: 8}
	s := newSource(t, c, nil)
	want := map[string]float64{
		"77 memory_used": 1 << 30, "77 utilization": 0,
		"78 utilization": 0.5, "4242 memory_used": 3 << 30, "4242 utilization": 0.25,
	}
	if diff := cmp.Diff(want, uses(of(t, sample(t, s), g.UUID()))); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, uses(of(t, sample(t, s), g.UUID()))); diff != "" {
		t.Errorf("processes at once again, before NVML has new samples (-want +got):\n%s", diff)
	}
	c.advance(1)
	g.Processes[0].Utilization = 0
	sample(t, s) // its next sample may come later than those of others
	c.advance(1)
	want["4242 utilization"] = 0
	samples := sample(t, s)
	if diff := cmp.Diff(want, uses(of(t, samples, g.UUID()))); diff != "" {
		t.Errorf("processes after one went idle (-want +got):\n%s", diff)
	}
	wantInstance := map[string]float64{"99 memory_used": 1 << 20}
	if diff := cmp.Diff(wantInstance, uses(of(t, samples, machine.GPUs[1].Instances[1].UUID()))); diff != "" {
		t.Errorf("processes of an instance (-want +got):\n%s", diff)
	}
	if got := uses(of(t, samples, machine.GPUs[1].UUID())); len(got) > 0 {
		t.Errorf("processes of a GPU in MIG mode: %v", got)
	}
}

// Samples of different processes have different times: a busy process whose next sample comes a
// tick after those of another is still busy, and one sample above 100 % is all of the time.
func TestProcessesAtDifferentTimes(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	g.ProcessTime = 1e9
	g.Processes = [8]nvmltest.Process{
		{PID: 11, Memory: 1 << 30, Utilization: 0.5}, {PID: 12, Memory: 1 << 30, Utilization: 1.3},
	}
	s := newSource(t, c, nil)
	want := map[string]float64{
		"11 memory_used": 1 << 30, "11 utilization": 0.5, "12 memory_used": 1 << 30, "12 utilization": 1,
	}
	for tick := range 40 {
		if tick == 20 { // as on Blackwell
			machine.Fail("nvmlDeviceGetProcessUtilization", 0, int(nvml.ERROR_NOT_SUPPORTED))
		}
		if diff := cmp.Diff(want, uses(of(t, sample(t, s), g.UUID()))); diff != "" {
			t.Fatalf("tick %d (-want +got):\n%s", tick, diff)
		}
		c.advance(0.5)
		g.Processes[tick%2].Behind, g.Processes[(tick+1)%2].Behind = 0.9, 0
	}
}

// If NVML does not report the processes' utilization, the driver's accounting does, if it is on.
func TestAccounting(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	refuse := func() {
		machine.Fail("nvmlDeviceGetProcessUtilization", 0, int(nvml.ERROR_NOT_SUPPORTED))
		machine.Fail("nvmlDeviceGetProcessesUtilizationInfo", 0, int(nvml.ERROR_NOT_SUPPORTED))
	}
	refuse()
	g.Processes = [8]nvmltest.Process{
		{PID: 11, Memory: 1 << 30, Accounted: 100, AccountedBusy: 30},
		{PID: 12, Memory: 1 << 30},
	}
	s := newSource(t, c, nil)
	memory := map[string]float64{"11 memory_used": 1 << 30, "12 memory_used": 1 << 30}
	look := func(what string, want map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(want, uses(of(t, sample(t, s), g.UUID())), approximately()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	look("accounting is off", memory)
	if n := machine.Calls("nvmlDeviceGetAccountingStats_v2"); n != 1 {
		t.Errorf("accounting that is off was asked for %d times", n)
	}
	g.Accounting = 1
	c.advance(recheck.Seconds())
	refuse()
	look("the first look", memory)
	c.advance(1)
	g.Processes[0].Accounted, g.Processes[0].AccountedBusy = 105, 32 // 5 samples, in which it was busy to 2/5
	memory["11 utilization"] = 0.4
	look("the second look", memory)
	c.advance(0.1)
	look("no new sample", memory)
	g.Processes[0].Accounted, g.Processes[0].AccountedBusy = 2, 1 // another process of that PID
	c.advance(1)
	delete(memory, "11 utilization")
	look("another process", memory)
}

func uses(s driver.Sample) map[string]float64 {
	out := map[string]float64{}
	for _, p := range s.Processes {
		for _, r := range p.Readings {
			out[fmt.Sprintf("%d %v", p.PID, r.Quantity)] = r.Value
		}
	}
	return out
}

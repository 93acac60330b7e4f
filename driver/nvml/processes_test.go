//go:build cgo

package nvml

import (
	"fmt"
	"math"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestProcesses(t *testing.T) {
	c := newClock()
	machine.Reset(2)
	machine.Partition(1, 2)
	g := &machine.GPUs[0]
	g.SamplePeriod = 1e-4 // so many that the shares are exact
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
	expect.Equal(t, "processes", want, uses(of(t, nvidiatest.Sample(t, s), g.UUID())))
	if diff := cmp.Diff(want, uses(of(t, nvidiatest.Sample(t, s), g.UUID()))); diff != "" {
		t.Errorf("processes at once again, before NVML has new samples (-want +got):\n%s", diff)
	}
	c.Advance(1)
	g.Processes[0].Utilization = 0
	want["4242 utilization"] = 0
	samples := nvidiatest.Sample(t, s)
	expect.Equal(t, "processes after one went idle", want, uses(of(t, samples, g.UUID())))
	wantInstance := map[string]float64{"99 memory_used": 1 << 20}
	expect.Equal(t, "processes of an instance", wantInstance, uses(of(t, samples, machine.GPUs[1].Instances[1].UUID())))
	got := uses(of(t, samples, machine.GPUs[1].UUID()))
	expect.That(t, len(got) == 0, "processes of a GPU in MIG mode: %v", got)
}

// The driver's samples are few, and each names one process. The mean of the readings is the time of
// each process nevertheless; by both functions of NVML.
func TestProcessTimes(t *testing.T) {
	for name, tc := range map[string]struct {
		refused string
		period  float64
	}{
		"an H100":            {period: 0.2},
		"as on Blackwell":    {refused: "nvmlDeviceGetProcessUtilization", period: 0.2},
		"less than one each": {period: 1.2},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			machine.Reset(1)
			g := &machine.GPUs[0]
			g.SamplePeriod = tc.period
			if tc.refused != "" {
				machine.Fail(tc.refused, 0, int(nvml.ERROR_NOT_SUPPORTED))
			}
			g.Processes = [8]nvmltest.Process{
				{PID: 11, Memory: 1 << 30, Utilization: 0.55},
				{PID: 12, Memory: 1 << 30, Utilization: 0.1},
				{PID: 13, Memory: 1 << 30},
			}
			s := newSource(t, c, nil)
			sum, zeros := map[string]float64{}, 0
			const ticks = 250
			for range ticks {
				got := uses(of(t, nvidiatest.Sample(t, s), g.UUID()))
				for _, pid := range []string{"11", "12", "13"} {
					sum[pid] += got[pid+" utilization"] / ticks
				}
				if got["12 utilization"] == 0 {
					zeros++
				}
				c.Advance(1)
			}
			want := map[string]float64{"11": 0.55, "12": 0.1, "13": 0}
			expect.Equal(t, "means", want, sum, cmpopts.EquateApprox(0, 0.02))
			expect.That(t, zeros != 0, "each reading had a sample of each process, which proves nothing")
		})
	}
}

// A time without samples does not count as a time of the next one.
func TestProcessTimesAfterIdleTime(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	g.Processes = [8]nvmltest.Process{{PID: 11, Memory: 1 << 30, Utilization: 0.5}, {PID: 12, Memory: 1 << 30}}
	s := newSource(t, c, nil)
	tick := func(want float64, what string) {
		c.Advance(1)
		got := uses(of(t, nvidiatest.Sample(t, s), g.UUID()))["11 utilization"]
		expect.That(t, math.Abs(got-want) <= 0.1, "%s: %v, want %v", what, got, want)
	}
	tick(0.5, "busy")
	g.Processes[0].Utilization, g.Utilization = 0, 0
	tick(0, "idle")
	for range 60 {
		tick(0, "idle for long")
	}
	g.Processes[0].Utilization, g.Utilization, g.BusySince = 0.8, 0.8, g.ProcessTime
	tick(0.8, "busy again")
	g.Processes[1] = nvmltest.Process{} // alone for a while: as busy as the GPU
	for range 60 {
		tick(0.8, "alone")
	}
	g.Processes[1] = nvmltest.Process{PID: 12, Memory: 1 << 30}
	g.Processes[0].Utilization = 0.6
	tick(0.6, "not alone any more")

	g.ProcessTime, g.BusySince = g.ProcessTime-3600, 0 // the machine's clock is set back
	for range 3 {
		tick(0.6, "for a while as before")
	}
	c.Advance(1)
	_, ok := uses(of(t, nvidiatest.Sample(t, s), g.UUID()))["11 utilization"]
	expect.That(t, !ok, "without samples, the processes of a busy GPU have a utilization")
	tick(0.6, "after the clock was set back")
}

// NVML ascribes the time of MPS's clients to their server. A single client has all of it; that of
// several is unknown, and not 0.
func TestMPS(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	g := &machine.GPUs[0]
	g.Processes = [8]nvmltest.Process{
		{PID: 760, Memory: 66 << 20, Utilization: 0.7}, {PID: 742, Memory: 518 << 20, MPS: 1},
	}
	s := newSource(t, c, nil)
	want := map[string]float64{"742 memory_used": 518 << 20, "742 utilization": g.Utilization, "760 memory_used": 66 << 20}
	expect.Equal(t, "one client", want, uses(of(t, nvidiatest.Sample(t, s), g.UUID())))
	c.Advance(1)
	g.Processes[2] = nvmltest.Process{PID: 773, Memory: 518 << 20, MPS: 1}
	delete(want, "742 utilization")
	want["773 memory_used"] = 518 << 20
	expect.Equal(t, "two clients", want, uses(of(t, nvidiatest.Sample(t, s), g.UUID())))
	c.Advance(1)
	g.Processes[1], g.Processes[2] = nvmltest.Process{PID: 11, Memory: 1 << 30}, nvmltest.Process{}
	got := uses(of(t, nvidiatest.Sample(t, s), g.UUID()))
	expect.That(t, math.Abs(got["760 utilization"]-0.7) <= 0.1 && got["11 utilization"] == 0, "without clients: %v", got)
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

// growing is a GPU on which a process comes while its samples are read, as go-nvml reads them: some
// times before they can be read.
type growing struct {
	nvml.Device
	times int
}

func (g *growing) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	samples, number := make([]nvml.ProcessUtilizationSample, 1), 1
	if g.times--; g.times >= 0 {
		number = 2
	}
	return samples[:number], nvml.SUCCESS
}

// A process that comes while samples are read costs no reading of the GPU.
func TestProcessComesDuringRead(t *testing.T) {
	samples, answer := samplesSince(&growing{times: 2}, 0)
	expect.That(t, len(samples) == 1 && answer == nvml.SUCCESS, "%v, %v", samples, answer)
	samples, answer = samplesSince(&growing{times: 9}, 0)
	expect.That(t, samples == nil && kindOf(answer) == nothingNow, "always: %v, %v", samples, answer)
}

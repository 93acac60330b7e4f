//go:build cgo

package nvml

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// maxProcesses bounds the processes of a device.
	maxProcesses = 4096
	// maxBusyAge is for how long the utilization of a process is believed when NVML has no newer
	// one.
	maxBusyAge = 3 * time.Second
	// unknownMemory is what NVML says where a process's memory is not available
	// (NVML_VALUE_NOT_AVAILABLE).
	unknownMemory = math.MaxUint64
)

// samplesApart is how far the times of different processes' samples are apart, at most, in NVML's
// microseconds: a process has a sample each second or more often, and each has its own times
// (go-nvml issue 51).
const samplesApart = 1_500_000

// processSamples is the newest utilization of a process.
type processSamples struct {
	share float64
	at    time.Time
	seen  uint64 // NVML's time of the sample, in microseconds
}

// processes reads what each process does on a whole GPU: its memory, and its share of the SMs'
// time.
func (r *reader) processes(device nvml.Device) {
	r.memoryOfProcesses(device)
	if len(r.running) > 0 {
		r.busyProcesses(device)
	}
	r.report()
}

// memoryOfProcesses reads the processes that have a compute, or a graphics, context, and the memory
// that they use (nvmlProcessInfo_t, usedGpuMemory, bytes). A process that has both kinds is listed
// twice with the same memory: "all of the memory used by the application".
func (r *reader) memoryOfProcesses(device nvml.Device) {
	for _, list := range []struct {
		function string
		get      func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses_v3", nvml.Device.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses_v3", nvml.Device.GetGraphicsRunningProcesses},
	} {
		if !r.ask(list.function) {
			continue
		}
		infos, answer := list.get(device)
		if !r.took(list.function, answer) {
			continue
		}
		at := r.gpu.now()
		for _, info := range infos[:min(len(infos), maxProcesses)] {
			p := r.process(int(info.Pid))
			if p != nil && info.UsedGpuMemory != unknownMemory && len(p.Readings) == 0 {
				p.Readings = append(p.Readings,
					driver.Reading{Quantity: driver.MemoryUsed, Value: float64(info.UsedGpuMemory), At: at})
			}
		}
	}
}

// process returns the process, nil where NVML can't tell which it is: one of a PID namespace that
// can't be seen is 0.
func (r *reader) process(pid int) *driver.Process {
	if pid <= 0 {
		return nil
	}
	if i := slices.IndexFunc(r.running, func(p driver.Process) bool { return p.PID == pid }); i >= 0 {
		return &r.running[i]
	}
	r.running = append(r.running, driver.Process{PID: pid})
	return &r.running[len(r.running)-1]
}

// busyProcesses reads the processes' utilization (nvmlProcessUtilizationSample_t, smUtil, taken to
// be a percentage, of which values above 100 occur). NVML has a sample of each process with "some
// non-zero utilization during the last sample period": one that has none for so long that another
// process's is samplesApart newer is idle.
func (r *reader) busyProcesses(device nvml.Device) {
	g := r.gpu
	// Samples may come later than newer ones of other processes.
	samples, known := r.samplesOfProcesses(device, g.busySeen-min(g.busySeen, samplesApart))
	if g.busySeen == 0 && len(samples) > 0 {
		// Since the beginning of time, what is returned may be means of long ago: ask for what is new.
		newest := uint64(0)
		for i := range samples {
			newest = max(newest, samples[i].TimeStamp)
		}
		samples, known = r.samplesOfProcesses(device, newest-min(newest, samplesApart))
	}
	if !known {
		clear(g.busy)
		return
	}
	now := g.now()
	for _, s := range samples[:min(len(samples), maxProcesses)] {
		if s.TimeStamp > g.busy[s.Pid].seen {
			g.busy[s.Pid] = processSamples{min(1, float64(s.SmUtil)*percent), now, s.TimeStamp}
		}
		g.busySeen = max(g.busySeen, s.TimeStamp)
	}
	maps.DeleteFunc(g.busy, func(_ uint32, s processSamples) bool { return g.busySeen-s.seen > samplesApart })
	for i := range r.running {
		p := &r.running[i]
		b, ok := g.busy[uint32(p.PID)]
		if !ok || now.Sub(b.at) > maxBusyAge {
			b = processSamples{at: now}
		}
		p.Readings = append(p.Readings, driver.Reading{Quantity: driver.Utilization, Value: b.share, At: b.at})
	}
}

// samplesOfProcesses returns the samples that are newer than a time, in NVML's microseconds, by the
// first function that the device supports: drivers refuse the older one on Blackwell. Where it
// supports neither, the processes have what the accounting says. known is false where that is all,
// or there is an error.
func (r *reader) samplesOfProcesses(
	device nvml.Device, since uint64,
) (samples []nvml.ProcessUtilizationSample, known bool) {
	const older, newer = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"
	if r.ask(older) {
		samples, answer := device.GetProcessUtilization(since)
		if r.took(older, answer) || kindOf(answer) != unsupported {
			return samples, kindOf(answer) == answered || kindOf(answer) == nothingNow
		}
	}
	if r.ask(newer) {
		infos, answer := processesUtilization(device, since)
		if r.took(newer, answer) || kindOf(answer) != unsupported {
			for i := range infos {
				samples = append(samples, nvml.ProcessUtilizationSample{
					Pid: infos[i].Pid, TimeStamp: infos[i].TimeStamp, SmUtil: infos[i].SmUtil,
				})
			}
			return samples, kindOf(answer) == answered || kindOf(answer) == nothingNow
		}
	}
	if r.lost == nil {
		r.accountedProcesses(device)
	}
	return nil, false
}

// report sorts the processes, so that the same are in the same order.
func (r *reader) report() {
	slices.SortFunc(r.running, func(a, b driver.Process) int { return a.PID - b.PID })
}

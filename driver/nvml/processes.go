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
	// maxProcesses is the maximum number of processes of a device.
	maxProcesses = 4096
	// maxBusyAge is how long the utilization of a process is used if NVML has no newer one.
	maxBusyAge = 3 * time.Second
	// unknownMemory is NVML_VALUE_NOT_AVAILABLE.
	unknownMemory = math.MaxUint64
)

// samplesApart is the maximum difference between the times of the last samples of busy processes,
// in NVML's microseconds: each process has a sample at least once a second, at its own times
// (go-nvml issue 51).
const samplesApart = 1_500_000

// processSamples is the newest utilization of a process.
type processSamples struct {
	share float64
	at    time.Time
	seen  uint64 // NVML's time of the sample, in microseconds
}

// processes reads the memory and utilization of each process on a whole GPU.
func (r *reader) processes(device nvml.Device) {
	r.memoryOfProcesses(device)
	if len(r.running) > 0 {
		r.busyProcesses(device)
	}
	r.report()
}

// memoryOfProcesses reads the processes with a compute or graphics context and their memory
// (nvmlProcessInfo_t, usedGpuMemory, bytes). A process with both kinds of context is listed twice
// with the same memory: "all of the memory used by the application".
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

// process returns the process with a PID, nil if the PID is unknown: NVML reports 0 for a process
// in a PID namespace that is not visible.
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

// busyProcesses reads the utilization of processes (nvmlProcessUtilizationSample_t, smUtil, assumed
// to be a percentage; values above 100 occur). NVML has a sample of each process with "some
// non-zero utilization during the last sample period": a process is idle if the newest sample of
// another process is samplesApart newer than its own.
func (r *reader) busyProcesses(device nvml.Device) {
	g := r.gpu
	// Samples may come later than newer ones of other processes.
	samples, known := r.samplesOfProcesses(device, g.busySeen-min(g.busySeen, samplesApart))
	if g.busySeen == 0 && len(samples) > 0 {
		// For time 0, the samples may be old means: read again for a recent time.
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

// samplesOfProcesses returns the samples that are newer than since, in NVML's microseconds, by the
// first function that the device supports; drivers reject the older one on Blackwell. If it
// supports neither, accountedProcesses is used and known is false, as after an error.
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

// report sorts the processes by PID.
func (r *reader) report() {
	slices.SortFunc(r.running, func(a, b driver.Process) int { return a.PID - b.PID })
}

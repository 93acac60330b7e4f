//go:build cgo

package nvml

import (
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// maxBusyAge is how long the utilization of processes is used if NVML has no newer one although
	// the GPU is busy.
	maxBusyAge = 3 * time.Second
	// surelyBusy is the utilization from which on a GPU has samples.
	surelyBusy = 0.05
	// unknownMemory is NVML_VALUE_NOT_AVAILABLE.
	unknownMemory = math.MaxUint64
)

// processTimes is the utilization of the processes of a GPU, from the driver's samples.
type processTimes struct {
	shares map[uint32]float64 // over the last window
	newest uint64             // time of the newest sample of any process, in NVML's microseconds; 0: none
	at     time.Time          // when newest was read
	looked time.Time          // time of the last look, with or without a newer sample
}

// window returns the time in NVML's microseconds up to which samples have been counted. A sample
// says which process ran, and no sample that no process did: then the time since the newest sample
// has passed by the clock.
func (t *processTimes) window() uint64 {
	if t.newest == 0 {
		return 0
	}
	return t.newest + uint64(max(0, t.looked.Sub(t.at)).Microseconds())
}

// processes reads the utilization of each process on a whole GPU.
func (r *reader) processes(device nvml.Device) {
	switch {
	case len(r.running) == 0:
	case r.gpu.pace.complete:
		r.busyProcesses(device)
		r.gpu.busy = map[int][]driver.Reading{}
		for _, p := range r.running {
			r.gpu.busy[p.PID] = slices.DeleteFunc(slices.Clone(p.Readings), func(r driver.Reading) bool {
				return r.Quantity != driver.Utilization
			})
		}
	default: // the processes are the same
		busy := slices.IndexFunc(r.readings, func(r driver.Reading) bool { return r.Quantity == driver.Utilization })
		for i := range r.running {
			p, known := &r.running[i], r.gpu.busy[r.running[i].PID]
			if len(r.running) == 1 && busy >= 0 {
				known = r.readings[busy : busy+1]
			}
			p.Readings = append(p.Readings, known...)
		}
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
		for _, info := range infos {
			r.users = append(r.users, info.Pid)
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

// busyProcesses reads the utilization of processes (nvmlProcessUtilizationSample_t, smUtil, in
// percent; values above 100 occur).
//
// The driver samples the GPU, on an H100 with driver 580 each 200 ms. A sample is the utilization
// of the whole GPU in that time and names one process: the one that ran last. NVML's value of a
// process is the sum of its samples, divided by the number of all samples since a given time. Each
// sample is counted once, so that the mean of many readings is the process's share of the time,
// with the error of a poll 5 times a second. A process that is the only one has the GPU's
// utilization.
func (r *reader) busyProcesses(device nvml.Device) {
	g, t := r.gpu, &r.gpu.times
	now := g.now()
	busy := slices.IndexFunc(r.readings, func(r driver.Reading) bool { return r.Quantity == driver.Utilization })
	only, shared := r.onlyProcess(device)
	if only != nil && busy >= 0 {
		only.Readings = append(only.Readings, r.readings[busy])
	}
	if shared || only != nil && busy >= 0 {
		t.looked = now
		return
	}
	samples, known := r.samplesOfProcesses(device, t.window())
	if t.newest == 0 && len(samples) > 0 { // these are the means of many seconds
		newest, second := newestOf(samples), uint64(time.Second.Microseconds())
		samples, known = r.samplesOfProcesses(device, newest-min(newest, second))
	}
	t.looked = now
	if !known {
		t.shares = nil
		return
	}
	silent := now.Sub(t.at) // the time without a newer sample
	switch {
	case len(samples) > 0:
		t.newest, t.at = newestOf(samples), now
		t.shares = map[uint32]float64{}
		for _, s := range samples {
			t.shares[s.Pid] = min(1, float64(s.SmUtil)*percent)
		}
	case busy >= 0 && r.readings[busy].Value > surelyBusy && silent > maxBusyAge:
		// The clock of the samples, which is that of the machine, was set back.
		t.shares, t.newest = nil, 0
		return
	case busy < 0 || r.readings[busy].Value == 0 || silent > maxBusyAge:
		t.shares = nil
	}
	for i := range r.running {
		p := &r.running[i]
		p.Readings = append(p.Readings,
			driver.Reading{Quantity: driver.Utilization, Value: t.shares[uint32(p.PID)], At: now, Estimated: true})
	}
}

// onlyProcess returns the process that has all of the GPU's utilization; nil: there are several.
// shared reports that their utilization is unknown: NVML ascribes the time of all clients of MPS to
// its server. As seen on an H100 with driver 580, NVML lists the server and its clients as
// processes, and the clients in a list of their own.
func (r *reader) onlyProcess(device nvml.Device) (only *driver.Process, shared bool) {
	if len(r.running) == 1 {
		return &r.running[0], false
	}
	const function = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
	if !r.ask(function) {
		return nil, false
	}
	clients, answer := device.GetMPSComputeRunningProcesses()
	if !r.took(function, answer) || len(clients) == 0 {
		return nil, false
	}
	if len(clients) == 1 && len(r.running) == 2 { // it and the server
		return r.process(int(clients[0].Pid)), true
	}
	return nil, true
}

// newestOf returns the time of the newest sample.
func newestOf(samples []nvml.ProcessUtilizationSample) uint64 {
	newest := uint64(0)
	for i := range samples {
		newest = max(newest, samples[i].TimeStamp)
	}
	return newest
}

// samplesOfProcesses returns the samples that are newer than since, in NVML's microseconds, by the
// first function that the device supports; drivers reject the older one on Blackwell. If it
// supports neither, known is false, as after an error.
func (r *reader) samplesOfProcesses(
	device nvml.Device, since uint64,
) (samples []nvml.ProcessUtilizationSample, known bool) {
	const older, newer = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"
	if r.ask(older) {
		samples, answer := samplesSince(device, since)
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
	return nil, false
}

// samplesSince reads the samples after a time. go-nvml asks for their number, and then for them. It
// panics if a process has come meanwhile, since it cuts its memory to the new number: then the
// samples are read again, or at the next reading.
func samplesSince(device nvml.Device, since uint64) (samples []nvml.ProcessUtilizationSample, answer nvml.Return) {
	for range 3 {
		whole := func() bool {
			defer func() { _ = recover() }()
			samples, answer = device.GetProcessUtilization(since)
			return true
		}
		if whole() {
			return samples, answer
		}
	}
	return nil, nvml.ERROR_NOT_FOUND // as without a newer sample
}

// report sorts the processes by PID.
func (r *reader) report() {
	slices.SortFunc(r.running, func(a, b driver.Process) int { return a.PID - b.PID })
}

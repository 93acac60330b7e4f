package drm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// report collects the samples of one call of Sample.
type report struct {
	source  *Source
	at      time.Time
	figures map[*device]*figures
	// forbidden is the error of a process that cannot be read for lack of permission.
	forbidden error
}

// figures has the values of a device that pods hold.
type figures struct {
	incomplete bool // this process may not read one of their processes
	kfd        bool // one of them computes, which its clients do not report
	all        totals
	processes  map[int]*totals
	garbled    [numKinds]int
}

// totals has sums over clients.
type totals struct {
	engines   map[string]float64 // the fraction of time in which a kind was busy, at most 1
	memory    uint64             // bytes
	hasMemory bool
}

// newReport returns the sums over clients of the devices that the pods hold.
func (s *Source) newReport(pods []driver.PodProcesses) *report {
	r := &report{source: s, at: s.now(), figures: map[*device]*figures{}}
	for i := range pods {
		var forbidden error
		for _, pid := range pods[i].PIDs {
			if p := s.processes[pid]; p != nil {
				forbidden = cmp.Or(forbidden, p.forbidden)
			}
		}
		if forbidden != nil {
			r.forbidden = forbidden
		}
		for n := range pods[i].Devices {
			for _, d := range s.ofHardware(&pods[i].Devices[n]) {
				f := r.of(d)
				f.incomplete = f.incomplete || forbidden != nil
			}
		}
	}
	if r.forbidden != nil {
		r.forbidden = fmt.Errorf(
			"look into the processes of pods, which takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: %w", r.forbidden,
		)
	}
	for _, u := range s.order {
		if f := r.figures[u.device]; f != nil {
			r.sum(f, u)
		}
	}
	return r
}

// of returns the figures of a device that a pod holds.
func (r *report) of(d *device) *figures {
	f := r.figures[d]
	if f == nil {
		f = &figures{processes: map[int]*totals{}}
		r.figures[d] = f
	}
	return f
}

// sum adds a client, which is attributed to the first process that has it.
func (r *report) sum(f *figures, u *usage) {
	process := f.processes[u.pid]
	if process == nil {
		process = &totals{}
		f.processes[u.pid] = process
	}
	if p := r.source.processes[u.pid]; p != nil && p.kfd && u.device.kfd {
		f.kfd = true
	}
	for i := range u.engines {
		if e := &u.engines[i]; e.known {
			process.add(e.name, e.busy)
			f.all.add(e.name, e.busy)
		}
	}
	for kind := range u.garbled {
		f.garbled[kind] += u.garbled[kind]
	}
	if u.hasMemory {
		process.memory, process.hasMemory = process.memory+u.memory, true
		f.all.memory, f.all.hasMemory = f.all.memory+u.memory, true
	}
}

// add adds the share of a client.
func (t *totals) add(engine string, busy float64) {
	if t.engines == nil {
		t.engines = map[string]float64{}
	}
	t.engines[engine] = min(t.engines[engine]+busy, 1)
}

// busiest returns the share of the busiest kind of engine.
func (t *totals) busiest() float64 {
	busiest := 0.0
	for _, busy := range t.engines {
		busiest = max(busiest, busy)
	}
	return busiest
}

// samples returns the samples in the order of the devices.
func (r *report) samples() []driver.Sample {
	var out []driver.Sample
	for _, d := range r.source.devices {
		f := r.figures[d]
		if f == nil {
			continue
		}
		sample := driver.Sample{Hardware: d.hardware, Readings: r.readings(d, f), Processes: r.processes(f)}
		sample.Hardware.DeviceNodes = slices.Clone(d.hardware.DeviceNodes)
		if f.incomplete || len(sample.Readings) > 0 {
			out = append(out, sample)
		}
	}
	return out
}

// readings returns the readings of a device. A value that clients have reported once is 0 while the
// device has no clients.
func (r *report) readings(d *device, f *figures) []driver.Reading {
	var out []driver.Reading
	add := func(q driver.Quantity, label string, value float64) {
		out = append(out, driver.Reading{
			Quantity: q, Labels: driver.Labels{label}, Value: value, At: r.at, Estimated: true,
		})
	}
	for kind, q := range [numKinds]driver.Quantity{ofEngines: driver.Utilization, ofMemory: driver.MemoryUsed} {
		for range f.garbled[kind] {
			add(q, "", driver.Malformed())
		}
	}
	if f.incomplete {
		return out
	}
	d.hasMemory = d.hasMemory || f.all.hasMemory
	if d.hasMemory {
		add(driver.MemoryUsed, "", float64(f.all.memory))
	}
	if f.kfd {
		return out
	}
	labels := map[string]float64{}
	for engine, busy := range f.all.engines {
		d.busy = true
		if label := engineLabel(engine); label != "" {
			d.engines[label] = true
			labels[label] = max(labels[label], busy)
		}
	}
	if !d.busy {
		return out
	}
	add(driver.Utilization, "", f.all.busiest())
	for _, label := range slices.Sorted(maps.Keys(d.engines)) {
		add(driver.EngineUtilization, label, labels[label])
	}
	return out
}

// processes returns the use of a device by each process.
func (r *report) processes(f *figures) []driver.Process {
	if f.incomplete {
		return nil
	}
	var out []driver.Process
	for _, pid := range slices.Sorted(maps.Keys(f.processes)) {
		t, p := f.processes[pid], driver.Process{PID: pid}
		if len(t.engines) > 0 && !f.kfd {
			p.Readings = append(p.Readings, driver.Reading{Quantity: driver.Utilization, Value: t.busiest(), At: r.at})
		}
		if t.hasMemory {
			p.Readings = append(p.Readings, driver.Reading{Quantity: driver.MemoryUsed, Value: float64(t.memory), At: r.at})
		}
		if len(p.Readings) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// engineLabel returns the label for a driver's name of a kind of engine; "" if there is none.
func engineLabel(name string) string {
	switch name {
	case "gfx", "render", "rcs", "fragment", "gpu": // amdgpu, i915 and v3d, xe, panfrost, msm
		return "render"
	case "compute", "ccs", "csd": // amdgpu and i915, xe, v3d
		return "compute"
	case "dma", "copy", "bcs":
		return "copy"
	case "dec":
		return "decoder"
	case "enc", "enc_1":
		return "encoder"
	case "jpeg":
		return "jpeg"
	case "video", "vcs":
		return "video"
	case "video-enhance", "vecs", "vpe":
		return "video_enhance"
	case "npu", "npu-amdxdna":
		return "npu"
	default:
		return ""
	}
}

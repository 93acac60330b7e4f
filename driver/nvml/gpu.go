//go:build cgo

package nvml

import (
	"errors"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// recheck is the time after which an unsupported function is called again.
const recheck = 10 * time.Minute

// gpu is the state of a GPU. It outlives sessions, so that counters continue. While the GPU is
// being read, the second group of fields belongs to the goroutine that reads.
type gpu struct {
	now   func() time.Time
	sysfs string

	// Fields of the source.
	hardware  driver.Hardware
	lost      error // why it cannot be read in this session; nil: it can
	reading   *driver.Call[outcome]
	readAt    time.Time  // time of the last reading
	instances []instance // as of the last reading

	// Fields of the goroutine that reads, if there is one.
	session     *session
	handle      nvml.Device
	minor       int
	mig         bool
	unsupported map[string]time.Time // functions and fields, with the time at which they are tried again
	pace        pace
	kept        map[int]keptReadings // last readings of queries that are not made for each sample, by index
	meters      map[string]*gpmMeter // of the GPU and of its MIG instances, by UUID
	times       processTimes
	busy        map[int][]driver.Reading // the last utilization of each process
}

// keptReadings has readings that are used until the query is due again.
type keptReadings struct {
	at       time.Time
	readings []driver.Reading
}

func newGPU(found foundGPU, s *session, config Config) *gpu {
	g := &gpu{
		now: config.Now, sysfs: config.Sysfs, readAt: s.begun, meters: map[string]*gpmMeter{},
		pace: pace{every: config.Complete},
	}
	g.renew(found, s)
	return g
}

// renew assigns the GPU to a new session.
func (g *gpu) renew(found foundGPU, s *session) {
	g.session, g.handle, g.minor, g.hardware, g.lost = s, found.handle, found.minor, found.hardware, nil
	if g.hardware.PCI != "" {
		g.hardware.NUMANode = sysfs.NUMANode(sysfs.PCIDevice(g.sysfs, g.hardware.PCI))
	}
	g.forget()
}

// forget clears the state that may have changed: unsupported functions and kept readings.
func (g *gpu) forget() {
	g.unsupported, g.kept, g.pace.all = map[string]time.Time{}, map[int]keptReadings{}, true
}

// release frees the GPU's objects in the library.
func (g *gpu) release() {
	for _, m := range g.meters {
		m.release(g.session.lib)
	}
}

// unreadable returns samples of the GPU and its instances without readings.
func (g *gpu) unreadable() []driver.Sample {
	samples := []driver.Sample{{Hardware: copyHardware(g.hardware), Unreadable: true}}
	for _, m := range g.instances {
		samples = append(samples, driver.Sample{Hardware: m.hardware, Unreadable: true})
	}
	return samples
}

// copyHardware returns a deep copy.
func copyHardware(h driver.Hardware) driver.Hardware {
	h.DeviceNodes = slices.Clone(h.DeviceNodes)
	return h
}

// outcome is the result of one reading of a GPU.
type outcome struct {
	at        time.Time
	instances []instance
	samples   []driver.Sample
	err       error
	lost      error // the GPU cannot be read; the samples are not used
}

// read reads the GPU and its MIG instances.
func (g *gpu) read() outcome {
	r := reader{gpu: g}
	instances := g.findInstances(&r)
	o := outcome{at: g.now(), instances: instances}
	hardware := copyHardware(g.hardware)
	if g.mig { // the instances use the same file
		hardware.DeviceNodes = nil
	}
	readers := make([]reader, len(instances))
	for i := range instances {
		readers[i] = reader{gpu: g, lost: r.lost}
		if !instances[i].shared {
			readers[i].memoryOfProcesses(instances[i].handle)
		}
		r.users = append(r.users, readers[i].users...)
	}
	if !g.mig {
		r.memoryOfProcesses(g.handle)
	}
	if r.ask("nvmlDeviceGetPowerUsage") {
		// The power of the GPU and associated circuitry such as memory; since Ampere, except for GA100,
		// the mean of one second.
		r.took("nvmlDeviceGetPowerUsage", number(nvml.Device.GetPowerUsage, 1e-3, driver.Power)(&r, g.handle))
	}
	g.pace.decide(&r)
	if g.mig {
		r.run(g.handle, everyGPU)
	} else {
		take := func(sample nvml.GpmSample) nvml.Return { return sample.Get(g.handle) }
		r.gpm(g.hardware.UUID, "nvmlGpmSampleGet", take)
		r.run(g.handle, wholeGPU)
		r.processes(g.handle)
	}
	g.pace.note(&r)
	o.samples = append(o.samples,
		driver.Sample{Hardware: hardware, Readings: nvidia.Attention(r.readings), Processes: r.running})
	for i := range instances {
		m := &readers[i]
		m.lost = r.lost
		m.readInstance(&instances[i])
		r.errs, r.lost = append(r.errs, m.errs...), m.lost
		o.samples = append(o.samples,
			driver.Sample{Hardware: instances[i].hardware, Readings: m.readings, Processes: m.running})
	}
	if o.lost = r.lost; o.lost != nil {
		r.errs = append(r.errs, o.lost)
	}
	o.err = errors.Join(r.errs...)
	return o
}

// reader collects the results of one reading of a GPU or of a MIG instance.
type reader struct {
	gpu      *gpu
	readings []driver.Reading
	running  []driver.Process
	users    []uint32 // the PIDs of all processes as NVML has them: 0 for those that are not visible
	errs     []error
	lost     error
}

// ask reports whether a function or field can be read: the GPU is not lost, the library has the
// function and the device supports it.
func (r *reader) ask(name string) bool {
	if r.lost != nil || r.gpu.session.lacks(name) {
		return false
	}
	until, unsupported := r.gpu.unsupported[name]
	return !unsupported || !r.gpu.now().Before(until)
}

// took records the return value of a function, and reports whether there is a value.
func (r *reader) took(name string, answer nvml.Return) bool {
	switch kindOf(answer) {
	case answered:
		delete(r.gpu.unsupported, name)
		return true
	case unsupported:
		r.gpu.unsupported[name] = r.gpu.now().Add(recheck)
	case nothingNow:
	case unreadable:
		r.errs = append(r.errs, failure(name, answer))
	case lost:
		r.lost = failure(name, answer)
	}
	return false
}

// add adds a reading with the present time, unless there is one with the same quantity and labels.
func (r *reader) add(q driver.Quantity, value float64, labels ...string) {
	reading := driver.Reading{Quantity: q, Value: value, At: r.gpu.now()}
	copy(reading.Labels[:], labels)
	r.append(reading)
}

func (r *reader) append(reading driver.Reading) {
	if !r.has(reading.Quantity, reading.Labels) {
		r.readings = append(r.readings, reading)
	}
}

func (r *reader) has(q driver.Quantity, labels driver.Labels) bool {
	return slices.ContainsFunc(r.readings,
		func(have driver.Reading) bool { return have.Quantity == q && have.Labels == labels })
}

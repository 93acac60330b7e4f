//go:build cgo

package nvml

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// recheck is how long a quantity that a device does not support is not asked for again.
const recheck = 10 * time.Minute

// gpu is what is known of a GPU. It outlives sessions, so that what is counted here goes on. While
// it is being read, what the reading needs belongs to that.
type gpu struct {
	now   func() time.Time
	sysfs string

	// These belong to the source.
	hardware  driver.Hardware
	lost      error // why it can't be read in this session
	reading   *driver.Call[outcome]
	readAt    time.Time  // when it was last read
	instances []instance // as of the last reading

	// These belong to the reading, if there is one.
	session     *session
	handle      nvml.Device
	minor       int
	mig         bool
	unsupported map[string]time.Time      // functions and fields, until when they are not asked for
	kept        map[string]keptReadings   // of functions that are called seldom
	meters      map[string]*gpmMeter      // by UUID: of the GPU and of its MIG instances
	traffic     map[string]trafficMethod  // how the traffic over each kind of link is counted
	sampled     [2]sampledTraffic         // transmit, receive
	busy        map[uint32]processSamples // by process
	accounts    map[int]account           // by process
	busySeen    uint64                    // time of the newest sample of processes' utilization, in NVML's microseconds
}

// keptReadings are readings that serve until they are to be taken again.
type keptReadings struct {
	at       time.Time
	readings []driver.Reading
}

func newGPU(found foundGPU, s *session, config Config) *gpu {
	g := &gpu{
		now: config.Now, sysfs: config.Sysfs, readAt: s.begun, meters: map[string]*gpmMeter{},
		traffic: map[string]trafficMethod{}, busy: map[uint32]processSamples{},
	}
	g.renew(found, s)
	return g
}

// renew takes the GPU into a new session.
func (g *gpu) renew(found foundGPU, s *session) {
	g.session, g.handle, g.minor, g.hardware, g.lost = s, found.handle, found.minor, found.hardware, nil
	if g.hardware.PCI != "" {
		g.hardware.NUMANode = sysfs.NUMANode(sysfs.PCIDevice(g.sysfs, g.hardware.PCI))
	}
	g.forget()
}

// forget forgets what may be other than it was: what is supported, and what was read.
func (g *gpu) forget() {
	g.unsupported, g.kept = map[string]time.Time{}, map[string]keptReadings{}
}

// release frees what the GPU holds in the library.
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

// copyHardware copies what a caller could write to.
func copyHardware(h driver.Hardware) driver.Hardware {
	h.DeviceNodes = slices.Clone(h.DeviceNodes)
	return h
}

// outcome is what one reading of a GPU gave.
type outcome struct {
	at        time.Time
	instances []instance
	samples   []driver.Sample
	err       error
	lost      error // nothing can be read: the samples are not used
}

// read reads the GPU and its MIG instances.
func (g *gpu) read() outcome {
	r := reader{gpu: g}
	instances := g.findInstances(&r)
	o := outcome{at: g.now(), instances: instances}
	hardware := copyHardware(g.hardware)
	if g.mig { // the file is the instances' too
		hardware.DeviceNodes = nil
	}
	if g.mig {
		r.run(g.handle, everyGPU)
	} else {
		r.gpm(g.hardware.UUID, "nvmlGpmSampleGet", func(sample nvml.GpmSample) nvml.Return { return sample.Get(g.handle) })
		r.run(g.handle, wholeGPU)
		r.trafficByGPM()
		r.sampleTraffic()
		r.processes(g.handle)
	}
	o.samples = append(o.samples,
		driver.Sample{Hardware: hardware, Readings: nvidia.Attention(r.readings), Processes: r.running})
	for i := range instances {
		m := reader{gpu: g, lost: r.lost}
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

// reader collects what one reading of a GPU, or of a MIG instance, gives.
type reader struct {
	gpu      *gpu
	readings []driver.Reading
	running  []driver.Process
	errs     []error
	lost     error
}

// ask reports whether a function is to be called, or a field asked for: the GPU is not lost, the
// library has it and the device supports it.
func (r *reader) ask(name string) bool {
	if r.lost != nil {
		return false
	}
	function, _, _ := strings.Cut(name, " ")
	if has, optional := r.gpu.session.has[function]; optional && !has {
		return false
	}
	until, unsupported := r.gpu.unsupported[name]
	return !unsupported || !r.gpu.now().Before(until)
}

// took takes note of what a function answered, and reports whether there is a value.
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

// add adds a reading of this moment, unless there is one of the same already: of two ways to read
// it, the first counts.
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

//go:build cgo

package nvml

import (
	"errors"
	"math"
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

// pace decides which samples of a GPU read everything. On an H100, the calls that read power,
// memory and processes take a tenth of the time of all calls. Counters and means between two
// samples lose nothing by being read less often, as long as they are read when a holder begins or
// ends to use the GPU.
type pace struct {
	every time.Duration // Config.Complete
	all   bool          // the next sample reads everything

	complete bool      // the present sample reads everything
	at       time.Time // time of the last one that did
	users    []uint32  // the processes of the last sample, in order
	idle     bool      // the GPU was idle then
	watts    float64   // the lowest power since then
}

const (
	// idleBelow is the utilization below which a GPU counts as idle.
	idleBelow = 0.01
	// risen is the increase of power of an idle GPU that shows that it begins to work. An H100 draws
	// 69 W when idle, and 120 to 125 W with a context, idle or with a small kernel.
	risen = 10
)

// decide decides about the present sample, whose power and processes have been read.
func (p *pace) decide(r *reader) {
	now := r.gpu.now()
	slices.Sort(r.users)
	watts, known := r.value(driver.Power)
	began := p.idle && known && watts > p.watts+risen
	p.complete = p.all || now.Sub(p.at) >= p.every || !slices.Equal(r.users, p.users) || began
	p.users = r.users
	if p.complete {
		p.all, p.at, p.watts = false, now, watts
	}
	p.watts = min(p.watts, watts)
}

// note records whether the GPU is idle.
func (p *pace) note(r *reader) {
	busy, known := r.value(driver.Utilization)
	p.idle = known && busy < idleBelow
}

// value returns the value of a reading without labels.
func (r *reader) value(q driver.Quantity) (float64, bool) {
	i := slices.IndexFunc(r.readings, func(r driver.Reading) bool { return r.Quantity == q })
	if i < 0 {
		return 0, false
	}
	return r.readings[i].Value, true
}

const (
	// minGPM is the shortest time between two GPM samples; nvml.h: "should be greater than 100ms".
	minGPM = 200 * time.Millisecond
	// maxGPM is the maximum time between two GPM samples whose mean is used.
	maxGPM = 30 * time.Second
)

// gpmMeter measures a GPU or a GPU instance by GPM (Hopper and newer): NVML computes the means
// between two samples of its counters.
type gpmMeter struct {
	samples  [2]nvml.GpmSample         // nil: not allocated
	last     int                       // index of the last sample
	at       time.Time                 // time of the last sample; zero: there is none
	readings []driver.Reading          // the last readings
	bytes    map[driver.Labels]float64 // bytes so far, by link and direction
}

// release frees the samples.
func (m *gpmMeter) release(lib nvml.Interface) {
	for i, sample := range m.samples {
		if sample != nil {
			_ = lib.GpmSampleFree(sample) // a failure needs no action
		}
		m.samples[i] = nil
	}
	m.at, m.readings = time.Time{}, nil
}

// gpmMetric is a metric of GPM (NVML_GPM_METRIC_* in nvml.h): in percent or, of IOBytes, a rate
// such as "PCIe traffic from this GPU in MiB/sec" and "NvLink write bandwidth for all links in
// MiB/sec".
type gpmMetric struct {
	id       nvml.GpmMetricId
	quantity driver.Quantity
	labels   driver.Labels
}

// gpmMetrics returns the metrics.
func gpmMetrics() []gpmMetric {
	return []gpmMetric{
		{nvml.GPM_METRIC_GRAPHICS_UTIL, driver.Utilization, driver.Labels{}},
		{nvml.GPM_METRIC_SM_UTIL, driver.EngineUtilization, driver.Labels{"sm"}},
		{nvml.GPM_METRIC_SM_OCCUPANCY, driver.Occupancy, driver.Labels{}},
		{nvml.GPM_METRIC_ANY_TENSOR_UTIL, driver.EngineUtilization, driver.Labels{"tensor"}},
		{nvml.GPM_METRIC_DRAM_BW_UTIL, driver.EngineUtilization, driver.Labels{"dram"}},
		// Of FP64 to FP16: without tensor cores.
		{nvml.GPM_METRIC_FP64_UTIL, driver.EngineUtilization, driver.Labels{"fp64"}},
		{nvml.GPM_METRIC_FP32_UTIL, driver.EngineUtilization, driver.Labels{"fp32"}},
		{nvml.GPM_METRIC_FP16_UTIL, driver.EngineUtilization, driver.Labels{"fp16"}},
		{nvml.GPM_METRIC_INTEGER_UTIL, driver.EngineUtilization, driver.Labels{"int"}},
		{nvml.GPM_METRIC_PCIE_TX_PER_SEC, driver.IOBytes, driver.Labels{"pcie", "transmit"}},
		{nvml.GPM_METRIC_PCIE_RX_PER_SEC, driver.IOBytes, driver.Labels{"pcie", "receive"}},
		{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, driver.IOBytes, driver.Labels{"nvlink", "transmit"}},
		{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, driver.IOBytes, driver.Labels{"nvlink", "receive"}},
	}
}

// gpm adds the readings of a GPU or a GPU instance by GPM. take takes a sample with the NVML
// function. The readings stay the same until minGPM after a sample, and until the GPU is read
// completely. Without the permission for GPM, it counts as not supported.
func (r *reader) gpm(uuid, function string, take func(nvml.GpmSample) nvml.Return) {
	if r.gpu.session.brief || !r.ask(function) || !r.ask("nvmlGpmMetricsGet") {
		return
	}
	m := r.gpu.meters[uuid]
	if m == nil {
		m = &gpmMeter{bytes: map[driver.Labels]float64{}}
		r.gpu.meters[uuid] = m
	}
	if now := r.gpu.now(); now.Sub(m.at) >= minGPM && (r.gpu.pace.complete || len(m.readings) == 0) {
		r.measure(m, now, function, take)
	}
	for _, reading := range m.readings {
		if reading.Quantity != driver.IOBytes || uuid == r.gpu.hardware.UUID {
			r.append(reading)
		}
	}
}

// measure takes a sample and computes the readings between it and the one before.
func (r *reader) measure(m *gpmMeter, now time.Time, function string, take func(nvml.GpmSample) nvml.Return) {
	before, at := m.samples[m.last], m.at
	m.last = 1 - m.last
	m.at, m.readings = time.Time{}, nil
	if m.samples[m.last] == nil {
		if before == nil && !r.gpmSupported() {
			r.took(function, nvml.ERROR_NOT_SUPPORTED)
			return
		}
		sample, answer := r.gpu.session.lib.GpmSampleAlloc()
		if !r.took(function, answer) {
			return
		}
		m.samples[m.last] = sample
	}
	answer := take(m.samples[m.last])
	if answer == nvml.ERROR_NO_PERMISSION {
		answer = nvml.ERROR_NOT_SUPPORTED
	}
	if !r.took(function, answer) {
		return
	}
	m.at = r.gpu.now()
	if window := now.Sub(at); !at.IsZero() && window <= maxGPM {
		m.readings = r.means(m, before, window.Seconds())
	}
}

func (r *reader) gpmSupported() bool {
	support, answer := r.gpu.handle.GpmQueryDeviceSupport()
	return answer == nvml.SUCCESS && support.IsSupportedDevice != 0
}

// means returns the means between the sample before and the last one.
func (r *reader) means(m *gpmMeter, before nvml.GpmSample, seconds float64) []driver.Reading {
	metrics := gpmMetrics()
	get := nvml.GpmMetricsGetType{Sample1: before, Sample2: m.samples[m.last], NumMetrics: uint32(len(metrics))}
	for i, metric := range metrics {
		get.Metrics[i].MetricId = uint32(metric.id)
	}
	if !r.took("nvmlGpmMetricsGet", r.gpu.session.lib.GpmMetricsGet(&get)) {
		return nil
	}
	var readings []driver.Reading
	for i, metric := range metrics {
		got, isRate := get.Metrics[i], metric.quantity == driver.IOBytes
		if got.NvmlReturn != uint32(nvml.SUCCESS) || math.IsNaN(got.Value) || isRate && got.Value < 0 {
			continue
		}
		value := min(1, got.Value*percent)
		if isRate {
			m.bytes[metric.labels] += got.Value * (1 << 20) * seconds // MiB/sec
			value = m.bytes[metric.labels]
		}
		readings = append(readings,
			driver.Reading{Quantity: metric.quantity, Labels: metric.labels, Value: value, At: m.at})
	}
	return readings
}

//go:build cgo

package nvml

import (
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// minGPM is the shortest time between two GPM samples; nvml.h: "should be greater than 100ms".
	minGPM = 200 * time.Millisecond
	// maxGPM is the maximum time between two GPM samples whose mean is used.
	maxGPM = 30 * time.Second
)

// gpmMeter measures a GPU or a GPU instance by GPM (Hopper and newer): NVML computes the means
// between two samples of its counters.
type gpmMeter struct {
	samples  [2]nvml.GpmSample // nil: not allocated
	last     int               // index of the last sample
	at       time.Time         // time of the last sample; zero: there is none
	readings []driver.Reading  // the last readings
	bytes    [4]float64        // bytes so far, in the order of gpmTraffic
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

// gpmMetric is a metric of GPM (NVML_GPM_METRIC_* in nvml.h) in percent.
type gpmMetric struct {
	id       nvml.GpmMetricId
	quantity driver.Quantity
	engine   string
}

// gpmMetrics returns the metrics.
func gpmMetrics() []gpmMetric {
	return []gpmMetric{
		{nvml.GPM_METRIC_GRAPHICS_UTIL, driver.Utilization, ""},
		{nvml.GPM_METRIC_SM_UTIL, driver.EngineUtilization, "sm"},
		{nvml.GPM_METRIC_SM_OCCUPANCY, driver.Occupancy, ""},
		{nvml.GPM_METRIC_ANY_TENSOR_UTIL, driver.EngineUtilization, "tensor"},
		{nvml.GPM_METRIC_DRAM_BW_UTIL, driver.EngineUtilization, "dram"},
		{nvml.GPM_METRIC_FP64_UTIL, driver.EngineUtilization, "fp64"}, // of FP64 to FP16: without tensor cores
		{nvml.GPM_METRIC_FP32_UTIL, driver.EngineUtilization, "fp32"},
		{nvml.GPM_METRIC_FP16_UTIL, driver.EngineUtilization, "fp16"},
		{nvml.GPM_METRIC_INTEGER_UTIL, driver.EngineUtilization, "int"},
	}
}

// gpmRate is a metric of GPM that is a rate, such as "PCIe traffic from this GPU in MiB/sec" and
// "NvLink write bandwidth for all links in MiB/sec".
type gpmRate struct {
	id     nvml.GpmMetricId
	labels driver.Labels
}

// gpmTraffic returns the metrics of a GPU's traffic.
func gpmTraffic() [4]gpmRate {
	return [4]gpmRate{
		{nvml.GPM_METRIC_PCIE_TX_PER_SEC, driver.Labels{"pcie", "transmit"}},
		{nvml.GPM_METRIC_PCIE_RX_PER_SEC, driver.Labels{"pcie", "receive"}},
		{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, driver.Labels{"nvlink", "transmit"}},
		{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, driver.Labels{"nvlink", "receive"}},
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
		m = &gpmMeter{}
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
	metrics, traffic := gpmMetrics(), gpmTraffic()
	get := nvml.GpmMetricsGetType{
		Sample1: before, Sample2: m.samples[m.last],
		NumMetrics: uint32(len(metrics) + len(traffic)),
	}
	for i, metric := range metrics {
		get.Metrics[i].MetricId = uint32(metric.id)
	}
	for i, over := range traffic {
		get.Metrics[len(metrics)+i].MetricId = uint32(over.id)
	}
	if !r.took("nvmlGpmMetricsGet", r.gpu.session.lib.GpmMetricsGet(&get)) {
		return nil
	}
	var readings []driver.Reading
	for i, metric := range metrics {
		if got := get.Metrics[i]; got.NvmlReturn == uint32(nvml.SUCCESS) && !math.IsNaN(got.Value) {
			readings = append(readings, driver.Reading{
				Quantity: metric.quantity, Labels: driver.Labels{metric.engine}, Value: min(1, got.Value*percent), At: m.at,
			})
		}
	}
	for i, over := range traffic {
		if p := get.Metrics[len(metrics)+i]; p.NvmlReturn == uint32(nvml.SUCCESS) && p.Value >= 0 {
			m.bytes[i] += p.Value * (1 << 20) * seconds // MiB/sec
			readings = append(readings,
				driver.Reading{Quantity: driver.IOBytes, Labels: over.labels, Value: m.bytes[i], At: m.at})
		}
	}
	return readings
}

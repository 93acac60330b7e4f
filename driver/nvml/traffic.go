//go:build cgo

package nvml

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// trafficMethod is how the traffic over PCIe, or over NVLink, is counted. The methods count from
// different points, so that a GPU keeps the first that works.
type trafficMethod uint8

const (
	trafficUnknown trafficMethod = iota
	trafficCounted               // by the device, in bytes
	trafficGPM                   // by GPM: the mean rate of each time between two readings
	trafficSampled               // by NVML, over PCIe alone: the rate over 20 ms of every 10 s, an estimate
)

// traffic reports whether the traffic over a link is counted by this method, and settles on it
// where there was none.
func (r *reader) traffic(link string, method trafficMethod) bool {
	if r.gpu.traffic[link] == trafficUnknown {
		r.gpu.traffic[link] = method
	}
	return r.gpu.traffic[link] == method
}

// counted reports whether the traffic over a link is counted by the device. While a counter of
// NVLink stands at 0 that is not settled: it may be one that does not count.
func (r *reader) counted(link string, bytes float64) bool {
	if r.gpu.traffic[link] == trafficUnknown && link == "nvlink" && bytes == 0 {
		return true
	}
	return r.traffic(link, trafficCounted)
}

// trafficByGPM adds the traffic that GPM counts over links that no counter of the device counts: it
// is not supported, or stands at 0 although there is traffic.
func (r *reader) trafficByGPM() {
	m := r.gpu.meters[r.gpu.hardware.UUID]
	if m == nil {
		return
	}
	for _, reading := range m.readings {
		link := reading.Labels[0]
		if reading.Quantity != driver.IOBytes {
			continue
		}
		if r.gpu.traffic[link] == trafficUnknown && reading.Value > 0 {
			r.readings = slices.DeleteFunc(r.readings, func(other driver.Reading) bool {
				return other.Quantity == driver.IOBytes && other.Labels[0] == link
			})
		}
		if r.has(driver.IOBytes, reading.Labels) || !r.traffic(link, trafficGPM) {
			continue
		}
		r.append(reading)
	}
}

// sampledTraffic is the integral of rates that are read now and then.
type sampledTraffic struct {
	at    time.Time // of the last rate
	rate  float64   // bytes per second
	bytes float64
}

// maxSampledGap is the longest time between two rates for which they say something.
const maxSampledGap = 3 * slowInterval

// sampleTraffic estimates the traffic over PCIe from nvmlDeviceGetPcieThroughput, "throughput in
// KB/s" (taken to be 1000 bytes) over 20 ms, in which the call blocks: where neither counters nor
// GPM tell, and every 10 s.
func (r *reader) sampleTraffic() {
	const function = "nvmlDeviceGetPcieThroughput"
	if now := r.gpu.traffic["pcie"]; now != trafficUnknown && now != trafficSampled || r.gpu.gpmWorks() ||
		!r.ask(function) {
		return
	}
	for i, direction := range [2]struct {
		counter nvml.PcieUtilCounter
		name    string
	}{{nvml.PCIE_UTIL_TX_BYTES, "transmit"}, {nvml.PCIE_UTIL_RX_BYTES, "receive"}} {
		t := &r.gpu.sampled[i]
		if now := r.gpu.now(); now.Sub(t.at) >= slowInterval {
			kilobytes, answer := r.gpu.handle.GetPcieThroughput(direction.counter)
			if !r.took(function, answer) || !r.traffic("pcie", trafficSampled) {
				return
			}
			t.take(now, float64(kilobytes)*1000)
		}
		r.append(driver.Reading{
			Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", direction.name}, Value: t.bytes, At: t.at, Estimated: true,
		})
	}
}

// gpmWorks reports whether GPM measures the GPU, or is about to.
func (g *gpu) gpmWorks() bool {
	m := g.meters[g.hardware.UUID]
	return m != nil && !m.at.IsZero()
}

// take takes a rate: since the one before, the mean of the two is taken to have lasted.
func (t *sampledTraffic) take(now time.Time, rate float64) {
	if gap := now.Sub(t.at); gap <= maxSampledGap {
		t.bytes += (t.rate + rate) / 2 * gap.Seconds()
	}
	t.at, t.rate = now, rate
}

//go:build cgo

package nvml

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// trafficMethod is the method by which traffic over PCIe or NVLink is counted. The counters of the
// methods have different starting points, so that a GPU keeps the first method that works.
type trafficMethod uint8

const (
	trafficUnknown trafficMethod = iota
	trafficCounted               // a counter of the device, in bytes
	trafficGPM                   // integral of the mean rates by GPM
	trafficSampled               // estimate for PCIe: integral of rates over 20 ms, read every 10 s
)

// traffic reports whether traffic over a kind of link is counted by the method, which it selects if
// no method is selected yet.
func (r *reader) traffic(link string, method trafficMethod) bool {
	if r.gpu.traffic[link] == trafficUnknown {
		r.gpu.traffic[link] = method
	}
	return r.gpu.traffic[link] == method
}

// counted reports whether traffic over a kind of link is counted by the device. A counter of NVLink
// that is 0 does not select the method: it may never count.
func (r *reader) counted(link string, bytes float64) bool {
	if r.gpu.traffic[link] == trafficUnknown && link == "nvlink" && bytes == 0 {
		return true
	}
	return r.traffic(link, trafficCounted)
}

// trafficByGPM adds the traffic by GPM over links without a working counter of the device: the
// counter is not supported, or is 0 although there is traffic.
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

// sampledTraffic is the integral of sampled rates.
type sampledTraffic struct {
	at    time.Time // time of the last rate
	rate  float64   // bytes per second
	bytes float64
}

// maxSampledGap is the maximum time between two rates over which they are integrated.
const maxSampledGap = 3 * slowInterval

// sampleTraffic estimates the traffic over PCIe every 10 s if there are neither counters nor GPM,
// by nvmlDeviceGetPcieThroughput: "throughput in KB/s" (assumed to be 1000 bytes) over 20 ms,
// during which the call blocks.
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

// gpmWorks reports whether there is a GPM sample of the GPU.
func (g *gpu) gpmWorks() bool {
	m := g.meters[g.hardware.UUID]
	return m != nil && !m.at.IsZero()
}

// take adds a rate. The mean of it and the one before is used for the time between them.
func (t *sampledTraffic) take(now time.Time, rate float64) {
	if gap := now.Sub(t.at); gap <= maxSampledGap {
		t.bytes += (t.rate + rate) / 2 * gap.Seconds()
	}
	t.at, t.rate = now, rate
}

//go:build cgo

package nvml

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// trafficMethod is the method by which traffic over PCIe or NVLink is counted. The counters of the
// methods have different starting points, so that a GPU keeps the first method that works.
type trafficMethod uint8

const (
	trafficUnknown trafficMethod = iota
	trafficCounted               // a counter of the device, in bytes
	trafficGPM                   // integral of the mean rates by GPM
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

package exportertest

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
)

// NewNode returns the history of a node with a device for each case: gpu-2 and gpu-10 are active,
// gpu-3 is quiet, gpu-4 is unhealthy and free, gpu-5 is tainted, gpu-6 is shared by two claims, and
// nic has traffic.
func NewNode(t *testing.T) *History {
	h := NewHistory(t)
	h.In.Inventory = driver.Inventory{}
	for _, name := range []string{"gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-10", "nic"} {
		entry := driver.Entry{Hardware: driver.Hardware{UUID: name}}
		if name == "gpu-5" {
			entry.Taints = []driver.Taint{{Key: "worn", Effect: "NoSchedule"}}
		}
		h.In.Inventory[jointest.ID(name)] = entry
	}
	for claim, device := range map[string]string{
		"busy": "gpu-2", "lazy": "gpu-3", "half-a": "gpu-6", "half-b": "gpu-6", "ten": "gpu-10", "net": "nic",
	} {
		h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation(device, claim, "pod-of-"+claim))
	}
	watch := jointest.Allocation("gpu-2", "watch", "watcher")
	watch.Admin = true
	h.In.View.Allocations = append(h.In.View.Allocations, watch)
	return h
}

// Play lets two minutes pass, in which the active devices are active and the interface carries
// 100 MB a second.
func Play(h *History) {
	busy := driver.Reading{Quantity: driver.Utilization, Value: 0.97}
	for i := range 13 {
		for _, name := range []string{"gpu-2", "gpu-6", "gpu-10"} {
			h.ReadOf(name, busy, driver.Reading{Quantity: driver.MemoryUsed, Value: 1 << 30},
				driver.Reading{Quantity: driver.MemoryCapacity, Value: 80 << 30},
				driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{"gpu"}, Value: 54},
				driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{"memory"}, Value: 61})
		}
		h.ReadOf("gpu-3", driver.Reading{Quantity: driver.Utilization})
		h.ReadOf("gpu-4", driver.Reading{Quantity: driver.Health, Labels: driver.Labels{"unhealthy"}, Value: 1},
			driver.Reading{Quantity: driver.Utilization})
		h.ReadOf("nic", driver.Reading{
			Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: float64(1+i) * 1e9,
		})
		h.Pass(10 * time.Second)
	}
}

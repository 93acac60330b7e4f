// Package gpudriver is a DRA driver for simulated GPUs. It publishes what the example driver of kubernetes-sigs publishes under the
// same name.
package gpudriver

import (
	"fmt"

	"github.com/dra-exporter/dra-exporter/test/cluster/plugin"
)

// Name is the driver's name in ResourceSlices.
const Name = "gpu.example.com"

// Driver returns the driver of a node; unhealthy is the file that SetUnhealthy writes, which need not be there.
func Driver(node, unhealthy string) plugin.Driver {
	return plugin.Driver{
		Name: Name, Classes: classes(), Slices: resourceSlices(),
		Health:      health{node: node, unhealthy: unhealthy}.watch,
		Environment: func(n int, device string) []string { return []string{fmt.Sprintf("GPU_DEVICE_%d=%s", n, device)} },
	}
}

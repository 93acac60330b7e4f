// Package gpudriver is a DRA driver for simulated GPUs. It has the same name as the example driver
// of kubernetes-sigs and publishes devices in the same form.
package gpudriver

import (
	"context"
	"fmt"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// Name is the driver's name in ResourceSlices.
const Name = "gpu.example.com"

// Files are the files that tell a running driver what to simulate. SetNames writes them. A file
// that does not exist names no device.
type Files struct {
	Unhealthy string // The names of the unhealthy devices.
	Replaced  string // The names of the devices of type "gpu" whose UUID is that of Replacement.
}

// Driver returns the driver of a node.
func Driver(node string, files Files) plugin.Driver {
	return plugin.Driver{
		Name: Name, Classes: classes(), Slices: resourceSlices(),
		Republish: func(ctx context.Context, publish func([]resourceslice.Slice) error) error {
			return republish(ctx, files.Replaced, publish)
		},
		Health:      health{node: node, unhealthy: files.Unhealthy}.watch,
		Environment: func(n int, device string) []string { return []string{fmt.Sprintf("GPU_DEVICE_%d=%s", n, device)} },
	}
}

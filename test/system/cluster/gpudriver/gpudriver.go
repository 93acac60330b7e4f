// Package gpudriver is a DRA driver for simulated GPUs. It publishes what the example driver of
// kubernetes-sigs publishes under the same name.
package gpudriver

import (
	"context"
	"fmt"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// Name is the driver's name in ResourceSlices.
const Name = "gpu.example.com"

// Files are the files by which a running driver is told what to simulate. SetNames writes them;
// they need not exist.
type Files struct {
	Unhealthy string // the devices that are unhealthy
	Replaced  string // the devices of type gpu whose hardware is another one: Replacement is its UUID
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

package scenarios

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/cluster/gpudriver"
)

// A device turns unhealthy by its driver, and well again: the kubelet writes that into the status
// of the pod that holds it, and the exporter shows it. The device is up all the while, and its
// neighbour is healthy.
func testHealth(t *testing.T, w *world) {
	n := w.namespace(t, "health")
	n.claim("both", some(request("gpus", gpudriver.ClassGPU), 2))
	n.pod("user", podSpec("both"))
	n.running(1)
	holds, _ := n.agree(2)
	sick, well := holds[0].Device, holds[1].Device
	n.healthy(sick, sick, "healthy")
	n.no(w.cluster.SetUnhealthy(sick))
	n.healthy(sick, sick, "unhealthy")
	n.healthy(well, well, "healthy")
	r, err := w.exporter.report()
	n.no(err)
	for _, h := range holds {
		if d := deviceOf(r, h.Device); d.Up == nil || !*d.Up {
			t.Errorf("%s is up: %v, want up", h.Device, d.Up)
		}
	}
	n.no(w.cluster.SetUnhealthy())
	n.healthy(sick, sick, "healthy")
	n.remove("user", 1)
	n.agree(0)
}

// healthy waits until every exporter says that a device has that status and no other. Where no
// slices are known, the device may have another name.
func (n *namespace) healthy(device, blind, status string) {
	n.Helper()
	eventually(n.T, fmt.Sprintf("%s is %s", device, status), func() error {
		var wrong error
		for _, e := range n.exporters {
			if e.noHealth {
				continue
			}
			name := device
			if e.noClaims {
				name = blind
			}
			for _, s := range []string{"healthy", "unhealthy", "unknown"} {
				want := 0.0
				if s == status {
					want = 1
				}
				if err := e.has("dra_device_health", want, "device", name, "status", s); err != nil {
					wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
				}
			}
		}
		return wrong
	})
}

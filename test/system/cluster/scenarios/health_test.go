package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// The driver reports a device as unhealthy and later as healthy again. Every exporter must show
// that, for a free device too. The kubelet writes the health to the status of the pod that holds
// the device. The device stays up, and the pod's other device stays healthy.
func testHealth(t *testing.T, w *world) {
	n := w.namespace(t, "health")
	n.claim("both", some(request("gpus", gpudriver.ClassGPU), 2))
	n.pod("user", podSpec("both"))
	n.running(1)
	holds, _ := n.agree(2)
	sick, well, free := holds[0].Device, holds[1].Device, n.free()
	n.healthy(sick, sick, "healthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusHealthy)
	n.no(w.cluster.SetUnhealthy(sick, free))
	n.healthy(sick, sick, "unhealthy")
	n.healthy(well, well, "healthy")
	n.healthyBy(n.informed(), free, "unhealthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusUnhealthy)
	n.inStatus("user", well, corev1.ResourceHealthStatusHealthy)
	for _, e := range n.exporters {
		n.no(e.has("dra_device_quantity_source_info", 1, "device", sick, "quantity", "health", "source", "health"))
	}
	r := must.Get(w.exporter.report())(n)
	for _, h := range holds {
		d := deviceOf(r, h.Device)
		expect.That(t, d.Up != nil && *d.Up, "%s is up: %v, want up", h.Device, d.Up)
	}
	n.no(w.cluster.SetUnhealthy())
	n.healthy(sick, sick, "healthy")
	n.healthyBy(n.informed(), free, "healthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusHealthy)
	n.clear()
}

// inStatus waits until the kubelet has written the health of a device to the status of the pod that
// holds it. It does nothing with a kubelet that does not support that. The driver's CDI names end
// with the device's name.
func (n *namespace) inStatus(pod, device string, want corev1.ResourceHealthStatus) {
	if !kubeletSince(healthSince) {
		return
	}
	n.podIs(pod, fmt.Sprintf("has %s %s in its status", device, want), func(p *corev1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			for _, resource := range c.AllocatedResourcesStatus {
				if slices.ContainsFunc(resource.Resources, func(r corev1.ResourceHealth) bool {
					return strings.HasSuffix(string(r.ResourceID), "-"+device) && r.Health == want
				}) {
					return true
				}
			}
		}
		return false
	})
}

// healthy waits until every exporter shows exactly this status for a device. blind is the device's
// name in exporters that know no ResourceSlices.
func (n *namespace) healthy(device, blind, status string) {
	n.healthyBy(n.informed(), device, status)
	for _, e := range n.exporters {
		if e.noClaims && (blind == device || !e.noHealth) {
			n.healthyBy([]*running{e}, blind, status)
		}
	}
}

// healthyBy is like healthy for some exporters.
func (n *namespace) healthyBy(exporters []*running, device, status string) {
	n.each(fmt.Sprintf("%s is %s", device, status), exporters, func(e *running) error {
		return errors.Join(e.has("dra_device_health", 1, "device", device), // It is the only status.
			e.has("dra_device_health", 1, "device", device, "status", status))
	})
}

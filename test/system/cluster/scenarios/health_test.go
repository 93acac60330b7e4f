package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
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
	n.healthyBy(n.listing(), free, "unhealthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusUnhealthy)
	n.inStatus("user", well, corev1.ResourceHealthStatusHealthy)
	for _, e := range n.exporters {
		n.no(e.has("dra_device_quantity_source_info", 1, "device", sick, "quantity", "health", "source", "health"))
	}
	r, err := w.exporter.report()
	n.no(err)
	for _, h := range holds {
		d := deviceOf(r, h.Device)
		expect.That(t, d.Up != nil && *d.Up, "%s is up: %v, want up", h.Device, d.Up)
	}
	n.no(w.cluster.SetUnhealthy())
	n.healthy(sick, sick, "healthy")
	n.healthyBy(n.listing(), free, "healthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusHealthy)
	n.remove("user", 1)
	n.agree(0)
}

// inStatus waits until the kubelet has written the health of a device to the status of the pod that
// holds it. It does nothing with a kubelet that does not support that. The driver's CDI names end
// with the device's name.
func (n *namespace) inStatus(pod, device string, want corev1.ResourceHealthStatus) {
	n.Helper()
	if !kubeletSince(healthSince) {
		return
	}
	eventually(n.T, fmt.Sprintf("the status of pod %s has %s %s", pod, device, want), func() error {
		p, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.ContainerStatuses {
			for _, resource := range c.AllocatedResourcesStatus {
				for _, r := range resource.Resources {
					if strings.HasSuffix(string(r.ResourceID), "-"+device) && r.Health == want {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("it has %+v", p.Status.ContainerStatuses)
	})
}

// listing returns the exporters that also know devices without a holder.
func (n *namespace) listing() []*running {
	return slices.DeleteFunc(slices.Clone(n.exporters), func(e *running) bool { return e.noClaims })
}

// healthy waits until every exporter shows exactly this status for a device. blind is the device's
// name in exporters that know no ResourceSlices.
func (n *namespace) healthy(device, blind, status string) {
	n.Helper()
	n.healthyBy(n.listing(), device, status)
	for _, e := range n.exporters {
		if e.noClaims && (blind == device || !e.noHealth) {
			n.healthyBy([]*running{e}, blind, status)
		}
	}
}

// healthyBy is like healthy for some exporters.
func (n *namespace) healthyBy(exporters []*running, device, status string) {
	n.Helper()
	eventually(n.T, fmt.Sprintf("%s is %s", device, status), func() error {
		var wrong error
		for _, e := range exporters {
			// It is the only status.
			for _, labels := range [][]string{{"device", device}, {"device", device, "status", status}} {
				if err := e.has("dra_device_health", 1, labels...); err != nil {
					wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
				}
			}
		}
		return wrong
	})
}

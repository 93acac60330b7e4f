package scenarios

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// A pod is bound to the node only when the binding conditions of its claim's device are met. The
// device is already allocated while the pod waits. Exporters that use the API server must show that
// in the series that the alert DRAClaimNotPrepared uses. After the binding the pod holds the device
// as usual.
func testBindingCondition(t *testing.T, w *world) {
	const device = "fabric-0"
	n := w.namespace(t, "binding-condition")
	n.claim("one", request("gpu", gpudriver.ClassFabric))
	n.pod("user", podSpec("one"))
	eventually(t, "the pod waits to be bound", func() error {
		claim, err := n.client.ResourceV1().ResourceClaims(n.name).Get(n.Context(), "one", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), "user", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 || pod.Spec.NodeName != "" ||
			pod.Status.NominatedNodeName != node.Name {
			return fmt.Errorf("the claim's status is %+v, the pod's %+v", claim.Status, pod.Status)
		}
		return nil
	})
	n.allocated(device, "user")
	n.attach("one", device)
	n.phase("user", corev1.PodRunning)
	n.agree(1)
	n.state(device, "prepared")
	n.charges(device, claimPart("one", 1), podPart("user", 1))
	n.remove("user", 1)
	n.agree(0)
}

// allocated waits until each exporter that uses the API server shows that claim "one" has an
// allocated device, with the time of the allocation and the pod.
func (n *namespace) allocated(device, pod string) {
	n.Helper()
	eventually(n.T, "the claim's device is allocated", func() error {
		var wrong error
		for _, e := range n.exporters {
			if e.noServer {
				continue
			}
			claim := []string{"namespace", n.name, "resourceclaim_name", "one"}
			since, err := e.value("dra_claim_allocated_timestamp_seconds", claim...)
			if err == nil && time.Since(time.Unix(int64(since), 0)) > *waitLimit {
				err = fmt.Errorf("the claim is allocated since %v", since)
			}
			claim = append(claim, "device", device)
			err = errors.Join(err,
				e.has("dra_claim_device_info", 1, append(claim, "state", "allocated", "admin_access", "false")...),
				e.has("dra_pod_claim_info", 1, append(claim, "pod", pod, "container", "")...))
			if err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
			}
		}
		return wrong
	})
}

// attach sets the binding condition of a claim's device to true.
func (n *namespace) attach(name, device string) {
	n.Helper()
	claims := n.client.ResourceV1().ResourceClaims(n.name)
	claim, err := claims.Get(n.Context(), name, metav1.GetOptions{})
	n.no(err)
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: gpudriver.Name, Pool: node.Name, Device: device,
		Conditions: []metav1.Condition{{
			Type: gpudriver.Attached, Status: metav1.ConditionTrue, Reason: "Attached", LastTransitionTime: metav1.Now(),
		}},
	}}
	_, err = claims.UpdateStatus(n.Context(), claim, metav1.UpdateOptions{})
	n.no(err)
}

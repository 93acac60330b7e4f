package scenarios

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/test/must"
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
	n.podIs("user", "waits to be bound", func(pod *corev1.Pod) bool {
		claim := n.getClaim("one").Status
		return claim.Allocation != nil && len(claim.ReservedFor) > 0 && pod.Spec.NodeName == "" &&
			pod.Status.NominatedNodeName == node.Name
	})
	n.allocated(device, "user")
	n.attach("one", device)
	n.phase("user", corev1.PodRunning)
	n.agree(1)
	n.state(device, "prepared")
	n.charges(device, claimPart("one", 1), podPart("user", 1))
	n.clear()
}

// allocated waits until each exporter that uses the API server shows that claim "one" has an
// allocated device, with the time of the allocation and the pod.
func (n *namespace) allocated(device, pod string) {
	n.each("the claim's device is allocated", n.withServer(), func(e *running) error {
		claim := []string{"namespace", n.name, "resourceclaim_name", "one"}
		since, err := e.value("dra_claim_allocated_timestamp_seconds", claim...)
		if err == nil && time.Since(time.Unix(int64(since), 0)) > *waitLimit {
			err = fmt.Errorf("the claim is allocated since %v", since)
		}
		claim = append(claim, "device", device)
		return errors.Join(err,
			e.has("dra_claim_device_info", 1, append(claim, "state", "allocated", "admin_access", "false")...),
			e.has("dra_pod_claim_info", 1, append(claim, "pod", pod, "container", "")...))
	})
}

// attach sets the binding condition of a claim's device to true.
func (n *namespace) attach(name, device string) {
	claim := n.getClaim(name)
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: gpudriver.Name, Pool: node.Name, Device: device,
		Conditions: []metav1.Condition{{
			Type: gpudriver.Attached, Status: metav1.ConditionTrue, Reason: "Attached", LastTransitionTime: metav1.Now(),
		}},
	}}
	must.Get(n.claims().UpdateStatus(n.Context(), claim, metav1.UpdateOptions{}))(n)
}

package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// podLevel removes the pod's claims from its containers, so that only the pod names them.
func podLevel(spec corev1.PodSpec) corev1.PodSpec {
	for i := range spec.Containers {
		spec.Containers[i].Resources.Claims = nil
	}
	return spec
}

// initialized adds an init container with a command. It uses the pod's claim in place of the main
// container.
func initialized(spec corev1.PodSpec, command ...string) corev1.PodSpec {
	init := *spec.Containers[0].DeepCopy()
	init.Name, init.Command = "init", command
	spec = podLevel(spec)
	spec.InitContainers = append(spec.InitContainers, init)
	return spec
}

// unresolved waits until the exporters that know pods but no claims count pods with unresolved
// claims.
func (n *namespace) unresolved() {
	n.Helper()
	eventually(n.T, "pods whose claims are unknown are counted", func() error {
		var wrong error
		for _, e := range n.exporters {
			if !e.noClaims || e.noPods {
				continue
			}
			families, err := e.families()
			if err != nil {
				return err
			}
			count := 0.0
			for _, m := range families["dra_exporter_unresolved_pods"].GetMetric() {
				count += m.GetGauge().GetValue()
			}
			if count < 1 {
				wrong = errors.Join(wrong, fmt.Errorf("%s: dra_exporter_unresolved_pods is %v in all", e.name, count))
			}
		}
		return wrong
	})
}

// Two claims are named in spec.resourceClaims only, one created directly and one from a template.
// Their pods hold them, but no container does.
func testPodLevelClaims(t *testing.T, w *world) {
	n := w.namespace(t, "pod-level")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.template("made", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podLevel(podSpec("one")))
	n.pod("made", podLevel(templateSpec("made")))
	n.running(2)
	holds, _ := n.agree(2)
	for _, h := range holds {
		n.chargesBy(n.objects(), func(*running) string { return h.Device }, claimPart(h.Claim, 1), podPart(h.Pod, 1))
	}
	n.unresolved()
	n.remove("made", 1)
	n.agree(1)
	n.remove("user", 1)
	n.agree(0)
}

// A plain init container uses its pod's claim. The pod still holds the claim after the init
// container has ended, because the device stays prepared until the pod is deleted.
func testInitContainer(t *testing.T, w *world) {
	n := w.namespace(t, "init-container")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", initialized(podSpec("one"), "sleep", "8s"))
	eventually(t, "the init container runs", func() error {
		pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), "user", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := pod.Status.InitContainerStatuses
		if len(s) > 0 && s[0].State.Terminated != nil {
			t.Log("it has ended before it was seen")
			return nil
		}
		if len(s) == 0 || s[0].State.Running == nil {
			return fmt.Errorf("its state is %+v", s)
		}
		return nil
	})
	lift := n.keeps(1)
	n.phase("user", corev1.PodRunning)
	holds, _ := n.agree(1)
	n.chargesBy(n.objects(), func(*running) string { return holds[0].Device }, claimPart("one", 1), podPart("user", 1))
	lift()
	n.remove("user", 1)
	n.agree(0)
}

// An init container of one pod and the main container of another pod use the same claim. Both pods
// hold it. PodResources lists only the second pod; the claim's device is known from there.
func testInitShared(t *testing.T, w *world) {
	n := w.namespace(t, "init-shared")
	n.claim("both", request("gpu", gpudriver.ClassGPU))
	n.pod("a", initialized(podSpec("both"), "sleep", "2s"))
	n.pod("b", podSpec("both"))
	n.running(2)
	holds, _ := n.agree(2)
	n.charges(holds[0].Device, claimPart("both", 1), podPart("a", 0.5).withoutPods(0), podPart("b", 0.5).withoutPods(1))
	n.remove("a", 1)
	n.agree(1)
	n.charges(holds[0].Device, podPart("b", 1))
	n.remove("b", 1)
	n.agree(0)
}

// Two pods use different requests of one claim. Each pod holds the devices of its own request.
func testRequestsOfPods(t *testing.T, w *world) {
	n := w.namespace(t, "requests-of-pods")
	n.claim("parts", request("a", gpudriver.ClassGPU), request("b", gpudriver.ClassGPU))
	for _, pod := range []string{"a", "b"} {
		spec := podSpec("parts")
		spec.Containers[0].Resources.Claims[0].Request = pod
		n.pod(pod, spec)
	}
	n.running(2)
	holds, _ := n.agree(2)
	for _, h := range holds {
		if h.Used {
			n.charges(h.Device, claimPart("parts", 1), podPart(h.Pod, 1).without(0.5).withoutPods(0.5))
		}
	}
	n.unknownRequests(holds)
	n.remove("a", 1)
	n.agree(1) // The request that no pod names is unattributed.
	n.remove("b", 1)
	n.agree(0)
}

// unknownRequests checks the exporters that know no requests: they must divide the claim's devices
// equally among its pods, and label them accordingly.
func (n *namespace) unknownRequests(holds []held) {
	n.Helper()
	for _, e := range n.exporters {
		if !e.noClaims {
			continue
		}
		for _, h := range holds {
			err := e.has("dra_pod_claim_info", 1, "namespace", n.name, "pod", h.Pod, "device", h.Device, "attribution",
				"equal")
			expect.That(n, err == nil, "%s: %v", e.name, err)
		}
	}
}

// Two pods use different requests of one claim. Both requests have a share of the same device: 10
// and 30 of its 80 GiB.
func testSharesOfPods(t *testing.T, w *world) {
	n := w.namespace(t, "shares-of-pods")
	n.claim("parts", memory(request("small", gpudriver.ClassShared), 3, "10Gi"),
		memory(request("large", gpudriver.ClassShared), 3, "30Gi"))
	for _, pod := range []string{"small", "large"} {
		spec := podSpec("parts")
		spec.Containers[0].Resources.Claims[0].Request = pod
		n.pod(pod, spec)
	}
	n.running(2)
	n.agree(2)
	n.charges("shared-3", claimPart("parts", 1), podPart("small", 0.25).without(0.5).withoutPods(0.5),
		podPart("large", 0.75).without(0.5).withoutPods(0.5))
	n.remove("large", 1)
	n.remove("small", 1)
	n.agree(0)
}

// containerDevice is a device of a container of a pod.
type containerDevice struct{ Container, Device string }

// Each container of a pod requests an extended resource and gets its own device. All devices belong
// to one claim that the scheduler creates.
func testExtendedContainers(t *testing.T, w *world) {
	n := w.namespace(t, "extended-containers")
	spec := resourceSpec(gpudriver.ExtendedResource, "1")
	for _, name := range []string{"second", "third"} {
		c := *spec.Containers[0].DeepCopy()
		c.Name = name
		spec.Containers = append(spec.Containers, c)
	}
	n.pod("user", spec)
	n.running(1)
	n.agree(3)
	want := n.extendedDevices("user")
	eventually(t, "each container is shown with its device", func() error {
		var wrong error
		for _, e := range n.exporters {
			got, err := e.containerDevices(n.name, "user")
			if err != nil {
				return err
			}
			if e.noServer { // The containers' devices are unknown: each is shown with all.
				continue
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				wrong = errors.Join(wrong, fmt.Errorf("%s: the devices of the containers (-cluster +exporter):\n%s", e.name, diff))
			}
		}
		return wrong
	})
	n.remove("user", 1)
	n.agree(0)
}

// extendedDevices returns the devices of each container of a pod from
// status.extendedResourceClaimStatus.
func (n *namespace) extendedDevices(name string) []containerDevice {
	n.Helper()
	pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), name, metav1.GetOptions{})
	n.no(err)
	status := pod.Status.ExtendedResourceClaimStatus
	claim, err := n.client.ResourceV1().ResourceClaims(n.name).Get(n.Context(), status.ResourceClaimName,
		metav1.GetOptions{})
	n.no(err)
	var out []containerDevice
	for _, m := range status.RequestMappings {
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Request == m.RequestName {
				out = append(out, containerDevice{m.ContainerName, r.Device})
			}
		}
	}
	must.That(n, len(out) == len(pod.Spec.Containers), "%d containers have devices %v", len(pod.Spec.Containers), out)
	slices.SortFunc(out, compareContainers)
	return out
}

// containerDevices returns the devices of each container of a pod as an exporter shows them.
func (p *program) containerDevices(ns, pod string) ([]containerDevice, error) {
	families, err := p.families()
	if err != nil {
		return nil, err
	}
	var out []containerDevice
	for _, m := range families["dra_pod_claim_info"].GetMetric() {
		if labels := labelsOf(m); labels["namespace"] == ns && labels["pod"] == pod {
			out = append(out, containerDevice{labels["container"], labels["device"]})
		}
	}
	slices.SortFunc(out, compareContainers)
	return out, nil
}

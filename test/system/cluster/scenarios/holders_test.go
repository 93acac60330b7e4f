package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

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
	n.each("pods whose claims are unknown are counted", n.exporters, func(e *running) error {
		if !e.noClaims || e.noPods {
			return nil
		}
		count, err := e.count("dra_exporter_unresolved_pods")
		if err == nil && count == 0 {
			err = errors.New("dra_exporter_unresolved_pods is 0")
		}
		return err
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
	n.clear()
}

// A plain init container uses its pod's claim. The pod still holds the claim after the init
// container has ended, because the device stays prepared until the pod is deleted.
func testInitContainer(t *testing.T, w *world) {
	n := w.namespace(t, "init-container")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", initialized(podSpec("one"), "sleep", "8s"))
	n.podIs("user", "runs its init container, or has run it", func(pod *corev1.Pod) bool {
		s := pod.Status.InitContainerStatuses
		return len(s) > 0 && (s[0].State.Terminated != nil || s[0].State.Running != nil)
	})
	lift := n.keeps(1)
	n.phase("user", corev1.PodRunning)
	holds, _ := n.agree(1)
	n.chargesBy(n.objects(), func(*running) string { return holds[0].Device }, claimPart("one", 1), podPart("user", 1))
	lift()
	n.clear()
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
	n.clear()
}

// Two pods use different requests of one claim. Each pod holds the devices of its own request.
func testRequestsOfPods(t *testing.T, w *world) {
	n := w.namespace(t, "requests-of-pods")
	n.claim("parts", request("a", gpudriver.ClassGPU), request("b", gpudriver.ClassGPU))
	n.byRequest("parts", "a", "b")
	holds, _ := n.agree(2)
	for _, h := range holds {
		if h.Used {
			n.charges(h.Device, claimPart("parts", 1), podPart(h.Pod, 1).without(0.5).withoutPods(0.5))
		}
	}
	n.unknownRequests(holds)
	n.remove("a", 1)
	n.agree(1) // The request that no pod names is unattributed.
	n.clear()
}

// byRequest creates a pod for each of two requests of a claim, and waits until they run.
func (n *namespace) byRequest(claim string, requests ...string) {
	for _, request := range requests {
		spec := podSpec(claim)
		spec.Containers[0].Resources.Claims[0].Request = request
		n.pod(request, spec)
	}
	n.running(len(requests))
}

// unknownRequests checks the exporters that know no requests: they must divide the claim's devices
// equally among its pods, and label them accordingly.
func (n *namespace) unknownRequests(holds []held) {
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
	n.byRequest("parts", "small", "large")
	n.agree(2)
	n.charges("shared-3", claimPart("parts", 1), podPart("small", 0.25).without(0.5).withoutPods(0.5),
		podPart("large", 0.75).without(0.5).withoutPods(0.5))
	n.clear()
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
	holds, _ := n.agree(3)
	n.charges(holds[0].Device, claimPart(holds[0].Claim, 1))
	want := n.extendedDevices("user")
	n.each("each container is shown with its device", n.withServer(), func(e *running) error {
		got, err := e.containerDevices(n.name, "user")
		if diff := gocmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("the devices of the containers (-cluster +exporter):\n%s", diff)
		}
		return err
	})
	n.clear()
}

// extendedDevices returns the devices of each container of a pod from
// status.extendedResourceClaimStatus.
func (n *namespace) extendedDevices(name string) []containerDevice {
	pod := n.getPod(name)
	status := pod.Status.ExtendedResourceClaimStatus
	claim := n.getClaim(status.ResourceClaimName)
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

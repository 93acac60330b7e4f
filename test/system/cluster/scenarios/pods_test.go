package scenarios

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// testStaticPod makes the kubelet run a static pod. Static pods can't have claims, so it uses a
// device plugin's device. Every exporter must show one pod with the UID that the kubelet gave it,
// although its mirror pod at the API server has another UID. The pod holds its device while the
// mirror pod is deleted and created again, and again when the same manifest, with the same UID, is
// put back.
func testStaticPod(t *testing.T, w *world) {
	n := w.namespace(t, "static-pod")
	manifest := filepath.Join(w.cluster.Manifests(), n.name+".yaml")
	spec := resourceSpec(deviceplugin.Spare, "1")
	content, err := yaml.Marshal(corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "static"}, Spec: spec,
	})
	n.no(err)
	name := "static-" + node.Name
	for range 2 {
		n.no(os.WriteFile(manifest+".tmp", content, 0o600))
		n.no(os.Rename(manifest+".tmp", manifest))
		n.running(1)
		n.agree(1)
		n.staticUID(name)
		lift := n.keeps(1)
		n.delete(name, ptr.To[int64](0))
		time.Sleep(trouble)
		n.running(1)
		lift()
		n.charges(deviceplugin.SpareUUID, podPart(name, 1))
		n.no(os.Remove(manifest))
		n.running(0)
		n.agree(0)
	}
}

// staticUID waits until every exporter shows a static pod with the UID that the kubelet gave it.
func (n *namespace) staticUID(name string) {
	pod := n.getPod(name)
	uid := pod.Annotations[corev1.MirrorPodAnnotationKey]
	must.That(n, uid != "" && uid != string(pod.UID), "pod %s has UID %s and mirrors %q", name, pod.UID, uid)
	n.each("the pod has the kubelet's UID", n.exporters, func(e *running) error {
		return e.has("dra_pod_info", 1, "namespace", n.name, "pod", name, "uid", uid)
	})
}

// An ephemeral container for debugging has no claims. The pod still holds its device, in the same
// container as before.
func testEphemeralContainer(t *testing.T, w *world) {
	n := w.namespace(t, "ephemeral")
	n.user(podSpec("one"))
	lift := n.keeps(1)
	n.no(retry.RetryOnConflict(retry.DefaultBackoff, func() error { // The kubelet may update the pod at the same time.
		pod := n.getPod("user")
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "workload:1"},
			TargetContainerName:      "main",
		}}
		_, err := n.pods().UpdateEphemeralContainers(n.Context(), "user", pod, metav1.UpdateOptions{})
		return err
	}))
	n.podIs("user", "runs the other container", func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.EphemeralContainerStatuses,
			func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	})
	time.Sleep(timing)
	holds, _ := n.agree(1)
	for _, e := range n.exporters {
		got := must.Get(e.containerDevices(n.name, "user"))(n)
		if want := []containerDevice{{"main", holds[0].Device}}; !slices.Equal(got, want) {
			t.Errorf("%s: the containers have %v, want %v", e.name, got, want)
		}
	}
	lift()
	n.clear()
}

// The kubelet prepares a pod's devices before it pulls the image. A pod whose image is missing
// therefore holds its prepared device until the pod is deleted, also after the image has arrived.
func testMissingImage(t *testing.T, w *world) {
	n := w.namespace(t, "missing-image")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	spec := podSpec("one")
	spec.Containers[0].Image = "missing:1"
	if !w.containers {
		spec.Containers[0].ImagePullPolicy = corev1.PullNever // The fake runtime can pull every image.
	}
	n.pod("user", spec)
	n.podIs("user", "waits for its image", waitsForImage)
	holds, _ := n.agree(1)
	n.charges(holds[0].Device, claimPart("one", 1), podPart("user", 1))
	n.state(holds[0].Device, "prepared")
	lift := n.keeps(1)
	if !w.containers {
		pod := n.getPod("user")
		pod.Spec.Containers[0].Image = "workload:1"
		must.Get(n.pods().Update(n.Context(), pod, metav1.UpdateOptions{}))(n)
	}
	time.Sleep(timing)
	lift()
	n.clear()
}

// waitsForImage reports whether a container of a pod waits for its image.
func waitsForImage(pod *corev1.Pod) bool {
	reasons := []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && slices.Contains(reasons, s.State.Waiting.Reason)
	})
}

// A pod that is evicted holds its device until its grace period is over, whether it is evicted by
// the Eviction API or because a DeviceTaintRule taints its device.
func testEvicted(t *testing.T, w *world) {
	const grace = 4
	n := w.namespace(t, "evicted")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	byTaint := func(device string) (undo func()) {
		return n.taint(device, resourceapi.DeviceTaint{
			Key: "example.com/broken", Value: "true", Effect: resourceapi.DeviceTaintEffectNoExecute,
		})
	}
	for _, evict := range []func(device string) (undo func()){n.evict, byTaint} {
		n.pod("user", sleeps(podSpec("one"), 2*grace, grace))
		n.running(1)
		lift := n.keeps(1)
		holds, _ := n.agree(1)
		undo := evict(holds[0].Device)
		n.podIs("user", "is being deleted", func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
		time.Sleep(grace / 2 * time.Second)
		lift()
		n.gone("user")
		undo()
		n.agree(0)
	}
}

// evict evicts the pod as kubectl drain does.
func (n *namespace) evict(string) (undo func()) {
	n.no(n.pods().EvictV1(n.Context(),
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "user"}}))
	return func() {}
}

// taint creates a DeviceTaintRule for a device, named after the namespace.
func (n *namespace) taint(device string, taint resourceapi.DeviceTaint) (undo func()) {
	rules := n.client.ResourceV1().DeviceTaintRules()
	create(n, rules, &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{
				Driver: ptr.To(gpudriver.Name), Pool: ptr.To(node.Name), Device: &device,
			},
			Taint: taint,
		},
	})
	return func() { n.no(rules.Delete(n.Context(), n.name, metav1.DeleteOptions{})) }
}

// The kubelet evicts a pod that writes more to its volume than the limit. The pod has failed, its
// object remains, and it holds nothing.
func testEvictedByKubelet(t *testing.T, w *world) {
	n := w.namespace(t, "evicted-by-kubelet")
	spec := once(podSpec("one"))
	limit := resource.MustParse("1Mi")
	spec.Volumes = []corev1.Volume{{
		Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}},
	}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	n.user(spec)
	n.agree(1)
	volumes := filepath.Join(w.cluster.KubeletRoot(), "pods", string(n.getPod("user").UID), "volumes")
	file := filepath.Join(volumes, "kubernetes.io~empty-dir", "scratch", "file")
	n.no(os.WriteFile(file, make([]byte, 2*limit.Value()), 0o600))
	n.phase("user", corev1.PodFailed)
	n.agree(0)
	expect.Is(t, n.getPod("user").Status.Reason, "Evicted", "the pod has failed for")
	n.remove("user", 1)
}

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

package scenarios

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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

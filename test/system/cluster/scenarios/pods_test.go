package scenarios

import (
	"errors"
	"fmt"
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
		n.no(n.client.CoreV1().Pods(n.name).Delete(n.Context(), name,
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
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
	n.Helper()
	pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), name, metav1.GetOptions{})
	n.no(err)
	uid := pod.Annotations[corev1.MirrorPodAnnotationKey]
	must.That(n, uid != "" && uid != string(pod.UID), "pod %s has UID %s and mirrors %q", name, pod.UID, uid)
	eventually(n.T, "the pod has the kubelet's UID", func() error {
		var wrong error
		for _, e := range n.exporters {
			if err := e.has("dra_pod_info", 1, "namespace", n.name, "pod", name, "uid", uid); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
			}
		}
		return wrong
	})
}

// An ephemeral container for debugging has no claims. The pod still holds its device, in the same
// container as before.
func testEphemeralContainer(t *testing.T, w *world) {
	n := w.namespace(t, "ephemeral")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podSpec("one"))
	n.running(1)
	lift := n.keeps(1)
	pods := n.client.CoreV1().Pods(n.name)
	n.no(retry.RetryOnConflict(retry.DefaultBackoff, func() error { // The kubelet may update the pod at the same time.
		pod, err := pods.Get(n.Context(), "user", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "workload:1"},
			TargetContainerName:      "main",
		}}
		_, err = pods.UpdateEphemeralContainers(n.Context(), "user", pod, metav1.UpdateOptions{})
		return err
	}))
	eventually(t, "the other container runs", func() error {
		pod, err := pods.Get(n.Context(), "user", metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(pod.Status.EphemeralContainerStatuses,
			func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
			err = fmt.Errorf("the containers are %+v", pod.Status.EphemeralContainerStatuses)
		}
		return err
	})
	time.Sleep(timing)
	holds, _ := n.agree(1)
	for _, e := range n.exporters {
		got, err := e.containerDevices(n.name, "user")
		n.no(err)
		if want := []containerDevice{{"main", holds[0].Device}}; !slices.Equal(got, want) {
			t.Errorf("%s: the containers have %v, want %v", e.name, got, want)
		}
	}
	lift()
	n.remove("user", 1)
	n.agree(0)
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
	eventually(t, "the pod waits for its image", func() error {
		pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), "user", metav1.GetOptions{})
		if err == nil && !waitsForImage(pod) {
			err = fmt.Errorf("its containers are %+v", pod.Status.ContainerStatuses)
		}
		return err
	})
	holds, _ := n.agree(1)
	n.charges(holds[0].Device, claimPart("one", 1), podPart("user", 1))
	n.state(holds[0].Device, "prepared")
	lift := n.keeps(1)
	pods := n.client.CoreV1().Pods(n.name)
	pod, err := pods.Get(n.Context(), "user", metav1.GetOptions{})
	n.no(err)
	pod.Spec.Containers[0].Image = "workload:1"
	if !w.containers {
		_, err = pods.Update(n.Context(), pod, metav1.UpdateOptions{})
		n.no(err)
	}
	time.Sleep(timing)
	lift()
	n.remove("user", 1)
	n.agree(0)
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
	spec := podSpec("one")
	spec.TerminationGracePeriodSeconds = ptr.To[int64](2 * grace)
	spec.Containers[0].Lifecycle = &corev1.Lifecycle{
		PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: grace}},
	}
	for _, evict := range []func(device string) (undo func()){n.evict, n.taint} {
		n.pod("user", spec)
		n.running(1)
		lift := n.keeps(1)
		holds, _ := n.agree(1)
		undo := evict(holds[0].Device)
		eventually(t, "the pod is being deleted", func() error {
			pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), "user", metav1.GetOptions{})
			if err == nil && pod.DeletionTimestamp == nil {
				err = errors.New("it is not")
			}
			return err
		})
		time.Sleep(grace / 2 * time.Second)
		lift()
		n.gone("user")
		undo()
		n.agree(0)
	}
}

// evict evicts the pod as kubectl drain does.
func (n *namespace) evict(string) (undo func()) {
	n.no(n.client.CoreV1().Pods(n.name).EvictV1(n.Context(),
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "user"}}))
	return func() {}
}

// taint creates a DeviceTaintRule that evicts the pods that use a device.
func (n *namespace) taint(device string) (undo func()) {
	rules := n.client.ResourceV1().DeviceTaintRules()
	_, err := rules.Create(n.Context(), &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{
				Driver: ptr.To(gpudriver.Name), Pool: ptr.To(node.Name), Device: &device,
			},
			Taint: resourceapi.DeviceTaint{
				Key: "example.com/broken", Value: "true", Effect: resourceapi.DeviceTaintEffectNoExecute,
			},
		},
	}, metav1.CreateOptions{})
	n.no(err)
	return func() { n.no(rules.Delete(n.Context(), n.name, metav1.DeleteOptions{})) }
}

// The kubelet evicts a pod that writes more to its volume than the limit. The pod has failed, its
// object remains, and it holds nothing.
func testEvictedByKubelet(t *testing.T, w *world) {
	n := w.namespace(t, "evicted-by-kubelet")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	spec := once(podSpec("one"))
	limit := resource.MustParse("1Mi")
	spec.Volumes = []corev1.Volume{{
		Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}},
	}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	n.pod("user", spec)
	n.running(1)
	n.agree(1)
	pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), "user", metav1.GetOptions{})
	n.no(err)
	volumes := filepath.Join(w.cluster.KubeletRoot(), "pods", string(pod.UID), "volumes")
	file := filepath.Join(volumes, "kubernetes.io~empty-dir", "scratch", "file")
	n.no(os.WriteFile(file, make([]byte, 2*limit.Value()), 0o600))
	n.phase("user", corev1.PodFailed)
	n.agree(0)
	pod, err = n.client.CoreV1().Pods(n.name).Get(n.Context(), "user", metav1.GetOptions{})
	n.no(err)
	expect.That(t, pod.Status.Reason == "Evicted", "the pod has failed for %q, want an eviction", pod.Status.Reason)
	n.remove("user", 1)
}

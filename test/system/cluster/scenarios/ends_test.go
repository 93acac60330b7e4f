package scenarios

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

var rounds = flag.Int("rounds", 2, "how often each pod is deleted by force and created again")

// lingering limits how long the containers of a pod run after the pod was deleted by force.
const lingering = 4 * time.Second

// lingers lets the pod's containers run on after a deletion by force.
func lingers(spec corev1.PodSpec) corev1.PodSpec {
	spec.TerminationGracePeriodSeconds = ptr.To(int64(lingering / time.Second))
	return spec
}

// preStop adds a hook that lets the pod's main container run on for almost the whole grace period.
func preStop(spec corev1.PodSpec) corev1.PodSpec {
	sleep := corev1.SleepAction{Seconds: int64(lingering/time.Second) - 1}
	spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &sleep}}
	return spec
}

// Pods are deleted by force and created again under the same names while the containers of the
// deleted pods still run. Each new pod holds its device from its start and keeps it, although the
// kubelet reports later that the deleted pod has ended.
func testForceRecreated(t *testing.T, w *world) {
	for _, tt := range []struct {
		name string
		spec corev1.PodSpec
	}{
		{"plain", lingers(podSpec("one"))},
		{"pre-stop", preStop(lingers(podSpec("one")))},
		{"stubborn", lingers(podSpec("one", "stubborn"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := w.namespace(t, "force-"+tt.name)
			// Without a pod the claim can be reallocated. The kubelet still reports the earlier
			// device as long as containers of the deleted pod use it.
			n.contradicts()
			n.claim("one", request("gpu", gpudriver.ClassGPU))
			n.pod("user", tt.spec)
			for range *rounds {
				n.recreated("user", func() { n.pod("user", tt.spec) })
				n.Logf("prepared and not allocated: %d devices", n.showsPrepared("user", "one"))
			}
			n.remove("user", 1)
			n.agree(0)
		})
	}
	t.Run("StatefulSet", func(t *testing.T) {
		t.Parallel()
		n := w.namespace(t, "force-stateful-set")
		n.template("made", request("gpu", gpudriver.ClassGPU))
		n.statefulSet("set", preStop(lingers(templateSpec("made"))))
		for range *rounds {
			n.recreated("set-0", func() {})
		}
		n.no(n.client.AppsV1().StatefulSets(n.name).Delete(n.Context(), "set", metav1.DeleteOptions{}))
		n.running(0)
		n.agree(0)
	})
}

// recreated deletes a running pod by force and recreates it. It checks that the new pod holds its
// device on every snapshot until the containers of the deleted pod have ended.
func (n *namespace) recreated(name string, create func()) {
	n.Helper()
	former := n.awaitPod(name, "")
	n.agree(1)
	n.force(former)
	create()
	pod := n.awaitPod(name, former.UID)
	for ; !n.hasDevices(pod); pod = n.awaitPod(name, pod.UID) {
		n.Logf("Kubernetes took its claim from pod %s, which is %s: it is created again", pod.UID, pod.Status.Phase)
		n.force(pod)
		create()
	}
	begin := time.Now()
	n.shows(pod)
	late := n.latest()
	time.Sleep(late) // An earlier answer may show it although the next one does not.
	lift := n.keeps(1)
	time.Sleep(time.Until(begin.Add(lingering + 2*time.Second + late)))
	lift()
}

// shows waits until every exporter that knows pods shows this pod as a holder. Another pod of the
// same name does not count: an exporter may not know yet that it has ended.
func (n *namespace) shows(pod *corev1.Pod) {
	n.Helper()
	eventually(n.T, fmt.Sprintf("pod %s, %s, holds a device", pod.Name, pod.UID), func() error {
		var wrong error
		for _, e := range n.exporters {
			r, err := e.report()
			if err != nil {
				return err
			}
			shown := slices.ContainsFunc(holdReports(r, n.name), func(h present.HoldReport) bool {
				return h.UID == string(pod.UID)
			})
			if !e.noPods && !shown {
				wrong = errors.Join(wrong, fmt.Errorf("%s shows %v", e.name, holdsOfExporter(r, n.name)))
			}
		}
		return wrong
	})
}

// hasDevices reports whether the claims of a pod that is bound to the node are allocated and
// reserved for the pod. The ResourceClaim controller may mistake the reservation for that of an
// earlier pod of the same name, if its cache still has that pod (syncClaim in
// pkg/controller/resourceclaim, 1.37). It then deallocates the claim. If the pod is running, its
// device is then in use but not allocated. If it is not running yet, it never starts.
func (n *namespace) hasDevices(pod *corev1.Pod) bool {
	n.Helper()
	for _, c := range claimsOf(pod) {
		claim, err := n.client.ResourceV1().ResourceClaims(n.name).Get(n.Context(), c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false
		}
		n.no(err)
		if claim.Status.Allocation == nil || !slices.ContainsFunc(claim.Status.ReservedFor,
			func(by resourceapi.ResourceClaimConsumerReference) bool { return by.UID == pod.UID }) {
			return false
		}
	}
	return true
}

// awaitPod waits until a pod of this name is running whose UID is not the one given. It also
// returns a pod that has lost its devices and may never run, see hasDevices.
func (n *namespace) awaitPod(name string, not types.UID) *corev1.Pod {
	n.Helper()
	var pod *corev1.Pod
	eventually(n.T, fmt.Sprintf("pod %s runs", name), func() error {
		var err error
		pod, err = n.client.CoreV1().Pods(n.name).Get(n.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		never := not != "" && pod.UID != not && pod.Spec.NodeName != "" && !n.hasDevices(pod)
		if pod.UID == not || pod.Status.Phase != corev1.PodRunning && !never {
			return fmt.Errorf("pod %s is %s", pod.UID, pod.Status.Phase)
		}
		return nil
	})
	return pod
}

// statefulSet creates a StatefulSet with one pod.
func (n *namespace) statefulSet(name string, spec corev1.PodSpec) {
	n.Helper()
	labels := map[string]string{"app": name}
	_, err := n.client.AppsV1().StatefulSets(n.name).Create(n.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	n.no(err)
}

// endsSlowly lets the pod's main container run on for almost the whole grace period. grace is in
// seconds.
func endsSlowly(spec corev1.PodSpec, grace int64) corev1.PodSpec {
	spec.TerminationGracePeriodSeconds = &grace
	sleep := &corev1.SleepAction{Seconds: grace - 1}
	spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: sleep}}
	return spec
}

// killed waits for the kubelet's event that it is stopping a container of a pod.
func (n *namespace) killed(pod string) {
	n.Helper()
	eventually(n.T, "a container is being ended", func() error {
		all, err := n.client.CoreV1().Events(n.name).List(n.Context(), metav1.ListOptions{
			FieldSelector: "reason=Killing,involvedObject.name=" + pod,
		})
		if err == nil && len(all.Items) == 0 {
			err = errors.New("there is no such event")
		}
		return err
	})
}

// fails waits until the kubelet itself says that a pod has failed, while its containers may still
// run.
func (n *namespace) fails(pod string) {
	n.Helper()
	if !kubeletSince(podsAPISince) {
		n.killed(pod)
		return
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(n.cluster.KubeletRoot(), podsSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.no(err)
	defer conn.Close()
	eventually(n.T, "the kubelet says that the pod has failed", func() error {
		all, err := podsv1alpha1.NewPodsClient(conn).ListPods(n.Context(), &podsv1alpha1.ListPodsRequest{})
		if err != nil {
			return err
		}
		for _, content := range all.GetPods() {
			var p corev1.Pod
			if err := p.Unmarshal(content); err != nil {
				return err
			}
			if p.Namespace == n.name && p.Name == pod && p.Status.Phase == corev1.PodFailed {
				return nil
			}
		}
		return fmt.Errorf("it has not, among %d pods", len(all.GetPods()))
	})
}

// A pod exceeds its deadline. The kubelet reports immediately that it has failed, but its
// containers run on for the grace period. The pod holds its device until they have ended.
func testDeadline(t *testing.T, w *world) {
	const deadline, grace = 1, 45
	n := w.namespace(t, "deadline")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", endsSlowly(once(podSpec("one")), grace))
	n.phase("user", corev1.PodRunning)
	lift := n.keeps(1)
	patch := fmt.Appendf(nil, `{"spec":{"activeDeadlineSeconds":%d}}`, deadline)
	_, err := n.client.CoreV1().Pods(n.name).Patch(n.Context(), "user", types.MergePatchType, patch, metav1.PatchOptions{})
	n.no(err)
	n.fails("user")
	n.exporters[0].ticks(t, 3) // The other exporters tick at the same time.
	for _, e := range n.exporters {
		e.ticks(t, 1)
	}
	pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), "user", metav1.GetOptions{})
	n.no(err)
	lift()
	must.That(t, pod.Status.Phase == corev1.PodRunning,
		"its containers have ended too early to say anything: the pod is %s", pod.Status.Phase)
	n.phase("user", corev1.PodFailed)
	holds, err := n.holdsOfCluster(n.Context(), n.name)
	n.no(err)
	expect.That(t, len(holds) == 0, "the failed pod holds %v", holds)
	n.agree(0)
	n.no(n.client.CoreV1().Pods(n.name).Delete(n.Context(), "user", metav1.DeleteOptions{}))
}

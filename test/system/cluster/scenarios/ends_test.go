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

// lingering limits how long the containers of a pod run after the pod was deleted by force, in
// seconds.
const lingering = 4

// lingers lets the pod's containers run on after a deletion by force.
func lingers(spec corev1.PodSpec) corev1.PodSpec {
	spec.TerminationGracePeriodSeconds = ptr.To[int64](lingering)
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
		{"pre-stop", endsSlowly(podSpec("one"), lingering)},
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
			n.clear()
		})
	}
	t.Run("StatefulSet", func(t *testing.T) {
		t.Parallel()
		n := w.namespace(t, "force-stateful-set")
		n.template("made", request("gpu", gpudriver.ClassGPU))
		n.statefulSet("set", endsSlowly(templateSpec("made"), lingering))
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
	time.Sleep(time.Until(begin.Add((lingering+2)*time.Second + late)))
	lift()
}

// shows waits until every exporter that knows pods shows this pod as a holder. Another pod of the
// same name does not count: an exporter may not know yet that it has ended.
func (n *namespace) shows(pod *corev1.Pod) {
	what := fmt.Sprintf("pod %s, %s, holds a device", pod.Name, pod.UID)
	n.each(what, n.exporters, snapshots(func(e *running, r *present.Report) error {
		if !e.noPods && !slices.ContainsFunc(holdReports(r, n.name), func(h present.HoldReport) bool {
			return h.UID == string(pod.UID)
		}) {
			return fmt.Errorf("it shows %v", holdsOfExporter(r, n.name))
		}
		return nil
	}))
}

// hasDevices reports whether the claims of a pod that is bound to the node are allocated and
// reserved for the pod. The ResourceClaim controller may mistake the reservation for that of an
// earlier pod of the same name, if its cache still has that pod (syncClaim in
// pkg/controller/resourceclaim, 1.37). It then deallocates the claim. If the pod is running, its
// device is then in use but not allocated. If it is not running yet, it never starts.
func (n *namespace) hasDevices(pod *corev1.Pod) bool {
	for _, c := range claimsOf(pod) {
		claim, err := n.claims().Get(n.Context(), c.Name, metav1.GetOptions{})
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
	return n.podIs(name, "runs", func(pod *corev1.Pod) bool {
		never := not != "" && pod.Spec.NodeName != "" && !n.hasDevices(pod)
		return pod.UID != not && (pod.Status.Phase == corev1.PodRunning || never)
	})
}

// statefulSet creates a StatefulSet with one pod.
func (n *namespace) statefulSet(name string, spec corev1.PodSpec) {
	labels := map[string]string{"app": name}
	create(n, n.client.AppsV1().StatefulSets(n.name), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	})
}

// endsSlowly lets the pod's main container run on for almost the whole grace period. grace is in
// seconds.
func endsSlowly(spec corev1.PodSpec, grace int64) corev1.PodSpec {
	return sleeps(spec, grace, grace-1)
}

// sleeps lets the pod's main container run on for some seconds of a grace period.
func sleeps(spec corev1.PodSpec, grace, seconds int64) corev1.PodSpec {
	spec.TerminationGracePeriodSeconds = &grace
	sleep := &corev1.SleepAction{Seconds: seconds}
	spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: sleep}}
	return spec
}

// fails waits until the kubelet itself says that a pod has failed, while its containers may still
// run. A kubelet without the Pods API says by an event that it is stopping a container.
func (n *namespace) fails(pod string) {
	if !kubeletSince(podsAPISince) {
		eventually(n.T, "a container is being ended", func() error {
			killing := metav1.ListOptions{FieldSelector: "reason=Killing,involvedObject.name=" + pod}
			all, err := n.client.CoreV1().Events(n.name).List(n.Context(), killing)
			if err == nil && len(all.Items) == 0 {
				err = errors.New("there is no such event")
			}
			return err
		})
		return
	}
	conn := must.Get(grpc.NewClient("unix:"+filepath.Join(n.cluster.KubeletRoot(), podsSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials())))(n)
	defer conn.Close()
	eventually(n.T, "the kubelet says that the pod has failed", func() error {
		all, err := podsv1alpha1.NewPodsClient(conn).ListPods(n.Context(), &podsv1alpha1.ListPodsRequest{})
		for _, content := range all.GetPods() {
			var p corev1.Pod
			if err := p.Unmarshal(content); err != nil {
				return err
			}
			if p.Namespace == n.name && p.Name == pod && p.Status.Phase == corev1.PodFailed {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("it has not, among %d pods", len(all.GetPods())))
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
	must.Get(n.pods().Patch(n.Context(), "user", types.MergePatchType, patch, metav1.PatchOptions{}))(n)
	n.fails("user")
	n.exporters[0].ticks(t, 3) // The other exporters tick at the same time.
	for _, e := range n.exporters {
		e.ticks(t, 1)
	}
	n.stillRuns("user")
	lift()
	n.phase("user", corev1.PodFailed)
	holds := must.Get(n.holdsOfCluster(n.Context(), n.name))(n)
	expect.That(t, len(holds) == 0, "the failed pod holds %v", holds)
	n.agree(0)
	n.delete("user", nil)
}

// stillRuns checks that a pod's containers have not ended by the API server, without which the
// checks so far say nothing.
func (n *namespace) stillRuns(pod string) {
	phase := n.getPod(pod).Status.Phase
	must.That(n, phase == corev1.PodRunning, "its containers have ended too early to say anything: the pod is %s", phase)
}

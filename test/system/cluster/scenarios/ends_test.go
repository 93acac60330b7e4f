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
	batchv1 "k8s.io/api/batch/v1"
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

// A pod that completes releases its device although it is not deleted. What it used is kept.
func testCompleted(t *testing.T, w *world) {
	n := w.namespace(t, "completed")
	n.claim("job", request("gpu", gpudriver.ClassGPU))
	n.pod("job", once(podSpec("job", untilFinish()...)))
	n.phase("job", corev1.PodRunning)
	holds, _ := n.agree(1)
	least := n.finishes("job")
	n.phase("job", corev1.PodSucceeded)
	n.agree(0)
	n.ended("job", holds[0].Device, least)
}

// finishes lets a pod that every exporter shows work for a while more, and then finish. It returns
// how long the pod has held its devices at least: the end may be set to a time between two answers,
// up to half a second off.
func (n *namespace) finishes(pod string) (least time.Duration) {
	begin := time.Now()
	time.Sleep(2 * timing)
	least = time.Since(begin) - 500*time.Millisecond
	n.finish(pod)
	return least
}

// A pod that is being deleted holds its device and is charged until its grace period is over.
func testDeletedGracefully(t *testing.T, w *world) {
	const grace = 30 // In seconds; long enough to compare the charges on a slow machine.
	n := w.namespace(t, "deleted")
	n.user(sleeps(podSpec("one"), 2*grace, grace))
	lift := n.keeps(1)
	n.delete("user", nil)
	deleted := time.Now()
	holds, _ := n.agree(1)
	n.charges(holds[0].Device, claimPart("one", 1), podPart("user", 1))
	time.Sleep(time.Until(deleted.Add((grace - 1) * time.Second)))
	lift()
	n.gone("user")
	n.agree(0)
	n.ended("one", holds[0].Device, (grace-1)*time.Second)
}

// A pod that is deleted by force is immediately gone from the API server and holds nothing any
// more.
func testForceDeleted(t *testing.T, w *world) {
	n := w.namespace(t, "force-deleted")
	n.user(podSpec("one"))
	holds, _ := n.agree(1)
	n.remove("user", 0)
	lift := n.keeps(0)
	time.Sleep(trouble)
	lift()
	n.ended("one", holds[0].Device, 0)
}

// A pod whose container crashes again and again, with increasing back-off, holds its device all the
// time.
func testCrashLoop(t *testing.T, w *world) {
	n := w.namespace(t, "crash-loop")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("crasher", podSpec("one", "fail", "1s"))
	n.running(1)
	lift := n.keeps(1)
	n.podIs("crasher", "waits for the next start of its container", func(pod *corev1.Pod) bool {
		s := pod.Status.ContainerStatuses[0]
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" && s.RestartCount >= 1
	})
	holds, _ := n.agree(1)
	n.charges(holds[0].Device, claimPart("one", 1), podPart("crasher", 1))
	lift()
	n.clear()
}

// A pod that is created again under the same name, with the same claim, continues the claim's
// series.
func testRecreated(t *testing.T, w *world) {
	n := w.namespace(t, "recreated")
	n.claim("one", memory(request("part", gpudriver.ClassShared), 1, "10Gi"))
	for range 2 {
		n.pod("user", once(podSpec("one")))
		n.running(1)
		n.agree(1)
		time.Sleep(2 * timing)
		n.remove("user", 1)
		n.agree(0)
	}
	n.heldFor("one", 2)
}

// ended checks that a claim no longer holds a device, and that it held the device for the duration
// least or longer. It also checks that, once all exporters agree that nothing in the namespace
// holds a device, no snapshot shows otherwise.
func (n *namespace) ended(claim, device string, least time.Duration) {
	lift := n.keeps(0)
	defer lift()
	is := func() error {
		r, err := n.exporter.report()
		if err != nil {
			return err
		}
		if row := holder(r.Claims, n.name, claim, device); row.Name == "" {
			return fmt.Errorf("claim %s is lost", claim)
		}
		for of, rows := range map[string][]present.HolderReport{"claim": r.Claims, "pod": r.Pods} {
			for i := range rows {
				row := &rows[i]
				if row.Namespace == n.name && row.Device == device &&
					(row.Ended == nil || row.AllocatedSeconds < least.Seconds()) {
					return fmt.Errorf("%s %s held %s for %v s and ended at %v, want at least %v", of, row.Name, device,
						row.AllocatedSeconds, row.Ended, least)
				}
			}
		}
		return nil
	}
	eventually(n.T, "the exporter says that the claim has ended", is) // The last readings have then been divided.
	for _, e := range n.exporters {
		e.ticks(n.T, 3)
	}
	n.no(is())
}

var long = flag.Bool("long", false, "also run the scenarios that take minutes")

// job creates a Job of one pod. The Job is deleted, with its pod, ttl seconds after its end; with a
// nil ttl it is kept.
func (n *namespace) job(name string, ttl *int32, spec corev1.PodSpec) {
	create(n, n.client.BatchV1().Jobs(n.name), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: jobSpec(ttl, spec),
	})
}

// claimGone waits until no claim is left.
func (n *namespace) claimGone() {
	eventually(n.T, "the claim is removed", func() error {
		claims, err := n.claims().List(n.Context(), metav1.ListOptions{})
		if err == nil && len(claims.Items) > 0 {
			err = fmt.Errorf("%d claims are there", len(claims.Items))
		}
		return err
	})
}

func jobSpec(ttl *int32, spec corev1.PodSpec) batchv1.JobSpec {
	return batchv1.JobSpec{TTLSecondsAfterFinished: ttl, Template: corev1.PodTemplateSpec{Spec: once(spec)}}
}

// A Job with a TTL is deleted when it has ended, and with it its pod and the pod's claim. The
// exporter must keep what the claim held and used.
func testJobWithTTL(t *testing.T, w *world) {
	n := w.namespace(t, "job-ttl")
	n.template("made", request("gpu", gpudriver.ClassGPU))
	n.job("job", ptr.To[int32](0), templateSpec("made", untilFinish()...))
	n.running(1)
	holds, _ := n.agree(1)
	least := n.finishes("")
	n.running(0)
	n.agree(0)
	n.claimGone()
	n.ended(holds[0].Claim, holds[0].Device, least)
}

// Several Jobs run one after the other. Each creates a claim of the same name for another device.
// Each pod holds its own device. Each device is charged to the claim's name for the time in which
// it was held.
func testReusedClaimName(t *testing.T, w *world) {
	n := w.namespace(t, "reused-claim")
	indices := []int{4, 1, 4}
	for i, index := range indices {
		device := fmt.Sprintf("shared-%d", index)
		n.claim("nightly", memory(request("part", gpudriver.ClassShared), index, "10Gi"))
		n.job(fmt.Sprintf("run-%d", i), nil, podSpec("nightly"))
		n.running(1)
		holds, _ := n.agree(1)
		must.That(t, holds[0].Device == device, "run %d holds %s, want %s", i, holds[0].Device, device)
		time.Sleep(timing)
		background := metav1.DeletePropagationBackground
		n.no(n.client.BatchV1().Jobs(n.name).Delete(n.Context(), fmt.Sprintf("run-%d", i),
			metav1.DeleteOptions{PropagationPolicy: &background}))
		n.no(n.claims().Delete(n.Context(), "nightly", metav1.DeleteOptions{}))
		n.running(0)
		n.agree(0)
		n.claimGone()
	}
	n.heldFor("nightly", len(indices))
}

// heldFor waits until each exporter shows that a claim held each of its devices, in a number of
// holds in all, as long as the driver's journal and the claim's reservations say.
func (n *namespace) heldFor(claim string, holds int) {
	events := must.Get(n.cluster.Journal())(n)
	least, most := map[string]time.Duration{}, map[string]time.Duration{}
	runs := map[string]int{}
	spans := heldBy(events, n.name, claim)
	for _, s := range spans {
		prepared, reserved := n.lasted(s)
		for _, d := range s.event.Devices {
			least[d.Device] += prepared
			most[d.Device] += reserved
			runs[d.Device]++
		}
	}
	must.That(n, len(spans) == holds, "the driver has seen %d holds of claim %s, want %d", len(spans), claim, holds)
	n.each("the time of all holds is counted", n.exporters, snapshots(func(_ *running, r *present.Report) error {
		for device, count := range runs {
			tolerance := time.Duration(1+count) * timing
			row, got := holder(r.Claims, n.name, claim, device), allocated(r, n.name, claim, device)
			if got < least[device]-tolerance || got > most[device]+tolerance || row.Ended == nil {
				return fmt.Errorf("the claim held %s for %v in all, the driver says %v, reserved it was for %v; it ended at %v",
					device, got, least[device], most[device], row.Ended)
			}
		}
		return nil
	}))
}

// allocated returns for how long a claim has held a device. Successive claims of the same name have
// a row each, and so have the holds of one claim if its receipt was made between them.
func allocated(r *present.Report, namespace, claim, device string) (all time.Duration) {
	for i := range r.Claims {
		if of := &r.Claims[i]; of.Namespace == namespace && of.Name == claim && of.Device == device {
			all += time.Duration(of.AllocatedSeconds * float64(time.Second))
		}
	}
	return all
}

// The runs of a CronJob use the same claim, one after the other. The claim is allocated for each
// run and holds nothing between two runs.
func testCronJob(t *testing.T, w *world) {
	const runs = 2
	n := w.namespace(t, "cron-job")
	n.claim("nightly", request("gpu", gpudriver.ClassGPU))
	create(n, n.client.BatchV1().CronJobs(n.name), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly"},
		Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: jobSpec(ptr.To[int32](0), podSpec("nightly", "sleep", "5s"))},
		},
	})
	for range runs {
		n.running(1)
		n.agree(1)
		n.running(0)
		n.agree(0)
	}
	n.no(n.client.BatchV1().CronJobs(n.name).Delete(n.Context(), "nightly", metav1.DeleteOptions{}))
	n.heldFor("nightly", runs)
}

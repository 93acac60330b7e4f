package scenarios

import (
	"flag"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

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

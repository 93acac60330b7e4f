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

	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

var long = flag.Bool("long", false, "also run the scenarios that take minutes")

// job makes a Job of one pod, which is removed, with its pod, that long after its end; nil: it
// stays.
func (n *namespace) job(name string, ttl *int32, spec corev1.PodSpec) {
	n.Helper()
	_, err := n.client.BatchV1().Jobs(n.name).Create(n.Context(),
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: jobSpec(ttl, spec)}, metav1.CreateOptions{})
	n.no(err)
}

func jobSpec(ttl *int32, spec corev1.PodSpec) batchv1.JobSpec {
	return batchv1.JobSpec{TTLSecondsAfterFinished: ttl, Template: corev1.PodTemplateSpec{Spec: once(spec)}}
}

// A Job with a time to live is removed as soon as it has ended, and its pod and the pod's claim
// with it: what the claim held and used stays.
func testJobWithTTL(t *testing.T, w *world) {
	n := w.namespace(t, "job-ttl")
	n.template("made", request("gpu", gpudriver.ClassGPU))
	n.job("job", ptr.To[int32](0), templateSpec("made", "sleep", "8s"))
	n.running(1)
	holds, _ := n.agree(1)
	n.running(0)
	n.agree(0)
	eventually(t, "the claim is removed", func() error {
		claims, err := n.client.ResourceV1().ResourceClaims(n.name).List(n.Context(), metav1.ListOptions{})
		if err == nil && len(claims.Items) > 0 {
			err = fmt.Errorf("%d claims are there", len(claims.Items))
		}
		return err
	})
	n.ended(holds[0].Claim, holds[0].Device, 7500*time.Millisecond) // its begin may be put between two answers
}

// One Job after the other makes a claim under the same name, each time of another device: the pods
// hold the device of their own, and each device is charged to the claim's name for its own time.
func testReusedClaimName(t *testing.T, w *world) {
	n := w.namespace(t, "reused-claim")
	indices := []int{4, 1, 4}
	for i, index := range indices {
		device := fmt.Sprintf("shared-%d", index)
		n.claim("nightly", memory(request("part", gpudriver.ClassShared), index, "10Gi"))
		n.job(fmt.Sprintf("run-%d", i), nil, podSpec("nightly"))
		n.running(1)
		if holds, _ := n.agree(1); holds[0].Device != device {
			t.Fatalf("run %d holds %s, want %s", i, holds[0].Device, device)
		}
		time.Sleep(timing)
		background := metav1.DeletePropagationBackground
		n.no(n.client.BatchV1().Jobs(n.name).Delete(n.Context(), fmt.Sprintf("run-%d", i),
			metav1.DeleteOptions{PropagationPolicy: &background}))
		n.no(n.client.ResourceV1().ResourceClaims(n.name).Delete(n.Context(), "nightly", metav1.DeleteOptions{}))
		n.running(0)
		n.agree(0)
		eventually(t, "the claim is removed", func() error {
			claims, err := n.client.ResourceV1().ResourceClaims(n.name).List(n.Context(), metav1.ListOptions{})
			if err == nil && len(claims.Items) > 0 {
				err = fmt.Errorf("%d claims are there", len(claims.Items))
			}
			return err
		})
	}
	n.heldFor("nightly")
}

// heldFor waits until each exporter says that a claim held each of its devices as long as its
// driver and its reservations say.
func (n *namespace) heldFor(claim string) {
	n.Helper()
	events, err := n.cluster.Journal()
	n.no(err)
	least, most := map[string]time.Duration{}, map[string]time.Duration{}
	runs := map[string]int{}
	for _, s := range heldBy(events, n.name, claim) {
		prepared, reserved := n.lasted(s)
		for _, d := range s.event.Devices {
			least[d.Device] += prepared
			most[d.Device] += reserved
			runs[d.Device]++
		}
	}
	if len(runs) == 0 {
		n.Fatalf("the driver has not seen claim %s", claim)
	}
	for _, e := range n.exporters {
		for device, count := range runs {
			tolerance := time.Duration(1+count) * timing
			eventually(n.T, e.name+": the time of all holds is counted", func() error {
				r, err := e.report()
				if err != nil {
					return err
				}
				row, got := holder(r.Claims, n.name, claim, device), time.Duration(0)
				for _, of := range r.Claims { // claims of one name, one after the other, have a row each
					if of.Namespace == n.name && of.Name == claim && of.Device == device {
						got += time.Duration(of.AllocatedSeconds * float64(time.Second))
					}
				}
				if got < least[device]-tolerance || got > most[device]+tolerance || row.Ended == nil {
					return fmt.Errorf("the claim held %s for %v in all, the driver says %v, reserved it was for %v; it ended at %v",
						device, got, least[device], most[device], row.Ended)
				}
				return nil
			})
		}
	}
}

// A CronJob's runs use one claim by its name, one after the other: the claim is allocated again for
// each, and holds nothing in between.
func testCronJob(t *testing.T, w *world) {
	const runs = 2
	n := w.namespace(t, "cron-job")
	n.claim("nightly", request("gpu", gpudriver.ClassGPU))
	_, err := n.client.BatchV1().CronJobs(n.name).Create(n.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly"},
		Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: jobSpec(ptr.To[int32](0), podSpec("nightly", "sleep", "5s"))},
		},
	}, metav1.CreateOptions{})
	n.no(err)
	for range runs {
		n.running(1)
		n.agree(1)
		n.running(0)
		n.agree(0)
	}
	n.no(n.client.BatchV1().CronJobs(n.name).Delete(n.Context(), "nightly", metav1.DeleteOptions{}))
	n.heldFor("nightly")
}

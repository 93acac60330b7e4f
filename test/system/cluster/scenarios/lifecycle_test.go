package scenarios

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

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

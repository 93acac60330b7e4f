package scenarios

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	watchapi "k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// lateGrace is the time for which exporters ignore an answer without any pods. It is longer than
// the delay of any exporter.
const lateGrace = 30 * time.Second

// lateAway is how long the kubelet is stopped.
const lateAway = 20 * time.Second

// TestLateKubelet delays everything that the exporters learn: the answers of the kubelet, for some
// exporters more than for others, the events of its Pods API, some of which are repeated or out of
// order, and what the API server sends. No other pods are on the node. Its last pods end: a hundred
// at the same time, and two while the kubelet restarts.
func TestLateKubelet(t *testing.T) {
	if !kubeletSince(podsAPISince) {
		t.Skip("the kubelet has no Pods API")
	}
	w := newCluster(t, cluster.Options{})
	w.late = []time.Duration{150 * time.Millisecond, 1200 * time.Millisecond}
	w.access.Clusters[w.access.CurrentContext].Server = "https://" + forwarded(t, lateServer(w.cluster.DialServer))
	w.common = append(w.common, "--kubelet.empty-grace="+lateGrace.String())
	gone := w.watchDeletions(t)
	w.startWays(t)
	for _, e := range w.exporters {
		deleted := &e.late.deleted
		if !e.podsAPI {
			deleted = gone
		}
		e.watch.guard(t, func(r *present.Report) error { return staysDeleted(r, deleted, timing+e.late.answer) })
	}
	t.Run("Claims", func(t *testing.T) {
		scenarios := map[string]func(*testing.T, *world){
			"Single":            testSingle,
			"Deployment":        testDeployment,
			"SharedClaim":       testSharedClaim,
			"Completed":         testCompleted,
			"DeletedGracefully": testDeletedGracefully,
			"ForceDeleted":      testForceDeleted,
			"Recreated":         testRecreated,
			"ForceRecreated":    testForceRecreated,
			"InitContainer":     testInitContainer,
		}
		w.runAll(t, scenarios, nil)
	})
	for _, phase := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"HundredPods", testHundredPods},
		{"LastPods", testLastPods},
	} {
		if !t.Failed() {
			t.Run(phase.name, func(t *testing.T) { phase.test(t, w) })
		}
	}
	w.finish(t)
}

// watchDeletions watches the API server and records when exporters learn that a pod was deleted.
func (w *world) watchDeletions(t *testing.T) *deletions {
	events := must.Get(w.client.CoreV1().Pods("").Watch(t.Context(),
		metav1.ListOptions{TimeoutSeconds: ptr.To(int64(time.Hour / time.Second))}))(t)
	var gone deletions
	var running sync.WaitGroup
	running.Go(func() {
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && e.Type == watchapi.Deleted {
				gone.add(pod.UID, time.Now().Add(lateEvent))
			}
		}
	})
	t.Cleanup(func() { events.Stop(); running.Wait() })
	return &gone
}

// staysDeleted checks that no pod holds a device longer than within after its deletion was passed
// on to the exporter.
func staysDeleted(r *present.Report, passedOn *deletions, within time.Duration) error {
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			for _, h := range s.Holds {
				if at, deleted := passedOn.of(types.UID(h.UID)); deleted && r.Time.Sub(at) > within {
					return fmt.Errorf("pod %s, %s, holds %s (%s), and was deleted", h.Pod, h.UID, r.Devices[i].Device, h.Reason)
				}
			}
		}
	}
	return nil
}

// testLastPods lets the last two pods of the node end while the kubelet is stopped. One is deleted
// before the kubelet is started again. The restarted kubelet reports that the other has ended, and
// nothing about the deleted one. Exporters without the API server keep the deleted one for the
// grace period.
func testLastPods(t *testing.T, w *world) {
	n := w.namespace(t, "last-pods")
	n.contradicts()
	names := []string{"ends", "deleted"}
	for _, name := range names {
		n.claim(name, request("gpu", gpudriver.ClassGPU))
		n.pod(name, once(podSpec(name, untilFinish()...)))
	}
	n.phase("ends", corev1.PodRunning)
	n.phase("deleted", corev1.PodRunning)
	n.agree(2)
	n.order(w.cluster.StopComponent, "kubelet")
	n.finish("")
	n.delete("deleted", ptr.To[int64](1))
	time.Sleep(lateAway)
	for _, e := range n.exporters {
		e.late.restart(t)
	}
	back := time.Now()
	n.order(w.cluster.StartComponent, "kubelet")
	n.phase("ends", corev1.PodSucceeded)
	n.gone("deleted")
	what := "nobody holds anything, but the deleted pod where no API server says so"
	n.each(what, n.exporters, snapshots(func(e *running, r *present.Report) error {
		if left := slices.DeleteFunc(holdsOfExporter(r, n.name), func(h hold) bool {
			return !e.server && h.Pod == "deleted"
		}); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	}))
	n.Logf("%v after the kubelet's start", time.Since(back).Round(time.Millisecond))
	n.agree(0)
	n.Logf("after %v nobody holds anything", time.Since(back).Round(time.Millisecond))
	n.sourceUp("podresources", 1)
	if left := slices.DeleteFunc(names, func(name string) bool { return len(n.takenBack(name)) == 1 }); len(left) > 0 {
		t.Errorf("the driver's journal does not say that %v gave their devices back", left)
	}
}

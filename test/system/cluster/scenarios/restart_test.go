package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// trouble is how long a component is away.
const trouble = 3 * time.Second

// holders makes a namespace with claims of each kind, pods that hold them, and one that holds a
// device plugin's device, and has every snapshot checked for them. They are six.
func (w *world) holders(t *testing.T, name string) (n *namespace, lift func()) {
	t.Helper()
	n = w.namespace(t, name)
	n.claim("whole", request("gpu", gpudriver.ClassGPU))
	n.claim("small", memory(request("part", gpudriver.ClassShared), 2, "10Gi"))
	n.claim("large", memory(request("part", gpudriver.ClassShared), 2, "20Gi"))
	n.template("made", request("gpu", gpudriver.ClassGPU))
	for _, claim := range []string{"whole", "small", "large"} {
		n.pod(claim, podSpec(claim))
	}
	n.pod("other", podSpec("whole"))
	n.pod("made", templateSpec("made"))
	n.pod("plugged", resourceSpec(deviceplugin.Whole, "1"))
	n.running(6)
	lift = n.keeps(6)
	return n, lift
}

// stillCharged checks that the holders are charged as before.
func (n *namespace) stillCharged() {
	n.Helper()
	n.charges("shared-2", claimPart("small", 1.0/3).without(0.5), claimPart("large", 2.0/3).without(0.5))
}

// sourceUp waits until every exporter says that a source is up, or down.
func (n *namespace) sourceUp(source string, want float64) {
	n.Helper()
	eventually(n.T, fmt.Sprintf("source %s is at %v", source, want), func() error {
		var wrong error
		for _, e := range n.exporters {
			if err := e.has("dra_exporter_source_up", want, "source", source); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
			}
		}
		return wrong
	})
}

// order stops a component or, if it was stopped, starts it.
func (n *namespace) order(verb func(string) error, component string) {
	n.Helper()
	n.no(verb(component))
	if component == "kubelet" || component == "driver" {
		n.ownership.switched(component)
	}
}

// testRestarts restarts one component after the other. All the while, and whatever is away, those
// who hold devices do so on every snapshot, and are charged.
func testRestarts(t *testing.T, w *world) {
	n, lift := w.holders(t, "restarts")
	for _, restart := range []struct {
		name string
		test func(*namespace)
	}{
		{"Kubelet", testKubeletRestart},
		{"Driver", testDriverRestart},
		// What makes pods comes before the API server is away.
		{"ServerHangs", testServerHangs},
		{"ServerAway", testServerAway},
		{"KubeletWithoutServer", testKubeletRestartWithoutServer},
	} {
		if t.Failed() {
			break
		}
		t.Run(restart.name, func(t *testing.T) { restart.test(&namespace{T: t, world: w, name: n.name}) })
	}
	// Who was there while the API server was not needs a minute until it makes pods, or publishes
	// devices, again.
	for _, component := range []string{"kube-controller-manager", "kube-scheduler", "driver"} {
		n.order(n.cluster.StopComponent, component)
		n.order(n.cluster.StartComponent, component)
	}
	lift()
	n.clear()
}

// A kubelet that is killed and comes back.
func testKubeletRestart(n *namespace) {
	n.order(n.cluster.StopComponent, "kubelet")
	n.sourceUp("podresources", 0)
	n.stillCharged() // Which takes some seconds.
	n.order(n.cluster.StartComponent, "kubelet")
	n.sourceUp("podresources", 1)
	n.stillCharged()
	n.agree(6)
}

// A kubelet that comes back while the API server is away answers with nothing, for as long as that
// lasts.
func testKubeletRestartWithoutServer(n *namespace) {
	n.order(n.cluster.StopComponent, "kube-apiserver")
	n.order(n.cluster.StopComponent, "kubelet")
	n.order(n.cluster.StartComponent, "kubelet")
	eventually(n.T, "the empty answer is not believed", func() error {
		var wrong error
		for _, e := range n.exporters {
			v, err := e.value("dra_exporter_source_errors_total", "source", "podresources", "reason", "empty_disbelieved")
			if err == nil && v < 1 {
				err = errors.New("it was not counted")
			}
			if err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
			}
		}
		return wrong
	})
	time.Sleep(trouble)
	n.stillCharged()
	n.order(n.cluster.StartComponent, "kube-apiserver")
	n.sourceUp("podresources", 1)
	n.stillCharged()
	n.agree(6)
}

// A pod ends while the API server is away.
func testServerAway(n *namespace) {
	n.endsWithoutServer("away", n.cluster.StopComponent, n.cluster.StartComponent)
}

// A pod ends while the API server answers nothing.
func testServerHangs(n *namespace) {
	n.endsWithoutServer("hangs", n.cluster.PauseComponent, n.cluster.ResumeComponent)
}

// endsWithoutServer has a pod end while the API server can't say so: every exporter ends the pod's
// hold when its driver takes the device back, by the driver's journal, and nobody holds the device
// again when the server is back. Those who hold other devices go on to do so.
func (n *namespace) endsWithoutServer(name string, takeAway, bringBack func(string) error) {
	n.Helper()
	const lasts = 20 * time.Second // long enough for all exporters to see it
	o := n.namespace(n.T, "server-"+name)
	o.claim("job", request("gpu", gpudriver.ClassGPU))
	o.pod("job", once(podSpec("job", "sleep", lasts.String())))
	o.phase("job", corev1.PodRunning)
	holds, _ := o.agree(1)
	n.order(takeAway, "kube-apiserver")
	if all := o.takenBack("job"); len(all) > 0 {
		n.Fatalf("the pod ended before the API server was away: %v", all)
	}
	begin, end := time.Now(), time.Time{}
	eventually(n.T, "the driver takes the device back", func() error {
		all := o.takenBack("job")
		if len(all) == 0 {
			return errors.New("the journal does not say so")
		}
		end = all[0].Time
		n.ownership.truth.Ended(all[0].UID, end)
		return nil
	})
	over := func(e *running, r *web.Report) error {
		if got := holdsOfExporter(r, o.name); len(got) > 0 {
			return fmt.Errorf("%s: %v hold devices", e.name, got)
		}
		row := holder(r.Claims, o.name, "job", holds[0].Device)
		if row.Ended == nil || row.Ended.Sub(end).Abs() > 2*timing {
			return fmt.Errorf("%s: the claim has ended at %v, want %v", e.name, row.Ended, end)
		}
		return nil
	}
	eventually(n.T, "every exporter ends the hold", func() error {
		var wrong error
		for _, e := range n.exporters {
			r, err := e.report()
			if err != nil {
				return err
			}
			wrong = errors.Join(wrong, over(e, r))
		}
		return wrong
	})
	n.Logf("the server was away for %v when the driver took the device back, and %v later all exporters knew",
		end.Sub(begin).Round(time.Millisecond), time.Since(end).Round(time.Millisecond))
	var lifts []func()
	for _, e := range n.exporters {
		lifts = append(lifts, e.watch.guard(n.T, func(r *web.Report) error { return over(e, r) }))
	}
	n.stillCharged()
	n.order(bringBack, "kube-apiserver")
	begin = time.Now()
	o.phase("job", corev1.PodSucceeded)
	n.Logf("%v after the server was back, it knew that the pod has ended", time.Since(begin).Round(time.Millisecond))
	o.agree(0)
	for _, lift := range lifts {
		lift()
	}
	n.agree(6)
}

// takenBack returns the driver's journal of the unprepared devices of a claim.
func (n *namespace) takenBack(claim string) []plugin.Event {
	n.Helper()
	events, err := n.cluster.Journal()
	n.no(err)
	return slices.DeleteFunc(events, func(e plugin.Event) bool {
		return e.Prepared || e.Namespace != n.name || e.Name != claim
	})
}

// A driver that is killed and comes back changes nothing for who holds its devices.
func testDriverRestart(n *namespace) {
	n.order(n.cluster.StopComponent, "driver")
	time.Sleep(trouble)
	n.stillCharged()
	n.order(n.cluster.StartComponent, "driver")
	time.Sleep(trouble)
	n.stillCharged()
}

// A hundred pods share four claims, and all go at once.
func testHundredPods(t *testing.T, w *world) {
	const claims, pods = 4, 100
	n := w.namespace(t, "hundred")
	for i := range claims {
		n.claim(fmt.Sprintf("claim-%d", i), memory(request("part", gpudriver.ClassShared), 2, "10Gi"))
	}
	begin := time.Now()
	for i := range pods {
		n.pod(fmt.Sprintf("pod-%d", i), podSpec(fmt.Sprintf("claim-%d", i%claims)))
	}
	n.running(pods)
	t.Logf("%d pods ran after %v", pods, time.Since(begin).Round(time.Millisecond))
	n.agree(pods)
	n.charges("shared-2", claimPart("claim-0", 0.25), podPart("pod-0", 0.01), podPart("pod-99", 0.01))
	begin = time.Now()
	n.clear()
	t.Logf("they were gone after %v", time.Since(begin).Round(time.Millisecond))
}

// testDevices checks what is said of all devices, held or not.
func testDevices(t *testing.T, w *world) {
	r, err := w.exporter.report()
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	for i := range r.Devices {
		if r.Devices[i].Driver == gpudriver.Name {
			listed++
		}
	}
	if listed != len(w.vendor.gpus) {
		t.Errorf("%d devices of the driver, want the %d of the slices", listed, len(w.vendor.gpus))
	}
	for _, g := range w.vendor.gpus {
		d := deviceOf(r, g.name)
		if d.Up == nil || !*d.Up || d.UUID != g.uuid {
			t.Errorf("%s: up %v, UUID %q; want up and %q", g.name, d.Up, d.UUID, g.uuid)
		}
	}
	taint, err := w.exporter.value("dra_device_tainted", "device", gpudriver.Worn, "key", gpudriver.Taint, "value",
		"true", "effect", "NoSchedule")
	if err != nil || taint != 1 {
		t.Errorf("the taint of worn-0: %v, %v; want 1", taint, err)
	}
	// Each option of a GPU that is cut has its own, though they can not be had at once.
	for device, gib := range map[string]float64{
		"cut-0": 80, "cut-0-partition-0": 20, "cut-0-partition-3": 20,
		"shared-0": 80,
	} {
		if err := w.exporter.has("dra_device_capacity", gib*(1<<30), "device", device, "resource", "memory"); err != nil {
			t.Error(err)
		}
	}
	if !deviceOf(r, "shared-0").Multiple || deviceOf(r, "gpu-0").Multiple {
		t.Error("shared-0 alone of shared-0 and gpu-0 allows multiple allocations")
	}
}

package scenarios

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
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

// order stops or starts a component.
func (n *namespace) order(verb func(string) error, component string) {
	n.Helper()
	n.no(verb(component))
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
		{"KubeletWithoutServer", testKubeletRestartWithoutServer},
		{"Driver", testDriverRestart},
	} {
		if t.Failed() {
			break
		}
		t.Run(restart.name, func(t *testing.T) { restart.test(&namespace{T: t, world: w, name: n.name}) })
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

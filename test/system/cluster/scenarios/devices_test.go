package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// The hardware of a device is replaced while a pod holds the device. The counter of the new
// hardware starts at another value. The claim must be charged what was used while it held the
// device, and nothing of what the new hardware counted before.
func testReplacedDevice(t *testing.T, w *world) {
	n := w.namespace(t, "replaced-device")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podSpec("one"))
	n.running(1)
	begin := time.Now()
	holds, _ := n.agree(1)
	device := holds[0].Device
	n.charges(device, claimPart("one", 1))
	index, err := strconv.Atoi(strings.TrimPrefix(device, "gpu-"))
	n.no(err)
	w.vendor.replace(device, gpudriver.Replacement(index))
	n.no(w.cluster.SetReplaced(device))
	eventually(t, "the other hardware is known", func() error {
		var wrong error
		for _, e := range n.informed() {
			r, err := e.report()
			if err != nil {
				return err
			}
			if d := deviceOf(r, device); d.UUID != gpudriver.Replacement(index) {
				wrong = errors.Join(wrong, fmt.Errorf("%s: the UUID of %s is %q", e.name, device, d.UUID))
			}
		}
		return wrong
	})
	n.charges(device, claimPart("one", 1), podPart("user", 1))
	for _, e := range n.exporters {
		r, err := e.report()
		n.no(err)
		most := maxWatts * (time.Since(begin) + 2*timing).Seconds()
		if got := energy(r, "claim", n.name, "one", device); got > most {
			t.Errorf("%s: the claim was charged %.0f J, and its device can't have used more than %.0f J", e.name, got, most)
		}
	}
	n.remove("user", 1)
	n.agree(0)
}

// A DeviceTaintRule taints a device without changing a ResourceSlice.
func testTaintRule(t *testing.T, w *world) {
	const key, value = "example.com/maintenance", "planned"
	device := fmt.Sprintf("gpu-%d", gpudriver.GPUs-1)
	rules := w.client.ResourceV1().DeviceTaintRules()
	n := &namespace{T: t, world: w}
	_, err := rules.Create(t.Context(), &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "maintenance"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{
				Driver: ptr.To(gpudriver.Name), Pool: ptr.To(node.Name), Device: &device,
			},
			Taint: resourceapi.DeviceTaint{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}, metav1.CreateOptions{})
	n.no(err)
	n.tainted(1, "device", device, "key", key, "value", value, "effect", "NoSchedule")
	n.no(rules.Delete(t.Context(), "maintenance", metav1.DeleteOptions{}))
	n.tainted(0, "key", key)
}

// tainted waits until each exporter that uses the API server has count series of taints with these
// labels.
func (n *namespace) tainted(count int, labels ...string) {
	n.Helper()
	eventually(n.T, fmt.Sprintf("%d taints are %q", count, labels), func() error {
		var wrong error
		for _, e := range n.exporters {
			if e.noServer {
				continue
			}
			got, err := e.count("dra_device_tainted", labels...)
			if err != nil {
				return err
			}
			if got != count {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %d series", e.name, got))
			}
		}
		return wrong
	})
}

// testNotPrepared schedules a pod while the driver is stopped. The claim is allocated and its
// devices are not free, although nothing is prepared and the kubelet lists nothing.
func testNotPrepared(t *testing.T, w *world) {
	n := w.namespace(t, "not-prepared")
	n.order(w.cluster.StopComponent, "driver")
	start := sync.OnceFunc(func() { n.order(w.cluster.StartComponent, "driver") })
	t.Cleanup(start)
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podSpec("one"))
	var device string
	eventually(t, "the pod is scheduled", func() error {
		claim, err := w.client.ResourceV1().ResourceClaims(n.name).Get(n.Context(), "one", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 {
			return errors.New("its claim is not allocated")
		}
		device = claim.Status.Allocation.Devices.Results[0].Device
		return nil
	})
	n.state(device, "allocated")
	n.unresolved()
	start()
	n.running(1)
	n.agree(1)
	n.state(device, "prepared")
	n.remove("user", 1)
	n.agree(0)
}

// state waits until each exporter that knows claims and pods shows that claim "one" has a device in
// this state.
func (n *namespace) state(device, state string) {
	n.Helper()
	eventually(n.T, "the claim's device is "+state, func() error {
		var wrong error
		for _, e := range n.objects() {
			err := e.has("dra_claim_device_info", 1, "namespace", n.name, "resourceclaim_name", "one", "device", device,
				"state", state)
			if err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
			}
		}
		return wrong
	})
}

// testConflict changes the allocation of a running pod's claim at the API server, so that it
// differs from the device that the kubelet prepared. The exporter must show both: the pod's
// containers have the prepared one, and the scheduler has allocated the other one. It must count a
// conflict, and name both. Exporters that know no claims can only use what the kubelet reports.
func testConflict(t *testing.T, w *world) {
	n := w.namespace(t, "conflict")
	n.contradicts()
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podSpec("one"))
	n.running(1)
	holds, _ := n.agree(1)
	n.reallocate("one", n.free())
	eventually(t, "both devices count", func() error {
		want, err := n.holdsOfCluster(n.Context(), n.name)
		if err != nil {
			return err
		}
		if want[0].Device == holds[0].Device {
			return fmt.Errorf("the API server still says %s", want[0].Device)
		}
		given := slices.Clone(holds) // the claim does not say for which request
		given[0].Request = ""
		var wrong error
		for _, e := range n.exporters {
			expected := append(e.expect(want), e.expect(given)...)
			if e.noClaims {
				expected = e.expect(holds)
			}
			slices.SortFunc(expected, compareHolds)
			r, err := e.report()
			if err != nil {
				return err
			}
			if diff := gocmp.Diff(expected, holdsOfExporter(r, n.name)); diff != "" {
				wrong = errors.Join(wrong, fmt.Errorf("%s: who holds what (-cluster +exporter):\n%s", e.name, diff))
			}
			count, err := e.count("dra_exporter_conflicts")
			if err != nil {
				return err
			}
			if count == 0 && !e.noClaims {
				wrong = errors.Join(wrong, fmt.Errorf("%s: no conflict is counted", e.name))
			}
		}
		return wrong
	})
	n.remove("user", 1)
	n.agree(0)
}

// free waits for a GPU that is not allocated to any claim, and returns it. Other scenarios use GPUs
// too.
func (n *namespace) free() string {
	n.Helper()
	var free string
	eventually(n.T, "a GPU is free", func() error {
		claims, err := n.client.ResourceV1().ResourceClaims("").List(n.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		taken := map[string]bool{}
		for i := range claims.Items {
			if a := claims.Items[i].Status.Allocation; a != nil {
				for _, r := range a.Devices.Results {
					taken[r.Device] = true
				}
			}
		}
		for i := range gpudriver.GPUs {
			if device := fmt.Sprintf("gpu-%d", i); !taken[device] {
				free = device
				return nil
			}
		}
		return fmt.Errorf("all %d are taken", gpudriver.GPUs)
	})
	return free
}

// reallocate changes the device of a claim and keeps the pods that it is reserved for. The API
// server requires that the reservations and the allocation are removed first.
func (n *namespace) reallocate(name, device string) {
	n.Helper()
	claims := n.client.ResourceV1().ResourceClaims(n.name)
	claim, err := claims.Get(n.Context(), name, metav1.GetOptions{})
	n.no(err)
	allocation, reserved := claim.Status.Allocation.DeepCopy(), slices.Clone(claim.Status.ReservedFor)
	claim.Status.Allocation, claim.Status.ReservedFor = nil, nil
	claim, err = claims.UpdateStatus(n.Context(), claim, metav1.UpdateOptions{})
	n.no(err)
	allocation.Devices.Results[0].Device = device
	claim.Status.Allocation, claim.Status.ReservedFor = allocation, reserved
	_, err = claims.UpdateStatus(n.Context(), claim, metav1.UpdateOptions{})
	n.no(err)
}

// count returns the number of series of a family that have these labels and a value other than 0.
// labels are alternating names and values.
func (p *program) count(name string, labels ...string) (int, error) {
	families, err := p.families()
	if err != nil {
		return 0, err
	}
	found := 0
	for _, m := range families[name].GetMetric() {
		if matches(m, labels) && m.GetGauge().GetValue()+m.GetCounter().GetValue() != 0 { // One of them is nil.
			found++
		}
	}
	return found, nil
}

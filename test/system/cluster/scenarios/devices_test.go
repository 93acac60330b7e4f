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
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// The hardware of a device is replaced while a pod holds the device. The counter of the new
// hardware starts at another value. The claim must be charged what was used while it held the
// device, and nothing of what the new hardware counted before.
func testReplacedDevice(t *testing.T, w *world) {
	n := w.namespace(t, "replaced-device")
	n.user(podSpec("one"))
	begin := time.Now()
	holds, _ := n.agree(1)
	device := holds[0].Device
	n.charges(device, claimPart("one", 1))
	index := must.Get(strconv.Atoi(strings.TrimPrefix(device, "gpu-")))(n)
	w.vendor.replace(device, gpudriver.Replacement(index))
	n.no(w.cluster.SetReplaced(device))
	n.each("the other hardware is known", n.informed(), snapshots(func(_ *running, r *present.Report) error {
		if d := deviceOf(r, device); d.UUID != gpudriver.Replacement(index) {
			return fmt.Errorf("the UUID of %s is %q", device, d.UUID)
		}
		return nil
	}))
	n.charges(device, claimPart("one", 1), podPart("user", 1))
	for _, e := range n.exporters {
		r := must.Get(e.report())(n)
		most := maxWatts * (time.Since(begin) + 2*timing).Seconds()
		if got := energy(r, "claim", n.name, "one", device); got > most {
			t.Errorf("%s: the claim was charged %.0f J, and its device can't have used more than %.0f J", e.name, got, most)
		}
	}
	n.clear()
}

// A DeviceTaintRule taints a device without changing a ResourceSlice.
func testTaintRule(t *testing.T, w *world) {
	const key, value = "example.com/maintenance", "planned"
	device := fmt.Sprintf("gpu-%d", gpudriver.GPUs-1)
	n := &namespace{T: t, world: w, name: "maintenance"}
	taint := resourceapi.DeviceTaint{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	undo := n.taint(device, taint)
	n.tainted(1, "device", device, "key", key, "value", value, "effect", "NoSchedule")
	undo()
	n.tainted(0, "key", key)
}

// tainted waits until each exporter that uses the API server has count series of taints with these
// labels.
func (n *namespace) tainted(count int, labels ...string) {
	n.each(fmt.Sprintf("%d taints are %q", count, labels), n.withServer(), func(e *running) error {
		got, err := e.count("dra_device_tainted", labels...)
		if err == nil && got != count {
			err = fmt.Errorf("%d series", got)
		}
		return err
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
	n.podIs("user", "is scheduled", func(*corev1.Pod) bool {
		claim := n.getClaim("one").Status
		return claim.Allocation != nil && len(claim.ReservedFor) > 0
	})
	device := n.getClaim("one").Status.Allocation.Devices.Results[0].Device
	n.state(device, "allocated")
	n.unresolved()
	start()
	n.running(1)
	n.agree(1)
	n.state(device, "prepared")
	n.clear()
}

// state waits until each exporter that knows claims and pods shows that claim "one" has a device in
// this state.
func (n *namespace) state(device, state string) {
	n.each("the claim's device is "+state, n.objects(), func(e *running) error {
		return e.has("dra_claim_device_info", 1, "namespace", n.name, "resourceclaim_name", "one", "device", device,
			"state", state)
	})
}

// testConflict changes the allocation of a running pod's claim at the API server, so that it
// differs from the device that the kubelet prepared. The exporter must show both: the pod's
// containers have the prepared one, and the scheduler has allocated the other one. It must count a
// conflict, and name both. Exporters that know no claims can only use what the kubelet reports.
func testConflict(t *testing.T, w *world) {
	n := w.namespace(t, "conflict")
	n.contradicts()
	n.user(podSpec("one"))
	holds, _ := n.agree(1)
	n.reallocate("one", n.free())
	eventually(t, "both devices count", func() error {
		want, err := n.holdsOfCluster(n.Context(), n.name)
		if err == nil && want[0].Device == holds[0].Device {
			err = fmt.Errorf("the API server still says %s", want[0].Device)
		}
		if err != nil {
			return err
		}
		given := slices.Clone(holds) // the claim does not say for which request
		given[0].Request = ""
		return ofAll(n.exporters, snapshots(func(e *running, r *present.Report) error {
			expected := append(e.expect(want), e.expect(given)...)
			if e.noClaims {
				expected = e.expect(holds)
			}
			slices.SortFunc(expected, compareHolds)
			if diff := gocmp.Diff(expected, holdsOfExporter(r, n.name)); diff != "" {
				return fmt.Errorf("who holds what (-cluster +exporter):\n%s", diff)
			}
			count, err := e.count("dra_exporter_conflicts")
			if err == nil && count == 0 && !e.noClaims {
				err = errors.New("no conflict is counted")
			}
			return err
		}))
	})
	n.clear()
}

// free waits for a GPU that is not allocated to any claim, and returns it. Other scenarios use GPUs
// too.
func (n *namespace) free() string {
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
	update := func(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		return must.Get(n.claims().UpdateStatus(n.Context(), claim, metav1.UpdateOptions{}))(n)
	}
	claim := n.getClaim(name)
	allocation, reserved := claim.Status.Allocation.DeepCopy(), slices.Clone(claim.Status.ReservedFor)
	claim.Status.Allocation, claim.Status.ReservedFor = nil, nil
	claim = update(claim)
	allocation.Devices.Results[0].Device = device
	claim.Status.Allocation, claim.Status.ReservedFor = allocation, reserved
	update(claim)
}

// count returns the number of series of a family that have these labels and a value other than 0.
// labels are alternating names and values.
func (p *program) count(name string, labels ...string) (int, error) {
	families, err := p.families()
	if err != nil {
		return 0, err
	}
	rows := slices.DeleteFunc(families.Rows(name, labels...), func(m *dto.Metric) bool { return live.ValueOf(m) == 0 })
	return len(rows), nil
}

// On a node that migrates to DRA, a device plugin gives GPUs to pods. These pods hold their devices
// and are charged, but no claim is. A GPU that the DRA driver also publishes is shown as one
// device, and so are two time slices of one GPU. GPUs that no pod holds are known, since the
// kubelet lists what plugins offer (GetAllocatableResources), also after pods have held them.
func testDevicePlugin(t *testing.T, w *world) {
	n := w.namespace(t, "device-plugin")
	n.offered()
	n.pod("whole", resourceSpec(deviceplugin.Whole, "2"))
	n.pod("slice-a", resourceSpec(deviceplugin.Shared, "1"))
	n.pod("slice-b", resourceSpec(deviceplugin.Shared, "1"))
	n.running(3)
	holds, r := n.agree(4)
	shares := map[string]string{}
	for _, h := range holds {
		shares[h.Device] += h.Share
	}
	s := shares[deviceplugin.SlicedUUID]
	expect.That(t, len(shares) == 3 && (s == "01" || s == "10"), "the shares of the devices are %q", shares)
	for id, want := range map[string]string{
		gpudriver.WornUUID():      gpudriver.Name,
		deviceplugin.UnlistedUUID: deviceplugin.Whole, deviceplugin.SlicedUUID: deviceplugin.Shared,
	} {
		var drivers []string
		for i := range r.Devices {
			if r.Devices[i].UUID == id {
				drivers = append(drivers, r.Devices[i].Driver)
			}
		}
		expect.That(t, len(drivers) == 1 && drivers[0] == want, "GPU %s is a device of %q, want %s alone", id, drivers, want)
	}
	worn := &held{hold: hold{Device: gpudriver.Worn}}
	n.chargesBy(n.exporters, func(e *running) string { return e.device(worn) }, podPart("whole", 1))
	n.charges(deviceplugin.UnlistedUUID, podPart("whole", 1))
	n.charges(deviceplugin.SlicedUUID, podPart("slice-a", 0.5), podPart("slice-b", 0.5))
	n.healthy(gpudriver.Worn, gpudriver.WornUUID(), "healthy")
	n.noClaims()
	n.offered(deviceplugin.UnlistedUUID, deviceplugin.SlicedUUID)
	n.remove("whole", 1)
	n.agree(2)
	n.offered(deviceplugin.SlicedUUID)
	n.clear()
	n.noClaims()
	n.offered()
}

// offered waits until each exporter shows each GPU that only a device plugin offers, once, and that
// somebody holds exactly the given ones.
func (n *namespace) offered(heldUUIDs ...string) {
	n.each("what device plugins offer is known", n.exporters, snapshots(func(_ *running, r *present.Report) error {
		for _, uuid := range []string{deviceplugin.UnlistedUUID, deviceplugin.SlicedUUID, deviceplugin.SpareUUID} {
			count, shares := 0, 0
			for i := range r.Devices {
				if r.Devices[i].UUID == uuid {
					count, shares = count+1, shares+len(r.Devices[i].Shares)
				}
			}
			if held := slices.Contains(heldUUIDs, uuid); count != 1 || held != (shares > 0) {
				return fmt.Errorf("%d devices are GPU %s, with %d shares; want one, held: %v", count, uuid, shares, held)
			}
		}
		return nil
	}))
}

// noClaims checks that the exporters show no claim in the namespace, not even one without a name.
func (n *namespace) noClaims() {
	n.Helper()
	for _, p := range n.exporters {
		r := must.Get(p.report())(n)
		for i := range r.Claims {
			if c := &r.Claims[i]; c.Namespace == n.name || c.Name == "" {
				n.Errorf("the claim %s/%s has %s, want none", c.Namespace, c.Name, c.Device)
			}
		}
	}
}

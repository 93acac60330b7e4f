package scenarios

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

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

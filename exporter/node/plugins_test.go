package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	devices "github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A device plugin's device gets the identity of the DRA device of the same hardware as soon as that
// is known, and keeps it. Until then it has its own identity, which is kept for a while after its
// holder ends. The arguments are not changed.
func TestPluginDevicesIdentified(t *testing.T) {
	gpu := driver.ID{Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-0"}
	own := driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-1"}
	listed := []podresources.Allocation{
		{Claim: podresources.Claim{
			Namespace: "ns", Name: "c",
		}, Device: driver.ID{Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-7"}},
		{Claim: podresources.Claim{Namespace: "ns"}, Device: driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-1::4"}},
	}
	inventory := driver.Inventory{gpu: {Hardware: driver.Hardware{UUID: "GPU-1"}}}
	now := time.Unix(1_700_000_000, 0)
	p := pluginDevices{reader: driver.NewReader[devices.PluginDevice]("find an interface", nil)}
	identified := func(at time.Duration, allocations []podresources.Allocation, all driver.Inventory) (driver.ID, int) {
		t.Helper()
		before := cmp.Diff(nil, allocations)
		out, more := p.identify(allocations, nil, all, now.Add(at))
		expect.That(t, cmp.Diff(nil, allocations) == before && len(inventory) == 1, "the arguments have changed")
		if len(out) < 2 {
			return driver.ID{}, len(more)
		}
		expect.That(t, out[0].Device == listed[0].Device && out[1].ShareID == "4", "the allocations are %+v", out)
		return out[1].Device, len(more)
	}
	if id, n := identified(0, listed, nil); id != own || n != 1 {
		t.Errorf("without inventory it is %v among %d devices", id, n)
	}
	if id, n := identified(time.Second, listed, inventory); id != gpu || n != 1 {
		t.Errorf("with an inventory it is %v among %d devices", id, n)
	}
	if id, n := identified(2*time.Second, listed, nil); id != gpu || n != 1 {
		t.Errorf("while its slice is away it is %v among %d devices", id, n)
	}
	if _, more := p.identify(listed, nil, nil, now.Add(2*time.Second)); more[gpu].UUID != "GPU-1" {
		t.Errorf("while its slice is away it is %+v", more)
	}
	if _, n := identified(2*time.Second, nil, nil); n != 1 {
		t.Errorf("%d devices just after the end of the holder", n)
	}
	if _, n := identified(rememberHeld+3*time.Second, nil, nil); n != 0 {
		t.Errorf("%d devices long after it", n)
	}
	if out, more := p.identify(listed[:1], nil, inventory, now); len(out) != 1 || len(more) != 1 {
		t.Errorf("without device plugins: %v, %v", out, more)
	}
}

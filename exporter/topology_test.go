package exporter

import (
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// fakePaths are the paths of devices on two NUMA nodes, and the requested addresses.
type fakePaths struct {
	asked [][]string
	hangs bool
}

func (p *fakePaths) PCIPaths(addresses []string) (map[string]driver.PCIPath, bool) {
	p.asked = append(p.asked, addresses)
	if p.hangs {
		return nil, false
	}
	return map[string]driver.PCIPath{"0000:01:00.0": {NUMANode: "0"}, "0000:02:00.0": {NUMANode: "1"}}, true
}

// TestTopologyPerChange checks that topologies are computed when the allocations or the hardware
// change, or not all paths could be read, and not at each tick.
func TestTopologyPerChange(t *testing.T) {
	paths := &fakePaths{}
	pods := topologies{paths: paths}
	pod := podresources.Pod{Namespace: "a", Name: "pod"}
	devices := func(holders ...string) []join.Device {
		var out []join.Device
		for i, holder := range holders {
			d := join.Device{ID: driver.ID{Driver: "x", Device: string(rune('a' + i))}}
			d.Entry.PCI = "0000:0" + string(rune('1'+i)) + ":00.0"
			if holder != "" {
				d.Shares = []join.Share{{Pods: []podresources.Pod{{Namespace: "a", Name: holder}}}}
			}
			out = append(out, d)
		}
		return out
	}
	now := time.Unix(0, 0)
	var allocations []podresources.Allocation
	check := func(what string, devices []join.Device, want join.Proximity, asked int) {
		now = now.Add(time.Second)
		if asked > len(paths.asked) && what != "asked again" {
			allocations = make([]podresources.Allocation, 1)
		}
		expect.Is(t, pods.update(allocations, devices, now)[pod].Farthest, want, "%s", what)
		expect.That(t, len(paths.asked) == asked, "%s: computed %d times, want %d", what, len(paths.asked), asked)
	}
	check("one device", devices("pod", ""), "", 1)
	check("the same", devices("pod", ""), "", 1)
	check("two devices", devices("pod", "pod"), join.Across, 2)
	for range 3 {
		check("the same", devices("pod", "pod"), join.Across, 2)
	}
	if want := []string{"0000:01:00.0", "0000:02:00.0"}; !slices.Equal(paths.asked[1], want) {
		t.Errorf("asked for %v, want %v", paths.asked[1], want)
	}
	admin := devices("pod", "pod")
	admin[1].Shares[0].Admin = true
	check("the second is only observed", admin, "", 3)
	told := devices("pod", "pod")
	told[1].Entry.NUMANode = "0"
	check("a driver tells the node", told, join.SameNUMANode, 4)
	check("the pod ended", devices("", "other"), "", 5)

	paths.hangs = true
	check("sysfs hangs", devices("pod", "pod"), "", 6)
	check("too early to ask again", devices("pod", "pod"), "", 6)
	now, paths.hangs = now.Add(topologyEvery), false
	check("asked again", devices("pod", "pod"), join.Across, 7)
	check("known", devices("pod", "pod"), join.Across, 7)
	now = now.Add(topologyEvery)
	check("the hardware is the same", devices("pod", "pod"), join.Across, 7)
	check("too early to look at the hardware", told, join.Across, 7)
	now = now.Add(topologyEvery)
	check("asked again", told, join.SameNUMANode, 8)
}

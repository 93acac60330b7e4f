package node

import (
	"maps"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Holders returns the pods that hold a device for which asked is true, with their processes. Admin
// access does not count.
func (n *Node) Holders(asked func(*driver.Hardware) bool) []driver.PodProcesses {
	last := n.last()
	devices := held(last.allocations, last.inventory, asked)
	uids := slices.Sorted(maps.Keys(devices))
	members := n.members.Of(uids)
	var out []driver.PodProcesses
	for _, uid := range uids {
		out = append(out, driver.PodProcesses{Devices: devices[uid], PIDs: members[uid]})
	}
	return out
}

// held returns the devices for which asked is true, by the UIDs of the pods that hold them. It
// omits admin access, and devices of guests, which have no processes on the host.
func held(
	allocations []podresources.Allocation, inventory driver.Inventory, asked func(*driver.Hardware) bool,
) map[string][]driver.Hardware {
	out := map[string][]driver.Hardware{}
	for i := range allocations {
		a := &allocations[i]
		hardware := inventory[a.Device].Hardware
		if a.Admin || !hardware.Kind.Measurable() || !asked(&hardware) {
			continue
		}
		for _, uid := range podsOf(a.Holders) {
			out[uid] = append(out[uid], hardware)
		}
	}
	return out
}

package node

import (
	"maps"
	"slices"
	"sync"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// processes are those of the pods that hold devices, for the sources that read what processes do.
// They are safe for concurrent use.
type processes struct {
	members *podresources.PodMembers
	cgroup  func(uid string) string // the folder of a pod's cgroup

	mu          sync.Mutex
	allocations []podresources.Allocation
	inventory   driver.Inventory
}

// update sets the present holders. The arguments are kept, and not changed.
func (h *processes) update(allocations []podresources.Allocation, inventory driver.Inventory) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.allocations, h.inventory = allocations, inventory
}

// of returns the pods that hold a device for which asked is true, by UID, with their processes.
func (h *processes) of(asked func(*driver.Hardware) bool) []driver.PodProcesses {
	h.mu.Lock()
	allocations, inventory := h.allocations, h.inventory
	h.mu.Unlock()
	devices := held(allocations, inventory, asked)
	uids := slices.Sorted(maps.Keys(devices))
	members := h.members.Of(uids)
	var out []driver.PodProcesses
	for _, uid := range uids {
		out = append(out, driver.PodProcesses{Devices: devices[uid], Cgroup: h.cgroup(uid), PIDs: members[uid]})
	}
	return out
}

// held returns the devices that pods hold, by the pods' UIDs, of those for which asked is true.
// Administrators' access is no use, and a guest's devices have no processes of the host.
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

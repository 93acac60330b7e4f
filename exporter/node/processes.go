package node

import (
	"maps"
	"slices"
	"sync"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// processes are the processes of pods that hold devices, for sources that read processes. It is
// safe for concurrent use.
type processes struct {
	members *podresources.PodMembers

	mu          sync.Mutex
	allocations []podresources.Allocation
	inventory   driver.Inventory
}

// update sets the present holders. It keeps its arguments, which must not be changed.
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

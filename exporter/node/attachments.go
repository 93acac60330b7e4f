package node

import (
	"maps"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// attachment is a device and the pods that may have it as an interface.
type attachment struct {
	driver.Attachment
	pods []string // UIDs, sorted
}

// Attachments returns the devices that are network interfaces of pods, with the first process of
// each of these pods.
func (n *Node) Attachments() []driver.Attachment {
	last := n.last()
	list := attached(last.allocations, last.inventory)
	uids := map[string]bool{}
	for i := range list {
		for _, uid := range list[i].pods {
			uids[uid] = true
		}
	}
	processes := n.first.Of(slices.Sorted(maps.Keys(uids)))
	var out []driver.Attachment
	for _, a := range list {
		for _, uid := range a.pods {
			if pid, ok := processes[uid]; ok {
				a.PIDs = append(a.PIDs, pid)
			}
		}
		if len(a.PIDs) > 0 {
			out = append(out, a.Attachment)
		}
	}
	return out
}

// attached returns the devices that may be network interfaces of pods: devices whose driver reports
// the interface's name in the claim's status (KEP-4817); interfaces of the host, and RDMA devices,
// both of which keep their names.
func attached(allocations []podresources.Allocation, inventory driver.Inventory) []attachment {
	var out []attachment
	for i := range allocations {
		a := &allocations[i]
		hardware := inventory[a.Device].Hardware
		name := hardware.NetDev
		if a.Network != nil && a.Network.Interface != "" {
			name = a.Network.Interface
		}
		if name == "" && hardware.RDMADev == "" || a.Admin || a.ByPlugin() {
			continue
		}
		out = append(out, attachment{
			Attachment: driver.Attachment{
				Driver: a.Device.Driver, Device: a.Device.Device, Interface: name,
				Hardware: driver.Hardware{NetDev: hardware.NetDev, PCI: hardware.PCI, RDMADev: hardware.RDMADev},
			},
			pods: podsOf(a.Holders),
		})
	}
	return out
}

// podsOf returns the known UIDs of the holders' pods, each once.
func podsOf(holders []podresources.Holder) []string {
	uids := map[string]bool{}
	for _, h := range holders {
		if h.UID != "" {
			uids[h.UID] = true
		}
	}
	return slices.Sorted(maps.Keys(uids))
}

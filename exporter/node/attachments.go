package node

import (
	"context"
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

// works reads what pods do on the host. It is used by one goroutine.
type works struct {
	pods   *podresources.PodWorks
	reader *driver.Worker[map[string]podresources.PodWork]
}

// Works starts to read what the pods with these UIDs have done on the host, unless there are none
// or the last read has not ended. It returns what the last read found, once, nil if there is
// nothing new. It waits for nothing, and must be called by one goroutine.
func (n *Node) Works(uids []string) map[string]podresources.PodWork {
	last, _ := n.works.reader.Take()
	if len(uids) > 0 {
		n.works.reader.Start(context.Background(), func(context.Context) (map[string]podresources.PodWork, error) {
			return n.works.pods.Of(uids)
		})
	}
	return last.Value
}

// CheckWorks reads what the pods with these UIDs have done on the host.
func (n *Node) CheckWorks(uids []string) (map[string]podresources.PodWork, error) {
	return n.works.pods.Of(uids)
}

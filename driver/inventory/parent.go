package inventory

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// parent is the parent device that a partition names.
type parent struct {
	id    driver.ID
	entry driver.Entry
}

// newParent returns the parent of a partition, with the facts that the partition's attributes have.
func newParent(id driver.ID, pci string, partition *driver.Entry) parent {
	uuid := partition.Parent
	if driver.NormalizePCI(uuid) == uuid {
		uuid = ""
	}
	return parent{id, driver.Entry{
		Unlisted: true, Local: partition.Local, ManyNodes: partition.ManyNodes,
		Hardware: driver.Hardware{
			UUID: uuid, PCI: pci, Vendor: partition.Vendor, Model: partition.Model,
			DriverVersion: partition.DriverVersion, CUDAVersion: partition.CUDAVersion, NUMANode: partition.NUMANode,
			PCIeRoot: partition.PCIeRoot,
		},
	}}
}

// parentInAddress returns the device name of the GPU with a PCI address, such as gpu-0000-22-00-0,
// for a GPU of which AMD's driver lists only the partitions.
func parentInAddress(pci string) string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(pci)
}

// addParents adds the parents that no slice lists, so that readings of the whole GPU have a device.
// NVIDIA's driver lists neither a GPU with static MIG devices nor one in MIG mode before Hopper;
// AMD's does not list a partitioned GPU.
func (p *parts) addParents(inventory driver.Inventory) {
	for key, parent := range p.parents {
		_, listed := p.memory[key]
		if _, taken := inventory[parent.id]; !listed && !taken {
			inventory[parent.id] = parent.entry
		}
	}
}

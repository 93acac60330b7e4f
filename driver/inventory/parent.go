package inventory

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// parent is the device that a partition says it is a part of.
type parent struct {
	id    driver.ID
	entry driver.Entry
}

// newParent returns the parent of a partition, with what the partition says of it.
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

// parentInAddress returns the name for the GPU with a PCI address of which AMD's driver lists the
// partitions alone: gpu-0000-22-00-0.
func parentInAddress(pci string) string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(pci)
}

// addParents adds the parents that no slice lists. NVIDIA's driver does not list a GPU whose MIG
// devices are static, nor one in MIG mode before Hopper, and AMD's none that is partitioned; what
// is measured of the GPU as a whole is of that device all the same.
func (p *parts) addParents(inventory driver.Inventory) {
	for key, parent := range p.parents {
		_, listed := p.memory[key]
		if _, taken := inventory[parent.id]; !listed && !taken {
			inventory[parent.id] = parent.entry
		}
	}
}

package inventory

import "github.com/dra-exporter/dra-exporter/driver"

// parent is the device that a partition says it is a part of.
type parent struct {
	id    driver.ID
	entry driver.Entry
}

// newParent returns the parent of a partition, with what the partition tells of it.
func newParent(id driver.ID, pci string, partition *driver.Entry) parent {
	return parent{id, driver.Entry{
		Unlisted: true, Local: partition.Local,
		Hardware: driver.Hardware{
			UUID: partition.Parent, PCI: pci, Vendor: partition.Vendor, Model: partition.Model,
			DriverVersion: partition.DriverVersion, NUMANode: partition.NUMANode,
		},
	}}
}

// addParents adds the parents that no slice lists. NVIDIA's driver does not list a GPU whose MIG
// devices are static, nor one in MIG mode before Hopper; what is measured of the GPU as a whole is
// of that device all the same.
func (p *parts) addParents(inventory driver.Inventory) {
	for key, parent := range p.parents {
		_, listed := p.memory[key]
		if _, taken := inventory[parent.id]; !listed && !taken {
			inventory[parent.id] = parent.entry
		}
	}
}

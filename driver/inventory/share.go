package inventory

import (
	"cmp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// counters has amounts of one counter set (KEP-4815): those that a slice offers, or those that a
// device consumes while it is allocated.
type counters struct {
	set     string
	amounts []driver.Amount // sorted by name
}

// newCounters returns a counter set. Amounts that are none are omitted and counted.
func newCounters(
	driverName, set string, of map[string]resourcev1.Counter, rejected driver.Rejections,
) counters {
	amounts, bad := manifest.Amounts(driverName, of, func(c resourcev1.Counter) resource.Quantity { return c.Value })
	rejected.Add(driver.ReasonMalformedCapacity, bad)
	return counters{set, amounts}
}

// poolKey identifies something in a pool: a counter set by name, or a whole device by UUID or PCI
// address.
type poolKey struct{ driver, pool, name string }

// parts collects what is needed to compute which part of its parent each partition is.
type parts struct {
	totals     map[poolKey][]driver.Amount // amounts of counter sets
	memory     map[poolKey]float64         // memory of whole devices, in bytes
	parents    map[poolKey]parent          // parents that partitions name
	partitions []partition
}

// partition is a partition that a slice lists.
type partition struct {
	id       driver.ID
	parent   poolKey
	consumes []counters
	slices   int // compute slices of a MIG device; 0: not a MIG device
	memory   float64
}

// The resources by which partitions are compared.
const (
	memory          = "memory"
	multiprocessors = "multiprocessors" // NVIDIA's driver
)

// add adds a device of a slice.
func (p *parts) add(id driver.ID, d *offered) {
	h, size := &d.entry.Hardware, driver.AmountOf(d.entry.Capacity, memory)
	whole := func(name string) poolKey { return poolKey{id.Driver, id.Pool, strings.ToLower(name)} }
	if h.Kind != driver.KindPartition {
		for _, name := range []string{h.UUID, h.PCI} {
			if name != "" {
				p.memory[whole(name)] = size
			}
		}
		return
	}
	name, pci := "", d.pci
	switch byPCI := driver.NormalizePCI(h.Parent) != ""; {
	case h.Vendor == "nvidia" && !byPCI:
		name = nvidia.ParentInName(d.name)
	case h.Vendor == "amd" && byPCI:
		name, pci = parentInAddress(h.Parent), h.Parent
	}
	if name != "" {
		p.parents[whole(h.Parent)] = newParent(driver.ID{Driver: id.Driver, Pool: id.Pool, Device: name}, pci, &d.entry)
	}
	p.partitions = append(p.partitions, partition{
		id: id, parent: whole(h.Parent), consumes: d.consumes, slices: d.slices, memory: size,
	})
}

// shares sets Hardware.ParentShare and Entry.ComputeShare of the partitions in the inventory, if
// the slices determine them.
func (p *parts) shares(inventory driver.Inventory) {
	most := map[poolKey]int{} // compute slices of the MIG profile that takes a whole GPU, by parent
	var sets []poolKey
	bySet := map[poolKey][]*partition{}
	for i := range p.partitions {
		part := &p.partitions[i]
		if len(part.consumes) == 0 {
			continue
		}
		if p.takesWhole(part) {
			most[part.parent] = max(most[part.parent], part.slices)
		}
		for _, c := range part.consumes {
			set := poolKey{part.id.Driver, part.id.Pool, c.set}
			if bySet[set] == nil {
				sets = append(sets, set)
			}
			bySet[set] = append(bySet[set], part)
		}
	}
	shares := map[driver.ID]float64{}
	set := func(id driver.ID, of, whole float64) {
		if share := of / whole; shares[id] == 0 && share > 0 && share <= 1 {
			shares[id] = share
		}
	}
	for _, part := range p.partitions {
		set(part.id, float64(part.slices), float64(most[part.parent]))
	}
	for _, key := range sets {
		name := commonCounter(key.name, p.totals[key], bySet[key])
		for _, part := range bySet[key] {
			set(part.id, part.consumed(key.name, name), driver.AmountOf(p.totals[key], name))
		}
	}
	for _, part := range p.partitions {
		set(part.id, part.memory, p.memory[part.parent])
	}
	for id, share := range shares {
		entry := inventory[id]
		entry.ParentShare = share
		inventory[id] = entry
	}
	p.computeShares(inventory)
}

// computeShares sets Entry.ComputeShare by the multiprocessors that partitions consume.
func (p *parts) computeShares(inventory driver.Inventory) {
	for i := range p.partitions {
		part := &p.partitions[i]
		for _, c := range part.consumes {
			offered := p.totals[poolKey{part.id.Driver, part.id.Pool, c.set}]
			share := driver.AmountOf(c.amounts, multiprocessors) / driver.AmountOf(offered, multiprocessors)
			if entry := inventory[part.id]; share > 0 && share <= 1 {
				entry.ComputeShare = share
				inventory[part.id] = entry
			}
		}
	}
}

// takesWhole reports whether a MIG device consumes all memory slices of its GPU. NVIDIA's driver
// has a counter memory-slice-N for each (addCountersForMemSlices in its partitions.go).
func (p *parts) takesWhole(part *partition) bool {
	memorySlices := func(amounts []driver.Amount) int {
		n := 0
		for _, a := range amounts {
			if strings.HasPrefix(a.Resource, "memory-slice-") {
				n++
			}
		}
		return n
	}
	return slices.ContainsFunc(part.consumes, func(c counters) bool {
		offered := memorySlices(p.totals[poolKey{part.id.Driver, part.id.Pool, c.set}])
		return offered > 0 && memorySlices(c.amounts) == offered
	})
}

// commonCounter returns the counter of a set by which its partitions are compared. All of them
// consume it, so that the shares of partitions that exist at the same time sum to at most 1. It is
// memory, else the first by name; "" if there is none.
func commonCounter(set string, totals []driver.Amount, partitions []*partition) string {
	common := ""
	for _, total := range totals {
		unused := func(p *partition) bool { return p.consumed(set, total.Resource) == 0 }
		if slices.ContainsFunc(partitions, unused) {
			continue
		}
		if total.Resource == memory {
			return memory
		}
		common = cmp.Or(common, total.Resource)
	}
	return common
}

// consumed returns the amount of a counter that the partition consumes.
func (p *partition) consumed(set, counter string) float64 {
	for _, c := range p.consumes {
		if c.set == set {
			return driver.AmountOf(c.amounts, counter)
		}
	}
	return 0
}

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

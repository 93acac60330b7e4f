package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// cpuSets knows the CPUs of devices that are groups of CPUs, and the CPUs of each claim of such a
// device.
type cpuSets struct {
	sysfs  string
	cdi    *inventory.CDI
	reader *driver.Worker[[]int]

	groups map[inventory.CPUGroup]groupCPUs
	claims map[string][]int // of claims that hold a group, by the first CDI device
}

// groupCPUs has the CPUs of a group as last read.
type groupCPUs struct {
	cpus []int
	read time.Time // time of the last attempt
}

// groupsEvery is the time between two reads of the topology: CPUs rarely go online or offline.
const groupsEvery = 30 * time.Second

// complete returns the inventory with the CPUs of groups whose members no slice lists, and the
// allocations with the claims' CPUs from CDI specs. Once read, a claim's CPUs stay known until the
// claim ends, since the driver removes the spec just before. complete does not change its
// arguments.
func (c *cpuSets) complete(
	allocations []podresources.Allocation, all driver.Inventory, now time.Time,
) ([]podresources.Allocation, driver.Inventory) {
	groups := groupsIn(all)
	if len(groups) == 0 {
		c.claims = nil
		return allocations, all
	}
	all = maps.Clone(all)
	for id, group := range groups {
		entry := all[id]
		if entry.CPUs == nil {
			entry.CPUs = c.group(group, now)
		}
		all[id] = entry
	}
	allocations = slices.Clone(allocations)
	known := map[string][]int{}
	for i := range allocations {
		a := &allocations[i]
		if _, is := groups[a.Device]; !is || a.Admin {
			continue
		}
		a.OwnCPUs = true
		if len(a.CDI) == 0 {
			continue
		}
		if a.CPUs = c.cdi.CPUs(a.CDI); a.CPUs == nil {
			a.CPUs = c.claims[a.CDI[0]]
		}
		if a.CPUs != nil {
			known[a.CDI[0]] = a.CPUs
		}
		// The claim's spec exists before its containers, but may not have been read yet.
		a.Pending = a.Pending || a.CPUs == nil || len(all[a.Device].CPUs) == 0
	}
	c.claims = known
	return allocations, all
}

// groupsIn returns the devices that are groups of CPUs.
func groupsIn(all driver.Inventory) map[driver.ID]inventory.CPUGroup {
	var groups map[driver.ID]inventory.CPUGroup
	for id := range all {
		if group, ok := inventory.CPUGroupOf(id); ok {
			if groups == nil {
				groups = map[driver.ID]inventory.CPUGroup{}
			}
			groups[id] = group
		}
	}
	return groups
}

// group returns the CPUs of a group; nil: unknown.
func (c *cpuSets) group(group inventory.CPUGroup, now time.Time) []int {
	known := c.groups[group]
	if !known.read.IsZero() && now.Sub(known.read) < groupsEvery {
		return known.cpus
	}
	known.read = now
	cpus, err := c.reader.Do(context.Background(), driver.ReadWait, func(context.Context) ([]int, error) {
		return group.CPUs(c.sysfs)
	})
	if err == nil {
		known.cpus = cpus
	}
	if c.groups == nil {
		c.groups = map[inventory.CPUGroup]groupCPUs{}
	}
	c.groups[group] = known
	return known.cpus
}

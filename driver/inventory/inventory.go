// Package inventory says which hardware stands behind a DRA device: from the attributes that its
// driver publishes in ResourceSlices (rules.go has a rule for each driver), and, for an allocation
// that no slice describes, from the CDI specs that the driver leaves on the node.
package inventory

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

const (
	// maxDevices bounds the devices of one node.
	maxDevices = 16384
	// maxAttributes bounds the attributes, capacities and taints of a device, each. The API allows
	// 32.
	maxAttributes = 256
	// maxList bounds the values of a list-valued attribute; CPUs are the longest lists there are.
	maxList = 8192
)

// ParseSlices returns the devices that the ResourceSlices of a file offer on a node, the file being
// what `kubectl get resourceslices -o yaml` (or json) prints: a List, single objects, several
// documents, of resource.k8s.io/v1, v1beta2 v1beta1 or v1alpha3. Objects of other kinds are passed
// over, and so are slices and devices of other nodes unless node is empty. Of each pool only the
// newest complete generation counts.
//
// What is wrong with a device, or with one of its attributes, costs just that and is counted by
// reason. A file that can not be read at all, or a slice of an unknown version, is an error that
// names the document.
func ParseSlices(data []byte, node string) (driver.Inventory, driver.Rejections, error) {
	objects, malformed, err := manifest.Objects(data, "ResourceSlice")
	if err != nil {
		return nil, nil, fmt.Errorf("parse resource slices: %w", err)
	}
	var offered []Slice
	bad := 0
	for _, o := range objects {
		if s, ok := DecodeSlice(o.Raw); ok {
			offered = append(offered, s)
		} else {
			bad++
		}
	}
	found, rejected := build(offered, host{name: node})
	rejected.Add(driver.ReasonMalformedObject, malformed)
	rejected.Add(driver.ReasonMalformedSlice, bad)
	return found, rejected, nil
}

// Build returns the devices that these slices offer on a node of these labels, as [ParseSlices]
// does. Labels that are nil are unknown: what they decide is left out, and counted. The slices may
// be in any order, and are not changed.
func Build(offered []Slice, node string, labels map[string]string) (driver.Inventory, driver.Rejections) {
	found, rejected := build(offered, host{node, labels})
	return found, rejected
}

func build(offered []Slice, node host) (driver.Inventory, driver.Rejections) {
	b := builder{
		node: node, inventory: driver.Inventory{}, generation: map[driver.ID]int64{},
		rejected: driver.Rejections{},
		parts:    parts{totals: map[poolKey][]driver.Amount{}, memory: map[poolKey]float64{}},
	}
	for _, s := range current(offered) {
		b.add(s.spec)
	}
	b.parts.shares(b.inventory)
	return b.inventory, b.rejected
}

// current returns the slices that count, of each pool those of the newest generation that is
// complete: a driver that changes a pool writes the slices of the new generation one by one and
// then deletes what is left of the old one (KEP-4381). Where none is complete, which is so in the
// midst of that, and where a part of the pool is not listed here, all count, the newest before the
// others.
func current(offered []Slice) []Slice {
	type pool struct{ driver, name string }
	type generation struct {
		pool
		number int64
	}
	listed := map[generation]int64{}
	for i := range offered {
		s := &offered[i].spec
		listed[generation{pool{s.Driver, s.Pool.Name}, s.Pool.Generation}]++
	}
	newest := map[pool]int64{}
	for i := range offered {
		s := &offered[i].spec
		key := pool{s.Driver, s.Pool.Name}
		number, known := newest[key]
		if listed[generation{key, s.Pool.Generation}] >= s.Pool.Slices && (!known || s.Pool.Generation > number) {
			newest[key] = s.Pool.Generation
		}
	}
	out := slices.DeleteFunc(slices.Clone(offered), func(s Slice) bool {
		number, known := newest[pool{s.spec.Driver, s.spec.Pool.Name}]
		return known && s.spec.Pool.Generation != number
	})
	slices.SortStableFunc(out, func(a, b Slice) int { return cmp.Compare(b.spec.Pool.Generation, a.spec.Pool.Generation) })
	return out
}

// builder collects the devices of a node.
type builder struct {
	node       host
	inventory  driver.Inventory
	generation map[driver.ID]int64 // of the pool that listed the device
	rejected   driver.Rejections
	parts      parts
}

// add takes the slice's devices that are on the node. A device that several slices list counts
// once.
func (b *builder) add(s slice) {
	if !s.PerDeviceNodeSelection && !b.here(s.nodeSelection, len(s.Devices)) {
		return
	}
	for _, c := range decodeCounters(s.Driver, s.SharedCounters, b.rejected) {
		b.parts.totals[poolKey{s.Driver, s.Pool.Name, c.set}] = c.amounts
	}
	for _, raw := range s.Devices {
		d, ok := decodeDevice(s.Driver, raw, b.rejected)
		if !ok || s.PerDeviceNodeSelection && !b.here(d.nodeSelection, 1) {
			continue
		}
		id := driver.ID{Driver: s.Driver, Pool: s.Pool.Name, Device: d.name}
		if newer, ok := b.generation[id]; ok {
			if newer == s.Pool.Generation {
				b.rejected.Add(driver.ReasonDuplicateDevice, 1)
			}
			continue
		}
		if len(b.inventory) >= maxDevices {
			b.rejected.Add(driver.ReasonTooManyDevices, 1)
			continue
		}
		b.generation[id] = s.Pool.Generation
		hardware := describe(d)
		b.parts.add(id, d, &hardware)
		b.inventory[id] = driver.Entry{
			Hardware:  hardware,
			Capacity:  d.capacity,
			Taints:    d.taints,
			Shareable: d.shareable,
			Local:     s.NodeName != "",
		}
	}
}

// here reports whether the selection includes the node. Devices of an unknown result are counted.
func (b *builder) here(s nodeSelection, devices int) bool {
	if b.node.name == "" {
		return true
	}
	on, known := s.on(b.node)
	if !known {
		b.rejected.Add(driver.ReasonNodeSelector, devices)
	}
	return on
}

// Package inventory says which hardware stands behind a DRA device: from the attributes that its driver publishes in
// ResourceSlices (rules.go has a rule for each driver), and, for an allocation that no slice describes, from the CDI
// specs that the driver leaves on the node.
package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// Rejection counts rows of an input that could not be used, and why.
type Rejection struct {
	Reason string
	Count  int
}

// The reasons for which rows are rejected. A reason names the thing that was lost: a malformed attribute costs the
// attribute, a malformed device the device.
const (
	ReasonMalformedObject    = "malformed_object"
	ReasonMalformedSlice     = "malformed_slice"
	ReasonMalformedDevice    = "malformed_device"
	ReasonMalformedAttribute = "malformed_attribute"
	ReasonMalformedCapacity  = "malformed_capacity"
	ReasonMalformedTaint     = "malformed_taint"
	ReasonTooManyAttributes  = "too_many_attributes"  // the device is lost
	ReasonTooManyDevices     = "too_many_devices"     // the devices above the bound are lost
	ReasonDuplicateDevice    = "duplicate_device"     // the first one counts
	ReasonNodeSelector       = "node_selector_labels" // what is selected by node labels, which are not known here
)

const (
	// maxDevices bounds the devices of one node.
	maxDevices = 16384
	// maxAttributes bounds the attributes, capacities and taints of a device, each. The API allows 32.
	maxAttributes = 256
	// maxList bounds the values of a list-valued attribute; CPUs are the longest lists there are.
	maxList = 8192
)

// ParseSlices returns the devices that the ResourceSlices of a file offer on a node, the file being what `kubectl get
// resourceslices -o yaml` (or json) prints: a List, single objects, several documents, of resource.k8s.io/v1, v1beta2
// or v1beta1. Objects of other kinds are passed over, and so are slices and devices of other nodes unless node is
// empty. Of each pool only the newest generation counts.
//
// What is wrong with a device, or with one of its attributes, costs just that and is counted by reason. A file that
// can not be read at all, or a slice of an unknown version, is an error that names the document.
func ParseSlices(data []byte, node string) (driver.Inventory, []Rejection, error) {
	objects, malformed, err := manifest.Objects(data, "ResourceSlice")
	if err != nil {
		return nil, nil, fmt.Errorf("parse resource slices: %w", err)
	}
	b := builder{node: node, inventory: driver.Inventory{}, rejected: tally{}}
	b.rejected.add(ReasonMalformedObject, malformed)
	var offered []slice
	for _, o := range objects {
		if s, ok := decodeSlice(o.Raw); ok {
			offered = append(offered, s)
		} else {
			b.rejected.add(ReasonMalformedSlice, 1)
		}
	}
	for _, s := range newestGenerations(offered) {
		b.add(s)
	}
	return b.inventory, b.rejected.rejections(), nil
}

// newestGenerations returns the slices that belong to the newest generation of their pool. A driver that changes a
// pool writes new slices before it deletes the old ones (KEP-4381).
func newestGenerations(offered []slice) []slice {
	type pool struct{ driver, name string }
	newest := map[pool]int64{}
	for _, s := range offered {
		key := pool{s.Driver, s.Pool.Name}
		newest[key] = max(newest[key], s.Pool.Generation)
	}
	return slices.DeleteFunc(offered, func(s slice) bool {
		return s.Pool.Generation < newest[pool{s.Driver, s.Pool.Name}]
	})
}

// builder collects the devices of a node.
type builder struct {
	node      string
	inventory driver.Inventory
	rejected  tally
}

// add takes the slice's devices that are on the node. A device that several slices list counts once.
func (b *builder) add(s slice) {
	if !s.PerDeviceNodeSelection && !b.here(s.placement, len(s.Devices)) {
		return
	}
	for _, raw := range s.Devices {
		d, ok := decodeDevice(s.Driver, raw, b.rejected)
		if !ok || s.PerDeviceNodeSelection && !b.here(d.placement, 1) {
			continue
		}
		id := driver.ID{Driver: s.Driver, Pool: s.Pool.Name, Device: d.name}
		if _, ok := b.inventory[id]; ok {
			b.rejected.add(ReasonDuplicateDevice, 1)
			continue
		}
		if len(b.inventory) >= maxDevices {
			b.rejected.add(ReasonTooManyDevices, 1)
			continue
		}
		b.inventory[id] = driver.Entry{
			Hardware:  describe(d),
			Capacity:  d.capacity,
			Taints:    d.taints,
			Shareable: d.shareable,
		}
	}
}

// here tells whether what is placed so is on the node; what can not be told is counted.
func (b *builder) here(p placement, devices int) bool {
	if b.node == "" {
		return true
	}
	on, known := p.on(b.node)
	if !known {
		b.rejected.add(ReasonNodeSelector, devices)
	}
	return on
}

// tally counts rejections by reason.
type tally map[string]int

func (t tally) add(reason string, n int) {
	if n > 0 {
		t[reason] += n
	}
}

// rejections returns the counts, sorted by reason.
func (t tally) rejections() []Rejection {
	var out []Rejection
	for reason, n := range t {
		out = append(out, Rejection{reason, n})
	}
	slices.SortFunc(out, func(a, b Rejection) int {
		return cmp.Or(strings.Compare(a.Reason, b.Reason), cmp.Compare(a.Count, b.Count))
	})
	return out
}

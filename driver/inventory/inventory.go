// Package inventory finds the hardware of DRA devices: by the attributes that drivers publish in
// ResourceSlices (rules.go has a rule for each driver) and, for an allocation that no slice
// describes, by the CDI specs that drivers write on the node.
//
// Bounds (max…) are for what DRA drivers send.
package inventory

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxDevices is the maximum number of devices of a node, and maxDriverDevices that of one driver,
	// so that a driver with too many devices does not displace those of other drivers.
	maxDevices       = 16384
	maxDriverDevices = 4096
)

// ParseSlices returns the devices that the ResourceSlices in a file offer to a node. The file has
// the format of `kubectl get resourceslices -o yaml` (or json): a List, single objects, or several
// documents, of resource.k8s.io/v1, v1beta2, v1beta1 or v1alpha3. Objects of other kinds
// are ignored, and so are slices and devices of other nodes unless node is empty. Of each pool,
// only the newest complete generation counts.
//
// A malformed device or amount is omitted and counted by reason. A file that is malformed as a
// whole, or a slice of an unknown version, is an error that names the document.
func ParseSlices(data []byte, node string) (driver.Inventory, driver.Rejections, error) {
	objects, malformed, err := manifest.Objects(data, "ResourceSlice")
	if err != nil {
		return nil, nil, fmt.Errorf("parse resource slices: %w", err)
	}
	decoding := driver.Rejections{}
	var offers []Offer
	for _, o := range objects {
		if s, ok := DecodeSlice(o.Raw); ok {
			offers = append(offers, s.OfferTo(node, math.MaxInt, decoding))
		} else {
			decoding.Add(driver.ReasonMalformedSlice, 1)
		}
	}
	found, rejected := Build(offers)
	rejected.AddAll(decoding)
	rejected.Add(driver.ReasonMalformedObject, malformed)
	return found, rejected, nil
}

// Build returns the devices of the offers that slices make to a node, as [ParseSlices] does. The
// offers may be in any order; they are not changed.
func Build(offers []Offer) (driver.Inventory, driver.Rejections) {
	b := builder{
		inventory: driver.Inventory{}, generation: map[driver.ID]int64{}, drivers: map[string]int{},
		rejected: driver.Rejections{},
		parts: parts{
			totals: map[poolKey][]driver.Amount{}, memory: map[poolKey]float64{}, parents: map[poolKey]parent{},
		},
	}
	for _, o := range current(offers) {
		b.add(o)
	}
	b.parts.shares(b.inventory)
	b.parts.addParents(b.inventory)
	dropFalseUUIDs(b.inventory)
	return b.inventory, b.rejected
}

// current returns the offers of the newest complete generation of each pool. A driver that changes
// a pool writes the slices of the new generation one by one and then deletes those of the old one
// (KEP-4381). If no generation is complete, during such a change or because a part of the pool is
// not listed here, all offers of the pool are returned, the newest generation first.
func current(offers []Offer) []Offer {
	type pool struct{ driver, name string }
	type generation struct {
		pool
		number int64
	}
	listed := map[generation]int64{}
	for i := range offers {
		o := &offers[i]
		listed[generation{pool{o.driver, o.pool}, o.generation}]++
	}
	newest := map[pool]int64{}
	for i := range offers {
		o := &offers[i]
		key := pool{o.driver, o.pool}
		number, known := newest[key]
		if listed[generation{key, o.generation}] >= o.slices && (!known || o.generation > number) {
			newest[key] = o.generation
		}
	}
	out := slices.DeleteFunc(slices.Clone(offers), func(o Offer) bool {
		number, known := newest[pool{o.driver, o.pool}]
		return known && o.generation != number
	})
	slices.SortStableFunc(out, func(a, b Offer) int { return cmp.Compare(b.generation, a.generation) })
	return out
}

// builder collects the devices of a node.
type builder struct {
	inventory  driver.Inventory
	generation map[driver.ID]int64 // generation of the pool that listed the device
	drivers    map[string]int      // number of devices by driver
	rejected   driver.Rejections
	parts      parts
}

// add adds the devices of an offer. A device that several offers have counts once.
func (b *builder) add(o Offer) {
	for _, c := range o.counters {
		b.parts.totals[poolKey{o.driver, o.pool, c.set}] = c.amounts
	}
	for i := range o.devices {
		d := &o.devices[i]
		id := driver.ID{Driver: o.driver, Pool: o.pool, Device: d.name}
		if newer, ok := b.generation[id]; ok {
			if newer == o.generation {
				b.rejected.Add(driver.ReasonDuplicateDevice, 1)
			}
			continue
		}
		if len(b.inventory) >= maxDevices || b.drivers[o.driver] >= maxDriverDevices {
			b.rejected.Add(driver.ReasonTooManyDevices, 1)
			continue
		}
		b.drivers[o.driver]++
		b.generation[id] = o.generation
		b.parts.add(id, d)
		b.inventory[id] = d.entry
	}
}

// dropFalseUUIDs clears UUIDs that do not identify a device: one that several devices of a pool
// have, and one that is the pool's name and an index. They would match samples with the wrong
// device. Devices that cannot be measured do not count as another device: a GPU may also be listed
// for passthrough to guests.
func dropFalseUUIDs(inventory driver.Inventory) {
	type named struct{ driver, pool, uuid string }
	count := map[named]int{}
	key := func(id driver.ID, e *driver.Entry) named {
		return named{id.Driver, id.Pool, strings.ToLower(e.UUID)}
	}
	for id, e := range inventory {
		if e.UUID != "" && e.Kind.Measurable() {
			count[key(id, &e)]++
		}
	}
	for id, e := range inventory {
		if count[key(id, &e)] > 1 || isIndex(e.UUID, id.Pool) {
			e.UUID = ""
			inventory[id] = e
		}
	}
}

// isIndex reports whether the UUID is the pool's name, a dash and a number.
func isIndex(uuid, pool string) bool {
	n, ok := strings.CutPrefix(uuid, pool+"-")
	return ok && decimal(n) != ""
}

// racyWindow is the time after a write in which another write may leave the modification time
// unchanged: the clock of the file system has a resolution of a few milliseconds.
const racyWindow = 50 * time.Millisecond

// File is a file that may change, including by a rename or through the symbolic links of a
// ConfigMap. It is not safe for concurrent use.
type File struct {
	path string
	now  func() time.Time
	seen stamp
}

// NewFile returns the file at a path without reading it.
func NewFile(path string) *File { return &File{path: path, now: time.Now} }

// Path returns the path of the file.
func (f *File) Path() string { return f.path }

// Load returns the content of the file if it has changed since the last successful Load. If it has
// not, Load makes a single stat call. For a file above 64 MiB it returns [sysfs.ErrTooLarge].
func (f *File) Load() (data []byte, changed bool, err error) {
	info, err := os.Stat(f.path)
	if err != nil {
		f.seen = stamp{}
		return nil, false, fmt.Errorf("load file: %w", err)
	}
	current := stampOf(info, f.now())
	if current.same(f.seen) {
		return nil, false, nil
	}
	if data, err = sysfs.ReadFile(f.path, manifest.MaxBytes); err != nil {
		return nil, false, fmt.Errorf("load file: %w", err)
	}
	f.seen = current
	return data, true, nil
}

// Modified returns the modification time of the last loaded content; zero: none was loaded.
func (f *File) Modified() time.Time { return f.seen.mtime }

// stamp identifies the content of a file without reading it.
type stamp struct {
	mtime time.Time
	size  int64
	info  os.FileInfo // for device and inode
	racy  bool        // the file was written just before the stamp was taken
}

func stampOf(info os.FileInfo, now time.Time) stamp {
	age := now.Sub(info.ModTime())
	return stamp{mtime: info.ModTime(), size: info.Size(), info: info, racy: age >= 0 && age < racyWindow}
}

// same reports whether s, taken later than old, certainly stands for the same content.
func (s stamp) same(old stamp) bool {
	return old.info != nil && !old.racy && s.mtime.Equal(old.mtime) && s.size == old.size && os.SameFile(s.info, old.info)
}

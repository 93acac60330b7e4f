package kube

import (
	"encoding/json"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// MaxSliceBytes is the highest amount of memory, in bytes, for the slices of a half, if there is
// enough memory; half of it is for one driver. A slice takes less than 1 KiB, and each of its
// devices that is on the node between 1 and 2 KiB, so that a driver can have some thousand devices
// on the node.
const MaxSliceBytes = 6 << 20

// keptSlices are the slices of a half, as far as they concern the node and the bounds allow. What
// is beyond the bounds is left out and counted.
type keptSlices struct {
	most     int                  // bytes
	offers   map[string]keptSlice // by name of the slice
	drivers  map[string]int       // bytes by driver
	bytes    int
	rejected driver.Rejections
}

type keptSlice struct {
	inventory.Offer
	driver string
}

func newKeptSlices(most int) *keptSlices {
	return &keptSlices{
		most: most, offers: map[string]keptSlice{}, drivers: map[string]int{}, rejected: driver.Rejections{},
	}
}

// put stores the part of a slice that is offered to the node. A slice that cannot be decoded still
// replaces its previous version.
func (k *keptSlices) put(raw json.RawMessage, node string) {
	slice, ok := inventory.DecodeSlice(raw)
	if !ok || !manifest.ValidName(slice.Name()) {
		k.rejected.Add(driver.ReasonMalformedSlice, 1)
		k.remove(nameOf(raw))
		return
	}
	k.remove(slice.Name())
	room := min(k.most-k.bytes, k.most/2-k.drivers[slice.Driver()])
	offer := slice.OfferTo(node, room, k.rejected)
	if offer.Size() > room {
		k.rejected.Add(driver.ReasonTooManySlices, 1)
	} else {
		k.offers[slice.Name()] = keptSlice{offer, slice.Driver()}
		k.bytes += offer.Size()
		k.drivers[slice.Driver()] += offer.Size()
	}
}

func (k *keptSlices) remove(name string) {
	before, known := k.offers[name]
	if !known {
		return
	}
	delete(k.offers, name)
	k.bytes -= before.Size()
	if k.drivers[before.driver] -= before.Size(); k.drivers[before.driver] == 0 {
		delete(k.drivers, before.driver)
	}
}

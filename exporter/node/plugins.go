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

// pluginDevices are the devices of device plugins, by resource and ID as the kubelet lists them.
type pluginDevices struct {
	sysfs  string
	reader *driver.Worker[inventory.PluginDevice]
	known  map[driver.ID]*pluginDevice
}

// pluginDevice is a device of a device plugin.
type pluginDevice struct {
	inventory.PluginDevice
	held time.Time // when it was held last
	dra  driver.ID // the DRA device of the same hardware
}

// identify makes one device of each that is known both to DRA and to a device plugin: the device
// plugin's has the ID of the DRA device of the same hardware, from the time at which the inventory
// has had it. (A kubelet that starts deletes the slices of its node, see withHeld.)
//
// It returns the allocations with these IDs, and the inventory with the devices that device plugins
// alone gave, now or recently. The arguments are not changed.
func (p *pluginDevices) identify(
	allocations []podresources.Allocation, all driver.Inventory, now time.Time,
) ([]podresources.Allocation, driver.Inventory) {
	if len(
		p.known,
	) == 0 && !slices.ContainsFunc(allocations, func(a podresources.Allocation) bool { return a.ByPlugin() }) {
		return allocations, all
	}
	index := inventory.NewPluginIndex(all)
	identified, more := slices.Clone(allocations), maps.Clone(all)
	if more == nil {
		more = driver.Inventory{}
	}
	for i := range identified {
		if a := &identified[i]; a.ByPlugin() {
			d := p.device(a.Device)
			d.held = now
			a.ShareID = d.Share
			a.Device = d.identity(a.Device, index)
		}
	}
	for listed, d := range p.known {
		if now.Sub(d.held) > rememberHeld {
			delete(p.known, listed)
			continue
		}
		id := d.identity(listed, index)
		if _, described := all[id]; !described {
			more[id] = driver.Entry{Hardware: d.Hardware, Unlisted: true}
		}
	}
	return identified, more
}

func (p *pluginDevices) device(listed driver.ID) *pluginDevice {
	if d := p.known[listed]; d != nil {
		return d
	}
	made, err := p.reader.Do(context.Background(), driver.ReadWait, func(context.Context) (inventory.PluginDevice, error) {
		return inventory.NewPluginDevice(listed.Driver, listed.Device, p.sysfs), nil
	})
	if err != nil { // until sysfs answers, it is known by its name alone
		return &pluginDevice{PluginDevice: inventory.NewPluginDevice(listed.Driver, listed.Device, "")}
	}
	d := &pluginDevice{PluginDevice: made}
	if p.known == nil {
		p.known = map[driver.ID]*pluginDevice{}
	}
	p.known[listed] = d
	return d
}

// identity returns the ID of the device, given that of its resource.
func (d *pluginDevice) identity(listed driver.ID, index inventory.PluginIndex) driver.ID {
	if id, ok := index.Find(&d.Hardware); ok {
		d.dra = id
	}
	if d.dra != (driver.ID{}) {
		return d.dra
	}
	return driver.ID{Driver: listed.Driver, Device: d.Name}
}

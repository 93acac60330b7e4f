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

// pluginDevices are the devices of device plugins, by the resource and ID that the kubelet lists.
type pluginDevices struct {
	sysfs  string
	reader *driver.Worker[inventory.PluginDevice]
	known  map[driver.ID]*pluginDevice
}

// pluginDevice is a device of a device plugin.
type pluginDevice struct {
	inventory.PluginDevice
	held    time.Time // when it was last held
	offered bool      // by its plugin, now
	dra     driver.ID // the DRA device with the same hardware
}

// identify merges devices that both DRA and a device plugin know: the device plugin's device gets
// the ID of the DRA device with the same hardware, as soon as the inventory has had that. (A
// kubelet that starts deletes the slices of its node, see withHeld.)
//
// It returns the allocations with these IDs, and the inventory plus the devices that only device
// plugins know: offered, or held now or recently. The arguments are not changed.
func (p *pluginDevices) identify(
	allocations []podresources.Allocation, offered map[driver.ID]inventory.PluginDevice, all driver.Inventory,
	now time.Time,
) ([]podresources.Allocation, driver.Inventory) {
	if len(p.known) == 0 && len(offered) == 0 &&
		!slices.ContainsFunc(allocations, func(a podresources.Allocation) bool { return a.ByPlugin() }) {
		return allocations, all
	}
	p.offer(offered)
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
		if !d.offered && now.Sub(d.held) > rememberHeld {
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

// offer records which devices are offered now.
func (p *pluginDevices) offer(offered map[driver.ID]inventory.PluginDevice) {
	for listed, d := range p.known {
		_, d.offered = offered[listed]
	}
	for listed, d := range offered {
		if p.known[listed] == nil {
			p.add(listed, &pluginDevice{PluginDevice: d, offered: true})
		}
	}
}

func (p *pluginDevices) add(listed driver.ID, d *pluginDevice) {
	if p.known == nil {
		p.known = map[driver.ID]*pluginDevice{}
	}
	p.known[listed] = d
}

func (p *pluginDevices) device(listed driver.ID) *pluginDevice {
	if d := p.known[listed]; d != nil {
		return d
	}
	made, err := p.reader.Do(context.Background(), driver.ReadWait, func(context.Context) (inventory.PluginDevice, error) {
		return inventory.NewPluginDevice(listed.Driver, listed.Device, p.sysfs), nil
	})
	if err != nil { // only its name is known until sysfs answers
		return &pluginDevice{PluginDevice: inventory.NewPluginDevice(listed.Driver, listed.Device, "")}
	}
	d := &pluginDevice{PluginDevice: made}
	p.add(listed, d)
	return d
}

// identity returns the ID of the device. listed is its ID by the resource's name.
func (d *pluginDevice) identity(listed driver.ID, index inventory.PluginIndex) driver.ID {
	if id, ok := index.Find(&d.Hardware); ok {
		d.dra = id
	}
	if d.dra != (driver.ID{}) {
		return d.dra
	}
	return driver.ID{Driver: listed.Driver, Device: d.Name}
}

package program

import (
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// pluginDevices are the devices that device plugins gave out, by resource and ID, as the kubelet lists them.
type pluginDevices struct {
	sysfs string
	known map[driver.ID]*pluginDevice
}

// pluginDevice is a device that a device plugin gave out.
type pluginDevice struct {
	inventory.PluginDevice
	held time.Time // when somebody held it last
	dra  driver.ID // the DRA device that it was found to be
}

// identify gives every device one identity: a device plugin's device is the DRA device of the same hardware, where the
// inventory has one, or had one while this was known: a kubelet that starts deletes the slices of its node (wipeResourceSlices in
// pkg/kubelet/cm/dra/plugin), and drivers take seconds to publish them again. It returns the allocations so, and the inventory with the devices that device plugins alone give
// out, or gave out a while ago. Neither argument is changed.
func (p *pluginDevices) identify(
	allocations []podresources.Allocation, all driver.Inventory, now time.Time,
) ([]podresources.Allocation, driver.Inventory) {
	if len(p.known) == 0 && !slices.ContainsFunc(allocations, func(a podresources.Allocation) bool { return a.ByPlugin() }) {
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
			more[id] = driver.Entry{Hardware: d.Hardware}
		}
	}
	return identified, more
}

func (p *pluginDevices) device(listed driver.ID) *pluginDevice {
	d := p.known[listed]
	if d == nil {
		d = &pluginDevice{PluginDevice: inventory.NewPluginDevice(listed.Driver, listed.Device, p.sysfs)}
		if p.known == nil {
			p.known = map[driver.ID]*pluginDevice{}
		}
		p.known[listed] = d
	}
	return d
}

// identity returns the ID of the device, given the resource of which it is.
func (d *pluginDevice) identity(listed driver.ID, index inventory.PluginIndex) driver.ID {
	if id, ok := index.Find(&d.Hardware); ok {
		d.dra = id
	}
	if d.dra != (driver.ID{}) {
		return d.dra
	}
	return driver.ID{Driver: listed.Driver, Device: d.Name}
}

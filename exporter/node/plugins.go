package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
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

const (
	offeredEvery = time.Minute     // between two requests for what device plugins offer
	offeredCheck = 5 * time.Second // between two looks whether the kubelet has started again, and after a failure
	// inputOffered is the name of this input in self-metrics.
	inputOffered = "allocatable"
)

// offers are the devices that device plugins offer: those of them that are hardware.
type offers struct {
	client  *podresources.Client
	sysfs   string
	metrics Metrics
	reader  *driver.Worker[map[driver.ID]inventory.PluginDevice]

	known    atomic.Pointer[map[driver.ID]inventory.PluginDevice] // by resource and ID; it does not change
	instance podresources.Instance                                // of the last answer
	asked    time.Time
	failed   bool
}

// current returns the devices that are offered.
func (o *offers) current() map[driver.ID]inventory.PluginDevice {
	if known := o.known.Load(); known != nil {
		return *known
	}
	return nil
}

// follow asks the kubelet at once, when it has started again, and each minute, until ctx ends.
func (o *offers) follow(ctx context.Context) {
	tick := time.NewTicker(offeredCheck)
	defer tick.Stop()
	for {
		o.update(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// update asks the kubelet if that is due. An old kubelet, or an answer that is too large, is no
// error: only what is held is known then. While the kubelet is away, the answer before stays valid.
func (o *offers) update(ctx context.Context, now time.Time) {
	instance := o.client.Instance()
	if !o.failed && instance == o.instance && now.Sub(o.asked) < offeredEvery {
		return
	}
	started := instance != o.instance && !o.asked.IsZero()
	o.asked = now
	asking, cancel := context.WithTimeout(ctx, driver.ReadDeadline)
	defer cancel()
	ids, rejected, err := o.client.Allocatable(asking)
	switch {
	case errors.Is(err, podresources.ErrUnimplemented), errors.Is(err, podresources.ErrTooLarge):
		o.instance, o.failed = instance, false
		o.known.Store(nil)
		if errors.Is(err, podresources.ErrTooLarge) {
			o.metrics.Reject(driver.Rejection{Input: inputOffered, Reason: driver.ReasonTooManyIDs, Count: 1})
		}
		return
	case err != nil:
		o.failed = true
		if !errors.Is(err, podresources.ErrUnavailable) && ctx.Err() == nil { // else the input podresources says so
			o.metrics.ObserveReader(inputOffered, time.Since(now), err, now)
		}
		return
	}
	o.instance, o.failed = instance, false
	o.metrics.ObserveReader(inputOffered, time.Since(now), nil, now)
	o.metrics.Reject(rejected.Of(inputOffered)...)
	known, err := o.reader.Do(ctx, driver.ReadDeadline,
		func(context.Context) (map[driver.ID]inventory.PluginDevice, error) {
			return hardwareOf(ids, o.sysfs), nil
		})
	if err != nil {
		return // the read hangs, which has been reported
	}
	if started { // plugins register one by one with a kubelet that has started
		maps.Copy(known, o.current())
	}
	o.known.Store(&known)
}

// hardwareOf returns the devices that are hardware by their IDs: of the shares of a device, one.
// Other plugins offer what is no device, such as permissions.
func hardwareOf(ids []driver.ID, sysfs string) map[driver.ID]inventory.PluginDevice {
	out, seen := map[driver.ID]inventory.PluginDevice{}, map[driver.ID]bool{}
	for _, id := range ids {
		d := inventory.NewPluginDevice(id.Driver, id.Device, sysfs)
		h, device := &d.Hardware, driver.ID{Driver: id.Driver, Device: d.Name}
		found := h.UUID != "" || h.PCI != "" || h.NetDev != "" || h.RDMADev != "" || len(h.DeviceNodes) > 0
		if found && !seen[device] {
			seen[device] = true
			out[id] = d
		}
	}
	return out
}

// attachment is a device and the pods that may have it as an interface.
type attachment struct {
	driver.Attachment
	pods []string // UIDs, sorted
}

// Attachments returns the devices that are network interfaces of pods, with the first process of
// each of these pods.
func (n *Node) Attachments() []driver.Attachment {
	last := n.last()
	list := attached(last.allocations, last.inventory)
	uids := map[string]bool{}
	for i := range list {
		for _, uid := range list[i].pods {
			uids[uid] = true
		}
	}
	processes := n.first.Of(slices.Sorted(maps.Keys(uids)))
	var out []driver.Attachment
	for _, a := range list {
		for _, uid := range a.pods {
			if pid, ok := processes[uid]; ok {
				a.PIDs = append(a.PIDs, pid)
			}
		}
		if len(a.PIDs) > 0 {
			out = append(out, a.Attachment)
		}
	}
	return out
}

// attached returns the devices that may be network interfaces of pods: devices whose driver reports
// the interface's name in the claim's status (KEP-4817); interfaces of the host, and RDMA devices,
// both of which keep their names.
func attached(allocations []podresources.Allocation, known driver.Inventory) []attachment {
	var out []attachment
	for i := range allocations {
		a := &allocations[i]
		hardware := known[a.Device].Hardware
		name := hardware.NetDev
		if a.Network != nil && a.Network.Interface != "" {
			name = a.Network.Interface
		}
		if name == "" && hardware.RDMADev == "" || a.Admin || a.ByPlugin() {
			continue
		}
		out = append(out, attachment{
			Attachment: driver.Attachment{
				Driver: a.Device.Driver, Device: a.Device.Device, Interface: name,
				Hardware: driver.Hardware{NetDev: hardware.NetDev, PCI: hardware.PCI, RDMADev: hardware.RDMADev},
			},
			pods: podsOf(a.Holders),
		})
	}
	return out
}

// podsOf returns the known UIDs of the holders' pods, each once.
func podsOf(holders []podresources.Holder) []string {
	uids := map[string]bool{}
	for _, h := range holders {
		if h.UID != "" {
			uids[h.UID] = true
		}
	}
	return slices.Sorted(maps.Keys(uids))
}

// Holders returns the pods that hold a device for which asked is true, with their processes. Admin
// access does not count.
func (n *Node) Holders(asked func(*driver.Hardware) bool) []driver.PodProcesses {
	last := n.last()
	devices := held(last.allocations, last.inventory, asked)
	uids := slices.Sorted(maps.Keys(devices))
	members := n.members.Of(uids)
	var out []driver.PodProcesses
	for _, uid := range uids {
		out = append(out, driver.PodProcesses{Devices: devices[uid], PIDs: members[uid]})
	}
	return out
}

// held returns the devices for which asked is true, by the UIDs of the pods that hold them. It
// omits admin access, and devices of guests, which have no processes on the host.
func held(
	allocations []podresources.Allocation, known driver.Inventory, asked func(*driver.Hardware) bool,
) map[string][]driver.Hardware {
	out := map[string][]driver.Hardware{}
	for i := range allocations {
		a := &allocations[i]
		hardware := known[a.Device].Hardware
		if a.Admin || !hardware.Kind.Measurable() || !asked(&hardware) {
			continue
		}
		for _, uid := range podsOf(a.Holders) {
			out[uid] = append(out[uid], hardware)
		}
	}
	return out
}

// works reads what pods do on the host. It is used by one goroutine.
type works struct {
	pods   *podresources.PodWorks
	reader *driver.Worker[map[string]podresources.PodWork]
}

// Works starts to read what the pods with these UIDs have done on the host, unless there are none
// or the last read has not ended. It returns what the last read found, once, nil if there is
// nothing new. It waits for nothing, and must be called by one goroutine.
func (n *Node) Works(uids []string) map[string]podresources.PodWork {
	last, _ := n.works.reader.Take()
	if len(uids) > 0 {
		n.works.reader.Start(context.Background(), func(context.Context) (map[string]podresources.PodWork, error) {
			return n.works.pods.Of(uids)
		})
	}
	return last.Value
}

// CheckWorks reads what the pods with these UIDs have done on the host.
func (n *Node) CheckWorks(uids []string) (map[string]podresources.PodWork, error) {
	return n.works.pods.Of(uids)
}

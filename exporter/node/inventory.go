package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// cdiDevice is a device that only CDI specs describe, with the time at which it was last held.
type cdiDevice struct {
	hardware driver.Hardware
	held     time.Time
}

// rememberHeld is how long a device that only CDI specs or a device plugin describe stays known
// after it was last held, so that its last readings are counted.
const rememberHeld = 10 * time.Minute

// withHeld returns the inventory plus devices that were in it and are still held. A kubelet that
// starts deletes the slices of its node (wipeResourceSlices in pkg/kubelet/cm/dra/plugin). Drivers
// take seconds to publish them again, and their devices stay held. The argument is not changed.
func (n *Node) withHeld(allocations []podresources.Allocation, listed driver.Inventory) driver.Inventory {
	held := driver.Inventory{}
	for i := range allocations {
		id := allocations[i].Device
		if _, ok := listed[id]; ok {
			continue
		}
		if entry, ok := n.before[id]; ok {
			entry.Unlisted = true
			held[id] = entry
		}
	}
	if len(held) > 0 {
		maps.Copy(held, listed)
		listed = held
	}
	n.before = listed
	return listed
}

// withoutDrivers returns the inventory with DriverGone set for devices whose driver is gone from
// the node. The argument is not changed.
func (n *Node) withoutDrivers(listed driver.Inventory) driver.Inventory {
	drivers := map[string]bool{}
	for id := range listed {
		if entry := listed[id]; entry.Local && !entry.Socketless {
			drivers[id.Driver] = true
		}
	}
	gone := n.drivers.Gone(drivers)
	if len(gone) == 0 {
		return listed
	}
	marked := maps.Clone(listed)
	for id, entry := range listed {
		if entry.Local && !entry.Socketless && gone[id.Driver] {
			entry.DriverGone = true
			marked[id] = entry
		}
	}
	return marked
}

// hasConditional reports whether a device has binding conditions.
func (n *Node) hasConditional() bool {
	for _, entry := range n.last().inventory {
		if entry.Conditional {
			return true
		}
	}
	return false
}

// Passthrough reports whether a device is passed through to a guest: it is allocated as such, or
// bound to the kernel's driver for that. Being listed as such in a slice does not count: NVIDIA's
// driver lists each GPU that could be passed through.
func (n *Node) Passthrough() bool {
	last := n.last()
	for i := range last.allocations {
		if last.inventory[last.allocations[i].Device].Kind == driver.KindPassthrough {
			return true
		}
	}
	for _, entry := range last.inventory {
		if entry.Kind == driver.KindPassthrough && inventory.IsPassthrough(n.plugin.sysfs, entry.Hardware) {
			return true
		}
	}
	return false
}

// Listed returns the number of a vendor's readable devices, for drivers that run here.
func (n *Node) Listed(vendor string) int {
	listed := 0
	for _, e := range n.last().inventory {
		if e.Vendor == vendor && e.Local && !e.DriverGone && e.Kind == driver.KindDevice {
			listed++
		}
	}
	return listed
}

// slices returns the devices of ResourceSlices: from the file if there is one, else from the API
// server.
func (n *Node) slices() driver.Inventory {
	if n.file != nil || n.kube == nil {
		return n.listed
	}
	listed, _ := n.kube.Inventory()
	return listed
}

// withCDI returns the inventory plus devices that are, or recently were, held, and that only CDI
// specs or their names describe.
func (n *Node) withCDI(allocations []podresources.Allocation, listed driver.Inventory, now time.Time) driver.Inventory {
	for i := range allocations {
		a := &allocations[i]
		if _, ok := listed[a.Device]; ok {
			continue
		}
		d, known := n.cdiIDs[a.Device]
		h, found := n.cdi.Lookup(a.CDI)
		h, named := inventory.CompleteByName(a.Device, h)
		if found || named {
			d.hardware, known = h, true
		}
		if known {
			d.held = now
			n.cdiIDs[a.Device] = d
		}
	}
	if len(n.cdiIDs) == 0 {
		return listed
	}
	all := make(driver.Inventory, len(listed)+len(n.cdiIDs))
	for id, d := range n.cdiIDs {
		if now.Sub(d.held) > rememberHeld {
			delete(n.cdiIDs, id)
			continue
		}
		all[id] = driver.Entry{Hardware: d.hardware, Unlisted: true}
	}
	maps.Copy(all, listed)
	return all
}

// contents is the content of the inventory file.
type contents struct {
	listed   driver.Inventory
	claims   map[podresources.Claim]podresources.ClaimFacts
	rejected []driver.Rejection
	modified time.Time
}

// firstRead is how long the program's start waits for the inventory file.
const firstRead = time.Minute

// useFile makes the inventory file an input, and reads it.
func (n *Node) useFile(path string) error {
	n.file, n.reader = inventory.NewFile(path), driver.NewReader[bool]("read inventory file", nil)
	begun := time.Now()
	if err := n.readFile(firstRead); err != nil {
		return err
	}
	n.metrics.Observe(kube.SourceSlices, time.Since(begun), nil, time.Now())
	hung := false
	n.reader.Report = func(o driver.Outcome[bool]) {
		if o.Value || o.Err != nil || hung {
			hung = driver.ReasonOf(o.Err) == driver.ReasonHung
			n.metrics.Observe(kube.SourceSlices, o.Took, o.Err, time.Now())
		}
	}
	return nil
}

// readFile reads the inventory file if it has changed, and waits for that up to atMost. Until the
// file has been read, and if it can't be read or parsed, the earlier contents stay valid.
func (n *Node) readFile(atMost time.Duration) error {
	_, err := n.reader.Do(context.Background(), atMost, func(context.Context) (changed bool, err error) {
		read, err := load(n.file, n.name)
		if read != nil {
			n.read.Store(read)
		}
		return read != nil, err
	})
	if c := n.read.Swap(nil); c != nil {
		n.listed, n.claims = c.listed, len(c.claims) > 0
		n.book.ClaimsListed(c.claims, c.modified)
		n.metrics.Reject(c.rejected...)
		n.log.Debug("inventory file read", "devices", len(c.listed), "claims", len(c.claims))
	}
	return err
}

// load returns the contents of a file, nil if the file has not changed.
func load(file *inventory.File, node string) (*contents, error) {
	data, changed, err := file.Load()
	if err != nil || !changed {
		return nil, err
	}
	listed, slicesRejected, err := inventory.ParseSlices(data, node)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Path(), err)
	}
	claims, claimsRejected, err := kube.ParseClaims(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Path(), err)
	}
	for claim, f := range claims {
		f.Read = file.Modified()
		claims[claim] = f
	}
	rejected := append(slicesRejected.Of(kube.SourceSlices), claimsRejected.Of(kube.SourceClaims)...)
	return &contents{listed, claims, rejected, file.Modified()}, nil
}

// tainted is an inventory with the taints of DeviceTaintRules, and what it was made of.
type tainted struct {
	listed driver.Inventory
	rules  []inventory.TaintRule
	result driver.Inventory
}

// add returns the inventory with the taints of rules: the one before, unless an argument has
// changed. surplus is the number of taints that a new one lacks.
func (t *tainted) add(listed driver.Inventory, rules []inventory.TaintRule) (all driver.Inventory, surplus int) {
	if !driver.SameMap(listed, t.listed) || !slices.Equal(rules, t.rules) {
		all, surplus = inventory.AddTaints(listed, rules)
		*t = tainted{listed, rules, all}
	}
	return t.result, surplus
}

// withRules returns the inventory with the taints of DeviceTaintRules. The argument is not changed.
func (n *Node) withRules(listed driver.Inventory) driver.Inventory {
	if n.kube == nil {
		return listed
	}
	all, surplus := n.tainted.add(listed, n.kube.TaintRules())
	if surplus > 0 {
		n.metrics.Reject(driver.Rejection{
			Input: kube.SourceTaintRules, Reason: driver.ReasonTooManyTaints, Count: surplus,
		})
	}
	return all
}

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

// PCIPaths reads the paths of PCI devices by their addresses, and returns whether all could be
// read. It waits a moment at most.
func (n *Node) PCIPaths(addresses []string) (paths map[string]driver.PCIPath, complete bool) {
	paths, err := n.paths.Do(context.Background(), driver.ReadWait,
		func(context.Context) (map[string]driver.PCIPath, error) { return readPaths(n.plugin.sysfs, addresses) })
	return paths, err == nil
}

// readPaths reads the paths of PCI devices. With an error, it returns those that it could read.
func readPaths(root string, addresses []string) (map[string]driver.PCIPath, error) {
	out := make(map[string]driver.PCIPath, len(addresses))
	var failed error
	for _, address := range addresses {
		path, err := inventory.PCIPath(root, address)
		if err != nil {
			failed = err
			continue
		}
		out[address] = path
	}
	return out, failed
}

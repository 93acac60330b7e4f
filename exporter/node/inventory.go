package node

import (
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// cdiDevice is a device that only CDI specs describe, and when it was held last.
type cdiDevice struct {
	hardware driver.Hardware
	held     time.Time
}

// rememberHeld is how long a device that only CDI specs, or a device plugin's ID, describe stays
// known after its last holder: long enough for the last readings to be counted.
const rememberHeld = 10 * time.Minute

// withClaimUIDs returns the allocations with UIDs of claims of classic DRA that only CDI specs
// have. The argument is not changed.
func (n *Node) withClaimUIDs(allocations []podresources.Allocation) []podresources.Allocation {
	shared := true
	for i := range allocations {
		if a := &allocations[i]; !a.Classic() || a.ClaimUID != "" {
			continue
		}
		uid := n.cdi.ClaimUID(allocations[i].CDI)
		if uid == "" {
			continue
		}
		if shared {
			allocations, shared = slices.Clone(allocations), false
		}
		allocations[i].ClaimUID = uid
	}
	return allocations
}

// withHeld returns the inventory with the devices that it had before and that are still held. A
// kubelet that starts deletes the slices of its node (wipeResourceSlices in
// pkg/kubelet/cm/dra/plugin), drivers take seconds to publish them again, and their devices stay
// held. The argument is not changed.
func (n *Node) withHeld(allocations []podresources.Allocation, listed driver.Inventory) driver.Inventory {
	held := driver.Inventory{}
	for i := range allocations {
		id := allocations[i].Device
		if _, ok := listed[id]; ok {
			continue
		}
		if entry, ok := n.before[id]; ok {
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

// withoutDrivers returns the inventory with the devices marked whose driver is gone from the node.
// The argument is not changed.
func (n *Node) withoutDrivers(listed driver.Inventory) driver.Inventory {
	drivers := map[string]bool{}
	for id := range listed {
		if listed[id].Local {
			drivers[id.Driver] = true
		}
	}
	gone := n.drivers.Gone(drivers)
	if len(gone) == 0 {
		return listed
	}
	marked := maps.Clone(listed)
	for id, entry := range listed {
		if entry.Local && gone[id.Driver] {
			entry.DriverGone = true
			marked[id] = entry
		}
	}
	return marked
}

// hasConditional reports whether a device has binding conditions.
func hasConditional(all driver.Inventory) bool {
	for id := range all {
		if all[id].Conditional {
			return true
		}
	}
	return false
}

// hasPassthrough reports whether a device is handed to a guest as it is: it is allocated, or the
// kernel's driver for that has it. That a slice lists it says nothing: NVIDIA's driver lists each
// GPU that it could hand over.
func hasPassthrough(allocations []podresources.Allocation, all driver.Inventory, root string) bool {
	for i := range allocations {
		if all[allocations[i].Device].Kind == driver.KindPassthrough {
			return true
		}
	}
	for id := range all {
		if all[id].Kind == driver.KindPassthrough && inventory.WithGuest(root, all[id].Hardware) {
			return true
		}
	}
	return false
}

// vendorsOf returns how many devices of each vendor, of drivers that run here, could be read.
func vendorsOf(all driver.Inventory) map[string]int {
	vendors := map[string]int{}
	for id := range all {
		if e := all[id]; e.Local && !e.DriverGone && e.Kind == driver.KindDevice {
			vendors[e.Vendor]++
		}
	}
	return vendors
}

// slices returns the devices of ResourceSlices: of the file if there is one, else of the API
// server.
func (n *Node) slices() driver.Inventory {
	if n.file != nil || n.kube == nil {
		return n.listed
	}
	listed, _ := n.kube.Inventory()
	return listed
}

// withCDI returns the inventory with the devices that are, or recently were, held, that no slice
// has, and that CDI specs or their names describe.
func (n *Node) withCDI(allocations []podresources.Allocation, listed driver.Inventory, now time.Time) driver.Inventory {
	for i := range allocations {
		a := &allocations[i]
		if _, ok := listed[a.Device]; ok {
			continue
		}
		d, known := n.cdiIDs[a.Device]
		h, found := n.cdi.Lookup(a.CDI)
		h, named := inventory.Named(a.Device, h)
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

// loadFile reads the inventory file and returns whether it has changed. If it can not be read or
// parsed, what was known before is kept.
func (n *Node) loadFile() (bool, error) {
	data, changed, err := n.file.Load()
	if err != nil || !changed {
		return false, err
	}
	listed, slicesRejected, err := inventory.ParseSlices(data, n.name)
	if err != nil {
		return false, err
	}
	facts, claimsRejected, err := kube.ParseClaims(data)
	if err != nil {
		return false, err
	}
	for claim, f := range facts {
		f.Read = n.file.Modified()
		facts[claim] = f
	}
	n.listed = listed
	n.claims.Store(&facts)
	n.metrics.Reject(slicesRejected.Of(kube.SourceSlices)...)
	n.metrics.Reject(claimsRejected.Of(kube.SourceClaims)...)
	n.log.Debug("inventory file read", "devices", len(listed), "claims", len(facts))
	return true, nil
}

// withRules returns the inventory with the taints that DeviceTaintRules set. The argument is not
// changed.
func (n *Node) withRules(listed driver.Inventory) driver.Inventory {
	if n.kube == nil {
		return listed
	}
	tainted, surplus := inventory.AddTaints(listed, n.kube.TaintRules())
	if surplus > 0 {
		n.metrics.Reject(driver.Rejection{
			Input: kube.SourceTaintRules, Reason: driver.ReasonTooManyTaints, Count: surplus,
		})
	}
	return tainted
}

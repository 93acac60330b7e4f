package join

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Proximity is the proximity of two devices in a machine.
type Proximity string

// The proximities, the nearest first.
const (
	ProximityUnknown Proximity = ""
	SameSwitch       Proximity = "pcie_switch" // same root port: one PCIe switch, or one card
	SameRoot         Proximity = "pcie_root"   // same PCIe root complex
	SameNUMANode     Proximity = "numa_node"   // same NUMA node, different root complexes
	Across           Proximity = "across"      // different NUMA nodes
)

// Proximities returns the proximities, without ProximityUnknown.
func Proximities() []Proximity { return []Proximity{SameSwitch, SameRoot, SameNUMANode, Across} }

// Topology is the proximity of a pod's nearest two and farthest two devices. The zero value means
// that the pod has fewer than two devices, or that too little is known.
type Topology struct{ Closest, Farthest Proximity }

// position is a device's position in the machine. An empty field is unknown.
type position struct {
	port  string // address of the root port
	roots string // root complexes, separated by commas: CPUs have several
	numa  string
}

// to returns the proximity of two different devices.
func (p position) to(other position) Proximity {
	switch {
	case p.port != "" && p.port == other.port:
		return SameSwitch
	case commonRoot(p.roots, other.roots):
		return SameRoot
	case p.numa == "" || other.numa == "":
		return ProximityUnknown
	case p.numa == other.numa:
		return SameNUMANode
	default:
		return Across
	}
}

func commonRoot(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	others := strings.Split(b, ",")
	for root := range strings.SplitSeq(a, ",") {
		if slices.Contains(others, root) {
			return true
		}
	}
	return false
}

// spread returns the topology of devices at these positions. Unknown positions are left out. If two
// of the others can't be compared, the result is the zero value, since no answer would be certain.
func spread(positions []position) Topology {
	count := map[position]int{}
	for _, p := range positions {
		if p != (position{}) {
			count[p]++
		}
	}
	var found []Proximity
	for p, n := range count {
		for other := range count {
			if p != other || n > 1 {
				found = append(found, p.to(other))
			}
		}
	}
	if len(found) == 0 || slices.Contains(found, ProximityUnknown) {
		return Topology{}
	}
	order := func(a, b Proximity) int {
		all := Proximities()
		return slices.Index(all, a) - slices.Index(all, b)
	}
	return Topology{Closest: slices.MinFunc(found, order), Farthest: slices.MaxFunc(found, order)}
}

// Topologies returns the topology of each pod whose devices can be compared. It uses the inventory,
// the sources and the paths of PCI devices. Partitions of one device count as one device, and so do
// the CPUs of one NUMA node. Devices held with admin access do not count.
func Topologies(devices []Device, paths map[string]driver.PCIPath) map[podresources.Pod]Topology {
	named := make(map[driver.ID]*Device, len(devices))
	for i := range devices {
		named[devices[i].ID] = &devices[i]
	}
	held := map[podresources.Pod]map[string]position{} // by hardware identity
	for i := range devices {
		d := &devices[i]
		if d.Entry.Kind == driver.KindChannel {
			continue
		}
		key, at := whole(d, named, paths)
		for pod := range d.owners() {
			if held[pod] == nil {
				held[pod] = map[string]position{}
			}
			held[pod][key] = held[pod][key].or(at)
		}
	}
	out := map[podresources.Pod]Topology{}
	for pod, at := range held {
		positions := make([]position, 0, len(at))
		for _, p := range at {
			positions = append(positions, p)
		}
		if t := spread(positions); t != (Topology{}) {
			out[pod] = t
		}
	}
	return out
}

// owners returns the pods that hold the device without admin access.
func (d *Device) owners() map[podresources.Pod]bool {
	out := map[podresources.Pod]bool{}
	for i := range d.Shares {
		if !d.Shares[i].Admin {
			for _, pod := range d.Shares[i].Pods {
				out[pod] = true
			}
		}
	}
	return out
}

// whole returns the identity and position of a device's hardware; for a partition, of its parent's.
func whole(d *Device, named map[driver.ID]*Device, paths map[string]driver.PCIPath) (string, position) {
	own := &d.Entry.Hardware
	at := positionOf(own, paths)
	if own.Parent == "" {
		return identity(d.ID, own), at
	}
	parent := named[driver.ID{Driver: d.ID.Driver, Pool: d.ID.Pool, Device: d.Parent}]
	if parent == nil {
		h := driver.Hardware{UUID: own.Parent}
		if pci := driver.NormalizePCI(own.Parent); pci != "" {
			h = driver.Hardware{PCI: pci}
		}
		return identity(d.ID, &h), at.or(positionOf(&h, paths))
	}
	return identity(parent.ID, &parent.Entry.Hardware), at.or(positionOf(&parent.Entry.Hardware, paths))
}

// identity returns a key that is equal for devices with the same hardware.
func identity(id driver.ID, h *driver.Hardware) string {
	switch {
	case len(h.CPUs) > 0 && h.NUMANode != "":
		return "cpus " + h.NUMANode
	case h.PCI != "":
		return "pci " + h.PCI
	case h.UUID != "":
		return "uuid " + strings.ToLower(h.UUID)
	default:
		return "device " + id.String()
	}
}

// positionOf returns the position of hardware. The driver's data has precedence over sysfs.
func positionOf(h *driver.Hardware, paths map[string]driver.PCIPath) position {
	path := paths[h.PCI]
	return position{path.Port, h.PCIeRoot, h.NUMANode}.or(position{roots: path.Root, numa: path.NUMANode})
}

// or returns the position with unknown fields filled from another one.
func (p position) or(other position) position {
	return position{cmp.Or(p.port, other.port), cmp.Or(p.roots, other.roots), cmp.Or(p.numa, other.numa)}
}

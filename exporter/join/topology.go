package join

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Proximity is how near two devices of a machine are to each other.
type Proximity string

// The proximities, the nearest first.
const (
	ProximityUnknown Proximity = ""
	SameSwitch       Proximity = "pcie_switch" // behind one root port: of one PCIe switch, or of one card
	SameRoot         Proximity = "pcie_root"   // below one PCIe root complex
	SameNUMANode     Proximity = "numa_node"   // of one NUMA node, below different root complexes
	Across           Proximity = "across"      // of different NUMA nodes
)

// Proximities returns the proximities, without ProximityUnknown.
func Proximities() []Proximity { return []Proximity{SameSwitch, SameRoot, SameNUMANode, Across} }

// Topology is how near a pod's devices are to each other: the nearest two and the farthest two. The
// zero value is that of a pod with fewer than two devices, or of which not enough is known.
type Topology struct{ Closest, Farthest Proximity }

// position is where a device is in the machine. An empty field is unknown.
type position struct {
	port  string // address of the root port
	roots string // root complexes, separated by commas: CPUs have several
	numa  string
}

// to returns how near two different devices are.
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

// spread returns the topology of devices at these positions. Devices of which nothing is known are
// left out; if two of the others can't be compared, neither answer would be certain, and there is
// none.
func spread(positions []position) Topology {
	count := map[position]int{}
	for _, p := range positions {
		if p != (position{}) {
			count[p]++
		}
	}
	var found []Proximity
	compared := map[position]bool{}
	for p, n := range count {
		if n > 1 {
			found = append(found, p.to(p))
		}
		for other := range compared {
			found = append(found, p.to(other))
		}
		compared[p] = true
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

// Topologies returns the topology of each pod whose devices can be compared, by what the inventory
// and the sources say of the hardware and by the paths of PCI devices. Partitions of one device are
// one device, and so are the CPUs of one NUMA node; devices that a pod only observes (admin access)
// do not count.
func Topologies(devices []Device, paths map[string]driver.PCIPath) map[podresources.Pod]Topology {
	named := make(map[driver.ID]*Device, len(devices))
	for i := range devices {
		named[devices[i].ID] = &devices[i]
	}
	held := map[podresources.Pod]map[string]position{} // by what identifies the hardware
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

// whole returns what identifies the hardware that a device is, or is a part of, and its position.
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

// identity returns what two devices have in common that are the same hardware.
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

// positionOf returns the position of hardware. What drivers publish comes before what sysfs says.
func positionOf(h *driver.Hardware, paths map[string]driver.PCIPath) position {
	path := paths[h.PCI]
	return position{path.Port, h.PCIeRoot, h.NUMANode}.or(position{roots: path.Root, numa: path.NUMANode})
}

// or returns the position with what is unknown from another one.
func (p position) or(other position) position {
	return position{cmp.Or(p.port, other.port), cmp.Or(p.roots, other.roots), cmp.Or(p.numa, other.numa)}
}

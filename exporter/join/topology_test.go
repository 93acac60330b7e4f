package join

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// part is a device of a pod in a test.
type part struct {
	hardware driver.Hardware
	parent   string // name of the device that it is a part of
	admin    bool
	other    bool // another pod's
}

// machine has two sockets: on node 0 the roots 00 and 40, on node 1 the root 80. gpu 01 and nic 02
// are behind one root port, gpu 03 behind another one of the same root.
func machine() map[string]driver.PCIPath {
	return map[string]driver.PCIPath{
		"0000:01:00.0": {Root: "pci0000:00", Port: "0000:00:01.0", NUMANode: "0"},
		"0000:02:00.0": {Root: "pci0000:00", Port: "0000:00:01.0", NUMANode: "0"},
		"0000:03:00.0": {Root: "pci0000:00", Port: "0000:00:02.0", NUMANode: "0"},
		"0000:41:00.0": {Root: "pci0000:40", Port: "0000:40:01.0", NUMANode: "0"},
		"0000:81:00.0": {Root: "pci0000:80", Port: "0000:80:01.0", NUMANode: "1"},
	}
}

func TestTopologies(t *testing.T) {
	pci := func(address string) part { return part{hardware: driver.Hardware{PCI: address}} }
	root := func(root, numa string) part { return part{hardware: driver.Hardware{PCIeRoot: root, NUMANode: numa}} }
	cpu := func(n int, root, numa string) part {
		return part{hardware: driver.Hardware{CPUs: []int{n}, PCIeRoot: root, NUMANode: numa}}
	}
	slice := func(h driver.Hardware, parent string) part {
		h.Kind = driver.KindPartition
		return part{hardware: h, parent: parent}
	}
	whole := driver.Hardware{UUID: "GPU-1", PCI: "0000:01:00.0"}
	for _, tt := range []struct {
		name  string
		parts []part
		want  Topology
	}{
		{"one device", []part{pci("0000:01:00.0")}, Topology{}},
		{"one switch", []part{pci("0000:01:00.0"), pci("0000:02:00.0")}, Topology{SameSwitch, SameSwitch}},
		{"one root", []part{pci("0000:01:00.0"), pci("0000:03:00.0")}, Topology{SameRoot, SameRoot}},
		{"one node", []part{pci("0000:01:00.0"), pci("0000:41:00.0")}, Topology{SameNUMANode, SameNUMANode}},
		{"two nodes", []part{pci("0000:01:00.0"), pci("0000:81:00.0")}, Topology{Across, Across}},
		{
			"near and far",
			[]part{pci("0000:01:00.0"), pci("0000:02:00.0"), pci("0000:03:00.0"), pci("0000:81:00.0")},
			Topology{SameSwitch, Across},
		},
		{"attributes alone: one root", []part{root("pci0000:00", ""), root("pci0000:00", "")}, Topology{SameRoot, SameRoot}},
		{"two roots of unknown nodes", []part{root("pci0000:00", ""), root("pci0000:40", "0")}, Topology{}},
		{
			"two roots of one node",
			[]part{root("pci0000:00", "0"), root("pci0000:40", "0")},
			Topology{SameNUMANode, SameNUMANode},
		},
		{"what is published comes first", []part{
			pci("0000:01:00.0"), {hardware: driver.Hardware{PCI: "0000:81:00.0", NUMANode: "0"}},
		}, Topology{SameNUMANode, SameNUMANode}},
		{"a device of which nothing is known", []part{
			pci("0000:01:00.0"), pci("0000:03:00.0"), {hardware: driver.Hardware{UUID: "x"}},
		}, Topology{SameRoot, SameRoot}},
		{"a device that can't be compared with one of two", []part{
			pci("0000:01:00.0"), pci("0000:02:00.0"), root("pci0000:c0", ""),
		}, Topology{}},
		{"a channel", []part{
			pci("0000:01:00.0"), {hardware: driver.Hardware{Kind: driver.KindChannel, NUMANode: "1"}},
		}, Topology{}},
		{"one device of two drivers", []part{pci("0000:01:00.0"), pci("0000:01:00.0")}, Topology{}},
		{"a device that it only observes", []part{
			pci("0000:01:00.0"), {hardware: driver.Hardware{PCI: "0000:81:00.0"}, admin: true},
		}, Topology{}},
		{"another pod's device", []part{
			pci("0000:01:00.0"), {hardware: driver.Hardware{PCI: "0000:81:00.0"}, other: true},
		}, Topology{}},
		{"CPUs of one node", []part{cpu(0, "", "0"), cpu(1, "", "0")}, Topology{}},
		{"CPUs of two nodes", []part{cpu(0, "", "0"), cpu(1, "", "1")}, Topology{Across, Across}},
		{"a GPU and CPUs of its node", []part{pci("0000:01:00.0"), cpu(0, "", "0")}, Topology{SameNUMANode, SameNUMANode}},
		{
			"a GPU and CPUs with known roots",
			[]part{pci("0000:41:00.0"), cpu(0, "pci0000:00,pci0000:40", "0")},
			Topology{SameRoot, SameRoot},
		},
		{"partitions of one GPU", []part{
			{hardware: whole, other: true},
			slice(driver.Hardware{Parent: "GPU-1"}, "d0"),
			slice(driver.Hardware{Parent: "GPU-1"}, "d0"),
		}, Topology{}},
		{"a partition and a NIC at the switch of its GPU", []part{
			{hardware: whole, other: true}, slice(driver.Hardware{Parent: "GPU-1"}, "d0"), pci("0000:02:00.0"),
		}, Topology{SameSwitch, SameSwitch}},
		{"a partition of a GPU that is no device", []part{
			slice(driver.Hardware{Parent: "0000:81:00.0"}, "0000:81:00.0"), pci("0000:02:00.0"),
		}, Topology{Across, Across}},
		{"virtual functions of one NIC", []part{
			slice(driver.Hardware{PCI: "0000:02:00.1", Parent: "0000:02:00.0", NUMANode: "0"}, ""),
			slice(driver.Hardware{PCI: "0000:02:00.2", Parent: "0000:02:00.0", NUMANode: "0"}, ""),
		}, Topology{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Topologies(devicesOf(tt.parts), machine())[podresources.Pod{Namespace: "a", Name: "pod"}]
			expect.Is(t, got, tt.want, "got")
			reversed := slices.Clone(devicesOf(tt.parts))
			slices.Reverse(reversed)
			expect.Is(t, Topologies(reversed, machine())[podresources.Pod{Namespace: "a", Name: "pod"}], got, "in another order")
		})
	}
}

// devicesOf returns the parts as devices d0, d1, … that are held.
func devicesOf(parts []part) []Device {
	var out []Device
	for i, p := range parts {
		pod := podresources.Pod{Namespace: "a", Name: "pod"}
		if p.other {
			pod.Name = "other"
		}
		s := Share{Pods: []podresources.Pod{pod}}
		s.Admin = p.admin
		out = append(out, Device{
			ID: driver.ID{Driver: "x", Pool: "n", Device: fmt.Sprintf("d%d", i)}, Parent: p.parent,
			Entry: driver.Entry{Hardware: p.hardware}, Shares: []Share{s},
		})
	}
	return out
}

// TestSpreadDrawn compares the topology with a naive model: each pair of devices is looked up by
// walking from the devices to the root of a tree, and the extremes are taken of all pairs.
func TestSpreadDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type leaf struct{ node, root, port int } // of the tree; ports and roots have numbers of their own
		leaves := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) leaf {
			node := rapid.IntRange(0, 1).Draw(t, "node")
			root := 2*node + rapid.IntRange(0, 1).Draw(t, "root")
			return leaf{node, root, 2*root + rapid.IntRange(0, 1).Draw(t, "port")}
		}), 0, 9).Draw(t, "leaves")
		paths := map[string]driver.PCIPath{}
		var parts []part
		for i, l := range leaves {
			address := fmt.Sprintf("0000:%02x:00.0", 0x10+i)
			paths[address] = driver.PCIPath{
				Root: fmt.Sprintf("pci0000:%02x", l.root), Port: fmt.Sprintf("0000:%02x:01.%d", l.root, l.port),
				NUMANode: fmt.Sprint(l.node),
			}
			parts = append(parts, part{hardware: driver.Hardware{PCI: address}})
		}
		distance := func(a, b leaf) int { // steps up until the two meet
			switch {
			case a == b:
				return 0
			case a.root == b.root:
				return 1
			case a.node == b.node:
				return 2
			default:
				return 3
			}
		}
		names := []Proximity{"pcie_switch", "pcie_root", "numa_node", "across"}
		var want Topology
		low, high := len(names), -1
		for i, a := range leaves {
			for _, b := range leaves[:i] {
				low, high = min(low, distance(a, b)), max(high, distance(a, b))
			}
		}
		if high >= 0 {
			want = Topology{names[low], names[high]}
		}
		got := Topologies(devicesOf(parts), paths)[podresources.Pod{Namespace: "a", Name: "pod"}]
		must.That(t, got == want, "got %v, want %v of %v", got, want, leaves)
	})
}

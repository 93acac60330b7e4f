package join

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A partition that a source knows by the number that another one gives it alone is the same device,
// whatever the order within the sources; of a source that comes before it is not.
func TestPartitionByNumber(t *testing.T) {
	inventory := driver.Inventory{jointest.ID("mig"): {Hardware: driver.Hardware{
		Kind: driver.KindPartition, Parent: "GPU-1", Placement: "nvidia/0/19/2",
	}}}
	first := jointest.Sample(
		driver.Hardware{UUID: "MIG-a", Parent: "GPU-1", Placement: "nvidia/0/19/2", Instance: "9/0"}, jointest.Watts(1),
	)
	energy := driver.Reading{Quantity: driver.Energy, Value: 2}
	for _, tc := range []struct {
		second driver.Hardware
		want   int
	}{
		{driver.Hardware{Parent: "gpu-1", Instance: "9/0"}, 2},
		{driver.Hardware{Parent: "GPU-1", Instance: "9"}, 2}, // of the only one whose number begins so
		{driver.Hardware{Parent: "GPU-1", Instance: "8/0"}, 1},
		{driver.Hardware{Parent: "GPU-1", Instance: "0"}, 1},
		{driver.Hardware{Parent: "GPU-2", Instance: "9/0"}, 1},
		{driver.Hardware{Parent: "GPU-1"}, 1},
	} {
		a := SourceSamples{Name: "a", Samples: []driver.Sample{first}}
		b := SourceSamples{Name: "b", Samples: []driver.Sample{
			jointest.Sample(tc.second, energy, driver.Reading{Quantity: driver.Power, Value: 9}),
		}}
		d := Join(Input{Inventory: inventory, Sources: []SourceSamples{a, b}}).Devices[0]
		expect.That(t, len(d.Readings) == tc.want && d.Readings[0].Origin.String() == "a" && d.Readings[0].Value == 1,
			"%v: readings %v", tc.second, d.Readings)
		expect.That(t, d.Entry.UUID == "MIG-a", "the device's UUID is %q", d.Entry.UUID)
	}
}

// The beginning of the numbers of several partitions names none of them.
func TestPartitionBySharedNumber(t *testing.T) {
	inventory := driver.Inventory{}
	var known []driver.Sample
	for _, number := range []string{"9/0", "9/1"} {
		inventory[jointest.ID(number)] = driver.Entry{Hardware: driver.Hardware{
			Kind: driver.KindPartition, Parent: "GPU-1", UUID: "MIG-" + number,
		}}
		known = append(known, jointest.Sample(
			driver.Hardware{UUID: "MIG-" + number, Parent: "GPU-1", Instance: number}, jointest.Watts(1)))
	}
	r := Join(Input{Inventory: inventory, Sources: []SourceSamples{{Name: "a", Samples: known}, {
		Name: "b", Samples: []driver.Sample{
			jointest.Sample(driver.Hardware{Parent: "GPU-1", Instance: "9"}, driver.Reading{Quantity: driver.Energy, Value: 2}),
		},
	}}})
	for _, d := range r.Devices {
		expect.That(t, len(d.Readings) == 1, "%v: readings %v", d.ID, d.Readings)
	}
}

// A source completes a partition's part of its parent, unless the inventory knows it.
func TestParentShare(t *testing.T) {
	for _, tc := range []struct{ listed, read, want float64 }{
		{0, 0.25, 0.25}, {0.5, 0.25, 0.5}, {0, 0, 0}, {0, 1.5, 0}, {0, math.NaN(), 0},
	} {
		mig := driver.Hardware{UUID: "MIG-a", Kind: driver.KindPartition}
		read := mig
		mig.ParentShare, read.ParentShare = tc.listed, tc.read
		d := Join(Input{
			Inventory: driver.Inventory{jointest.ID("mig"): {Hardware: mig}},
			Sources:   []SourceSamples{{Name: "a", Samples: []driver.Sample{jointest.Sample(read, jointest.Watts(1))}}},
		}).Devices[0]
		expect.Is(t, d.Entry.ParentShare, tc.want, "listed %v, read %v", tc.listed, tc.read)
	}
}

// The driver's version is that of the first source that reports it, else the slice's.
func TestDriverVersion(t *testing.T) {
	hardware := func(version string) driver.Hardware { return driver.Hardware{UUID: "x", DriverVersion: version} }
	for _, tc := range []struct{ listed, first, second, want string }{
		{"550.163.1", "550.163.01", "550.163.02", "550.163.01"},
		{"550.163.1", "", "550.163.01", "550.163.01"},
		{"550.163.1", "", "", "550.163.1"},
		{"550.163.1", "\xff", "", "550.163.1"},
		{"", "550.163.01", "", "550.163.01"},
	} {
		d := Join(Input{
			Inventory: driver.Inventory{jointest.ID("0"): {Hardware: hardware(tc.listed)}},
			Sources: []SourceSamples{
				{Name: "first", Samples: []driver.Sample{jointest.Sample(hardware(tc.first), jointest.Watts(1))}},
				{Name: "second", Samples: []driver.Sample{jointest.Sample(hardware(tc.second), jointest.Watts(1))}},
			},
		}).Devices[0]
		expect.Is(t, d.Entry.DriverVersion, tc.want, "%+v", tc)
	}
}

// A source that reads a log, at any place in the list, owns its counters from its first record on,
// and is not telemetry of the device. Other sources keep their other kinds.
func TestWitness(t *testing.T) {
	inventory := driver.Inventory{jointest.ID("0"): {Hardware: driver.Hardware{UUID: "GPU-0", PCI: "0000:01:00.0"}}}
	counts := func(h driver.Hardware, kind string, codes ...string) driver.Sample {
		s := driver.Sample{Hardware: h}
		for _, code := range codes {
			s.Readings = append(s.Readings, driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{kind, code}, Value: 1, At: jointest.Start(),
			})
		}
		return s
	}
	log := counts(driver.Hardware{PCI: "0000:01:00.0"}, "xid", "31")
	log.FromLog = true
	log.Events = []driver.Event{{
		Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, At: jointest.Start(), PID: 7, PodUID: "gone",
	}}
	library := counts(driver.Hardware{UUID: "GPU-0"}, "xid", "31", "79")
	ecc := counts(driver.Hardware{UUID: "GPU-0"}, "ecc_corrected", "")
	library.Readings = append(library.Readings, ecc.Readings...)
	sources := []SourceSamples{{Name: "nvml", Samples: []driver.Sample{library}}, {Name: "kmsg"}}
	owners := func() string {
		d := Join(Input{Inventory: inventory, Sources: sources}).Devices[0]
		var out []string
		for _, r := range d.Readings {
			out = append(out, r.Origin.String()+" "+r.Labels[0]+r.Labels[1])
		}
		for _, e := range d.Events {
			out = append(out, fmt.Sprint("event ", e.PID, " ", e.Named))
		}
		return fmt.Sprint(out, d.Missing)
	}
	if got, want := owners(), "[nvml ecc_corrected nvml xid31 nvml xid79]"; got != want {
		t.Errorf("before the first record: %s, want %s", got, want)
	}
	sources[1].Samples = []driver.Sample{log}
	if got, want := owners(), "[nvml ecc_corrected kmsg xid31 event 7 true]"; got != want {
		t.Errorf("from the first record on: %s, want %s", got, want)
	}
	sources[0].Samples = nil
	if got, want := owners(), "[kmsg xid31 event 7 true]"+string(MissingNoSource); got != want {
		t.Errorf("without telemetry: %s, want %s", got, want)
	}
}

// The text of an origin has all that is known of it.
func TestOrigin(t *testing.T) {
	for computed := range 2 * DividedByShare {
		want := Origin{"nvml", computed}
		if got := ParseOrigin(want.String()); got != want {
			t.Errorf("%v is read as %v", want, got)
		}
	}
	if got := (Origin{"drm", Estimated | Divided}).String(); got != "drm (estimate) (divided)" {
		t.Errorf("got %q", got)
	}
}

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

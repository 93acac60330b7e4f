package join

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// drawSources draws sources that read some of two devices, by UUID or by PCI address, and some
// quantities of them, among them some that are not to be believed.
func drawSources(t *rapid.T) []SourceSamples {
	readings := []driver.Reading{
		{Quantity: driver.Power},
		{Quantity: driver.Energy},
		{Quantity: driver.Utilization},
		{Quantity: driver.EngineUtilization, Labels: driver.Labels{"sm"}},
		{Quantity: driver.EngineUtilization, Labels: driver.Labels{"dram"}},
		{Quantity: driver.Temperature, Labels: driver.Labels{"gpu"}},
		{Quantity: driver.Temperature, Labels: driver.Labels{"memory"}},
		{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}},
		{Quantity: driver.IOBytes, Labels: driver.Labels{"nvlink", "receive"}},
		{Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}},
		{Quantity: driver.Errors, Labels: driver.Labels{"xid", "79"}},
		{Quantity: driver.Errors, Labels: driver.Labels{"pcie_replay"}},
		{Quantity: driver.Health, Labels: driver.Labels{"healthy"}},
		{Quantity: driver.Health, Labels: driver.Labels{"unhealthy"}},
	}
	var sources []SourceSamples
	for i := range rapid.IntRange(1, 4).Draw(t, "sources") {
		source := SourceSamples{Name: fmt.Sprintf("source%d", i)}
		for d := range 2 {
			h := driver.Hardware{UUID: fmt.Sprintf("GPU-%d", d)}
			if rapid.Bool().Draw(t, "by PCI address") {
				h = driver.Hardware{PCI: fmt.Sprintf("0000:0%d:00.0", d)}
			}
			s := driver.Sample{Hardware: h}
			for _, r := range readings {
				if rapid.Bool().Draw(t, "read") {
					r.Value, r.At = rapid.SampledFrom([]float64{0.25, 0.5, 1, math.Inf(1)}).Draw(t, "value"), jointest.Start()
					s.Readings = append(s.Readings, r)
				}
			}
			source.Samples = append(source.Samples, s)
		}
		sources = append(sources, source)
	}
	return sources
}

// owned joins, and checks that nothing is there twice.
func owned(t *rapid.T, sources []SourceSamples) []Device {
	in := Input{Inventory: driver.Inventory{}, Sources: sources}
	for d := range 2 {
		in.Inventory[jointest.ID(fmt.Sprint(d))] = driver.Entry{Hardware: driver.Hardware{
			UUID: fmt.Sprintf("GPU-%d", d), PCI: fmt.Sprintf("0000:0%d:00.0", d),
		}}
	}
	devices := Join(in).Devices
	for _, d := range devices {
		for i, r := range d.Readings {
			must.That(t, i <= 0 || compareReadings(&d.Readings[i-1], &r) < 0,
				"%v%q of %v is there twice, or out of order", r.Quantity, r.Labels, d.ID)
		}
	}
	return devices
}

// ownedPart is what has one owner: a quantity of a device and, where its first label has a closed
// list of values that do not exclude each other, one of these.
func ownedPart(q driver.Quantity, labels driver.Labels) string {
	if spec := q.Spec(); ownedByLabel(&spec) {
		return q.String() + " " + labels[0]
	}
	return q.String()
}

// The rule of owners, for all sources alike: of each part the first source, in order of precedence,
// that has a reading to be believed owns it, and all that is shown of the part is its own; what
// others read of it changes nothing.
func TestOneOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := drawSources(t)
		devices := owned(t, sources)
		for d, device := range devices {
			want := map[string]string{}
			for _, s := range sources {
				for _, r := range s.Samples[d].Readings {
					if name := ownedPart(r.Quantity, r.Labels); !math.IsInf(r.Value, 1) && want[name] == "" {
						want[name] = s.Name
					}
				}
			}
			got := map[string]string{}
			for _, r := range device.Readings {
				name := ownedPart(r.Quantity, r.Labels)
				if got[name] != "" && got[name] != r.Origin.String() {
					t.Fatalf("%s of %v is of %s and %s", name, device.ID, got[name], r.Origin.String())
				}
				got[name] = r.Origin.String()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("owners on %v (-want +got):\n%s", device.ID, diff)
			}
			for i := range sources { // readings of a source that is not the owner are ignored
				sources[i].Samples[d].Readings = slices.DeleteFunc(sources[i].Samples[d].Readings, func(r driver.Reading) bool {
					return !math.IsInf(r.Value, 1) && want[ownedPart(r.Quantity, r.Labels)] != sources[i].Name
				})
			}
		}
		// That another source read a utilization may contradict the owner's, and is kept apart.
		ignore := []cmp.Option{cmpopts.IgnoreUnexported(Reading{}), cmpopts.IgnoreFields(Device{}, "OtherUtilization")}
		if diff := cmp.Diff(devices, owned(t, sources), ignore...); diff != "" {
			t.Fatalf("readings that own nothing change (-with +without):\n%s", diff)
		}
	})
}

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

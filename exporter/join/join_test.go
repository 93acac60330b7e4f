package join

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// joined joins with one source and returns the devices by name.
func joined(inventory map[string]driver.Hardware, held []string, samples ...driver.Sample) map[string]*Device {
	in := Input{Inventory: driver.Inventory{}, Sources: []SourceSamples{{Name: "a", Samples: samples}}}
	for name, h := range inventory {
		in.Inventory[jointest.ID(name)] = driver.Entry{Hardware: h}
	}
	for _, name := range held {
		in.View.Allocations = append(in.View.Allocations, jointest.Allocation(name, "c-"+name, "p0"))
	}
	out := map[string]*Device{}
	devices := Join(in).Devices
	for i := range devices {
		out[devices[i].ID.Device] = &devices[i]
	}
	return out
}

func TestMatch(t *testing.T) {
	for name, tc := range map[string]struct {
		device, sample driver.Hardware
		driver, name   string // of the sample
		want           bool
	}{
		"uuid":       {driver.Hardware{UUID: "GPU-1"}, driver.Hardware{UUID: "gpu-1"}, "", "", true},
		"other uuid": {driver.Hardware{UUID: "GPU-1"}, driver.Hardware{UUID: "GPU-2"}, "", "", false},
		"pci": {
			driver.Hardware{PCI: "0000:01:00.0"}, driver.Hardware{PCI: "0000:01:00.0", UUID: "x"}, "", "", true,
		},
		"pci, not the uuid": {
			driver.Hardware{PCI: "0000:01:00.0", UUID: "y"}, driver.Hardware{PCI: "0000:01:00.0", UUID: "x"}, "", "", false,
		},
		"uuid, not the pci": {
			driver.Hardware{PCI: "0000:02:00.0", UUID: "x"}, driver.Hardware{PCI: "0000:01:00.0", UUID: "x"}, "", "", false,
		},
		"placement": {
			driver.Hardware{Placement: "v/0/19/2"}, driver.Hardware{Placement: "v/0/19/2", UUID: "x"}, "", "", true,
		},
		"other placement": {
			driver.Hardware{Placement: "v/0/19/2"}, driver.Hardware{Placement: "v/0/19/1", UUID: "x"}, "", "", false,
		},
		"placement, not the uuid": {
			driver.Hardware{Placement: "v/0/19/2", UUID: "y"}, driver.Hardware{Placement: "v/0/19/2", UUID: "x"}, "", "", false,
		},
		"netdev": {driver.Hardware{NetDev: "eth1"}, driver.Hardware{NetDev: "eth1"}, "", "", true},
		"rdma":   {driver.Hardware{RDMADev: "mlx5_0"}, driver.Hardware{RDMADev: "mlx5_0"}, "", "", true},
		"node": {
			driver.Hardware{DeviceNodes: []string{"/dev/dri/card1", "/dev/dri/renderD129"}},
			driver.Hardware{DeviceNodes: []string{"/dev/dri/renderD129"}},
			"", "", true,
		},
		"serial":            {driver.Hardware{Serial: "AM5"}, driver.Hardware{Serial: "am5"}, jointest.Driver, "", true},
		"index":             {driver.Hardware{Index: "3"}, driver.Hardware{Index: "3"}, jointest.Driver, "", true},
		"other index":       {driver.Hardware{Index: "3"}, driver.Hardware{Index: "4"}, jointest.Driver, "", false},
		"index of nobody's": {driver.Hardware{Index: "3"}, driver.Hardware{Index: "3"}, "", "", false},
		"by name":           {driver.Hardware{}, driver.Hardware{}, jointest.Driver, "dev", true},
		"by another name":   {driver.Hardware{UUID: "x"}, driver.Hardware{UUID: "x"}, jointest.Driver, "other", false},
		"by another driver": {driver.Hardware{}, driver.Hardware{}, "other.example.com", "dev", false},
		"of another driver": {driver.Hardware{UUID: "x"}, driver.Hardware{UUID: "x"}, "other.example.com", "", false},
		"of the driver":     {driver.Hardware{UUID: "x"}, driver.Hardware{UUID: "x"}, jointest.Driver, "", true},
		"nothing known":     {driver.Hardware{}, driver.Hardware{}, "", "", false},
		"passed through": {
			driver.Hardware{UUID: "x", Kind: driver.KindPassthrough}, driver.Hardware{UUID: "x"}, "", "", false,
		},
		"channel": {driver.Hardware{UUID: "x", Kind: driver.KindChannel}, driver.Hardware{UUID: "x"}, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			sample := jointest.Sample(tc.sample, jointest.Watts(1))
			sample.Driver, sample.Device = tc.driver, tc.name
			d := joined(map[string]driver.Hardware{"dev": tc.device}, nil, sample)["dev"]
			if got := len(d.Readings) == 1; got != tc.want || got != (d.Missing == MissingNone) {
				t.Errorf("matched: %v, want %v; missing because of %q", got, tc.want, d.Missing)
			}
		})
	}
}

// A source that knows a device only by its RDMA device finds it by the readings of an earlier
// source: the device's slice names an interface.
func TestMatchLearnt(t *testing.T) {
	first := jointest.Sample(driver.Hardware{NetDev: "eth1", RDMADev: "mlx5_0"}, jointest.Watts(1))
	second := jointest.Sample(driver.Hardware{RDMADev: "mlx5_0"}, driver.Reading{Quantity: driver.Energy, Value: 1})
	d := Join(Input{
		Inventory: driver.Inventory{jointest.ID("nic"): {Hardware: driver.Hardware{NetDev: "eth1"}}},
		Sources: []SourceSamples{
			{Name: "a", Samples: []driver.Sample{first}}, {Name: "b", Samples: []driver.Sample{second}},
		},
	}).Devices[0]
	expect.That(t, len(d.Readings) == 2, "it has the readings %v", d.Readings)
}

// A device that a device plugin alone gives out has no driver, so that a source of a driver's
// devices reads it too.
func TestMatchPluginDevice(t *testing.T) {
	sample := jointest.Sample(driver.Hardware{UUID: "GPU-1"}, jointest.Watts(1))
	sample.Driver = "gpu.example.com"
	d := Join(Input{
		Inventory: driver.Inventory{{Driver: "example.com/gpu", Device: "GPU-1"}: {Hardware: driver.Hardware{UUID: "GPU-1"}}},
		Sources:   []SourceSamples{{Name: "a", Samples: []driver.Sample{sample}}},
	}).Devices[0]
	expect.That(t, len(d.Readings) == 1, "it has the readings %v, and is missing because of %q", d.Readings, d.Missing)
}

// Estimates are not marked as measured.
func TestEstimatesAreNamed(t *testing.T) {
	h := driver.Hardware{UUID: "x"}
	sample := jointest.Sample(h, jointest.Watts(1), driver.Reading{Quantity: driver.Energy, Value: 2, Estimated: true})
	got := map[driver.Quantity]string{}
	for _, r := range joined(map[string]driver.Hardware{"dev": h}, nil, sample)["dev"].Readings {
		got[r.Quantity] = r.Origin.String()
	}
	expect.Equal(t, "sources", map[driver.Quantity]string{driver.Power: "a", driver.Energy: "a (estimate)"}, got)
}

func TestGaps(t *testing.T) {
	mig := driver.Hardware{UUID: "MIG-1", Kind: driver.KindPartition}
	for name, tc := range map[string]struct {
		device  *driver.Hardware // nil: not in the inventory
		held    bool
		samples []driver.Sample
		want    MissingReason
	}{
		"read": {&driver.Hardware{UUID: "x"}, false, []driver.Sample{
			jointest.Sample(driver.Hardware{UUID: "x"}, jointest.Watts(1)),
		}, MissingNone},
		"no source at all": {&driver.Hardware{UUID: "x"}, true, nil, MissingNoSource},
		"no source of the driver": {&driver.Hardware{UUID: "x"}, true, []driver.Sample{
			jointest.Sample(driver.Hardware{UUID: "unknown"}, jointest.Watts(1)),
		}, MissingNoSource},
		"the driver's others are read": {&driver.Hardware{UUID: "x"}, true, []driver.Sample{
			jointest.Sample(driver.Hardware{UUID: "other"}, jointest.Watts(1)),
		}, MissingNoMatch},
		"a sample without readings": {
			&driver.Hardware{UUID: "x"}, false, []driver.Sample{jointest.Sample(driver.Hardware{UUID: "x"})}, MissingNoReadings,
		},
		"an error of a device that can't be read": {&driver.Hardware{UUID: "x"}, false, []driver.Sample{{
			Hardware: driver.Hardware{UUID: "x"}, Unreadable: true,
			Readings: []driver.Reading{
				{Quantity: driver.Errors, Labels: driver.Labels{"xid", "79"}, Value: 1, At: jointest.Start()},
			},
		}}, MissingUnreadable},
		"a sample of unusable readings": {&driver.Hardware{UUID: "x"}, false, []driver.Sample{
			jointest.Sample(driver.Hardware{UUID: "x"}, jointest.Watts(-1)),
		}, MissingRejected},
		"held, and in no inventory": {
			nil, true, []driver.Sample{jointest.Sample(driver.Hardware{UUID: "other"}, jointest.Watts(1))}, MissingNoInventory,
		},
		"a partition on paper": {&mig, false, []driver.Sample{
			jointest.Sample(driver.Hardware{UUID: "other"}, jointest.Watts(1)),
		}, MissingNotInstantiated},
		"a partition that is held": {
			&mig, true, []driver.Sample{jointest.Sample(driver.Hardware{UUID: "other"}, jointest.Watts(1))}, MissingNoMatch,
		},
		"a partition that is read": {
			&mig, false, []driver.Sample{jointest.Sample(driver.Hardware{UUID: "MIG-1"}, jointest.Watts(1))}, MissingNone,
		},
		"a device that can't be read": {
			&driver.Hardware{UUID: "x"}, false,
			[]driver.Sample{{Hardware: driver.Hardware{UUID: "x"}, Unreadable: true}},
			MissingUnreadable,
		},
		"a partition of which nothing is to be read": {
			&mig, false, []driver.Sample{jointest.Sample(driver.Hardware{UUID: "MIG-1"})}, MissingNoReadings,
		},
		"what nothing can read": {&driver.Hardware{Kind: driver.KindPassthrough}, true, nil, MissingNoSource},
		"another identity's hardware": {&driver.Hardware{
			UUID: "other",
		}, false, []driver.Sample{jointest.Sample(driver.Hardware{UUID: "other"}, jointest.Watts(1))}, MissingDuplicate},
		"the held identity's hardware": {&driver.Hardware{
			UUID: "other",
		}, true, []driver.Sample{jointest.Sample(driver.Hardware{UUID: "other"}, jointest.Watts(1))}, MissingNone},
	} {
		t.Run(name, func(t *testing.T) {
			inventory := map[string]driver.Hardware{"beside": {UUID: "other"}} // sorted before dev
			if tc.device != nil {
				inventory["dev"] = *tc.device
			}
			var held []string
			if tc.held {
				held = []string{"dev"}
			}
			d := joined(inventory, held, tc.samples...)
			expect.Is(t, d["dev"].Missing, tc.want, "the reason")
			if tc.held && tc.want == MissingNone && d["beside"].Missing != MissingDuplicate {
				t.Errorf("the reason of the other device is %q, want %q", d["beside"].Missing, MissingDuplicate)
			}
		})
	}
}

// Device nodes that a CDI spec gives to all devices of a claim do not identify the hardware. A
// device's own node does.
func TestSharedNodes(t *testing.T) {
	all := []string{"/dev/gpu0", "/dev/gpu1", "/dev/gpuctl"}
	samples := []driver.Sample{
		jointest.Sample(driver.Hardware{UUID: "0", DeviceNodes: []string{"/dev/gpuctl", "/dev/gpu0"}}, jointest.Watts(1)),
		jointest.Sample(driver.Hardware{UUID: "1", DeviceNodes: []string{"/dev/gpuctl", "/dev/gpu1"}}, jointest.Watts(2)),
	}
	for name, tc := range map[string]struct {
		a, b  []string
		wantA MissingReason
		wantB MissingReason
	}{
		"all of them":      {all, all, MissingAmbiguous, MissingAmbiguous},
		"one of their own": {all[:1], all[1:2], MissingNone, MissingNone},
		"and a common one": {
			[]string{"/dev/gpu0", "/dev/gpuctl"}, []string{"/dev/gpu1", "/dev/gpuctl"}, MissingNone, MissingNone,
		},
		"the one that is left": {[]string{"/dev/gpu0", "/dev/gpuctl"}, []string{"/dev/gpuctl"}, MissingNone, MissingNone},
	} {
		t.Run(name, func(t *testing.T) {
			d := joined(
				map[string]driver.Hardware{"a": {DeviceNodes: tc.a}, "b": {DeviceNodes: tc.b}}, []string{"a", "b"}, samples...,
			)
			expect.That(t, d["a"].Missing == tc.wantA && d["b"].Missing == tc.wantB,
				"the gaps are %q and %q, want %q and %q", d["a"].Missing, d["b"].Missing, tc.wantA, tc.wantB)
			if tc.wantA == MissingNone && (len(d["a"].Readings) != 1 || d["a"].Readings[0].Value != 1) {
				t.Errorf("a reads %v", d["a"].Readings)
			}
		})
	}
}

// A number that two devices of a driver have, those of a board or of two pools, identifies neither.
func TestSharedNumber(t *testing.T) {
	for _, h := range []driver.Hardware{{Index: "0"}, {Serial: "A1"}} {
		sample := jointest.Sample(h, jointest.Watts(1))
		sample.Driver = jointest.Driver
		other := jointest.ID("b")
		other.Pool = "other"
		in := Input{
			Inventory: driver.Inventory{jointest.ID("a"): {Hardware: h}, other: {Hardware: h}},
			Sources:   []SourceSamples{{Name: "a", Samples: []driver.Sample{sample}}},
		}
		for _, d := range Join(in).Devices {
			expect.That(t, len(d.Readings) == 0 && d.Missing == MissingAmbiguous,
				"%v, %v: readings %v, missing because of %q", h, d.ID, d.Readings, d.Missing)
		}
	}
}

// An admin claim does not make an identity the held one.
func TestAdminDoesNotHoldHardware(t *testing.T) {
	admin := jointest.Allocation("b", "root", "p0")
	admin.Admin = true
	r := Join(Input{
		Inventory: driver.Inventory{
			jointest.ID("a"): {Hardware: driver.Hardware{UUID: "x"}}, jointest.ID("b"): {Hardware: driver.Hardware{UUID: "x"}},
		},
		View: podresources.View{Allocations: []podresources.Allocation{admin}},
		Sources: []SourceSamples{
			{Name: "a", Samples: []driver.Sample{jointest.Sample(driver.Hardware{UUID: "x"}, jointest.Watts(1))}},
		},
	})
	expect.That(t, r.Devices[0].Missing == MissingNone && r.Devices[1].Missing == MissingDuplicate,
		"the gaps are %q and %q", r.Devices[0].Missing, r.Devices[1].Missing)
}

// A partition is a device of its own: values of the parent stay the parent's.
func TestPartition(t *testing.T) {
	d := joined(map[string]driver.Hardware{
		"gpu":   {UUID: "GPU-1", PCI: "0000:01:00.0"},
		"mig-0": {UUID: "MIG-0", Parent: "GPU-1", Kind: driver.KindPartition},
		"vf-0":  {PCI: "0000:01:00.1", Parent: "0000:01:00.0", Kind: driver.KindPartition},
		"mig-1": {UUID: "MIG-1", Parent: "GPU-of-elsewhere", Kind: driver.KindPartition},
	}, []string{"mig-0"},
		jointest.Sample(driver.Hardware{UUID: "GPU-1", PCI: "0000:01:00.0"}, jointest.Watts(300)),
		jointest.Sample(driver.Hardware{UUID: "MIG-0"}, driver.Reading{Quantity: driver.MemoryUsed, Value: 5}),
	)
	got := map[string]string{}
	for name, device := range d {
		got[name] = device.Parent
	}
	want := map[string]string{"gpu": "", "mig-0": "gpu", "vf-0": "gpu", "mig-1": "GPU-of-elsewhere"}
	expect.Equal(t, "parents", want, got)
	expect.That(t, len(d["mig-0"].Readings) == 1 && d["mig-0"].Readings[0].Quantity == driver.MemoryUsed,
		"the partition has %v", d["mig-0"].Readings)
	expect.That(t, d["gpu"].Attribution == AttributionNone, "the parent is divided %q", d["gpu"].Attribution)
}

func TestCPUs(t *testing.T) {
	cpu := func(n int, utilization, seconds float64) driver.Sample {
		return jointest.Sample(driver.Hardware{CPUs: []int{n}},
			driver.Reading{
				Quantity: driver.Utilization, Value: utilization,
			}, driver.Reading{Quantity: driver.ActiveSeconds, Value: seconds})
	}
	inventory := map[string]driver.Hardware{"cpus": {CPUs: []int{0, 1, 2, 3}}}
	for name, tc := range map[string]struct {
		samples []driver.Sample
		want    []float64 // utilization, active seconds; none: absent
	}{
		"mean": {
			[]driver.Sample{cpu(0, 1, 40), cpu(1, 1, 20), cpu(2, 0, 0), cpu(3, 0, 0), cpu(9, 1, 99)}, []float64{0.5, 15},
		},
		"one is away":   {[]driver.Sample{cpu(0, 1, 40), cpu(1, 1, 20), cpu(2, 0, 0)}, nil},
		"one is double": {[]driver.Sample{cpu(0, 1, 40), cpu(1, 1, 20), cpu(2, 0, 0), cpu(2, 0, 0)}, nil},
		"one more of one": {
			[]driver.Sample{cpu(3, 0, 0), cpu(0, 1, 40), cpu(1, 1, 20), cpu(2, 0, 0), cpu(2, 0, 0)}, []float64{0.5, 15},
		},
		"one is bad": {[]driver.Sample{cpu(0, 50, 40), cpu(1, 1, 20), cpu(2, 0, 0), cpu(3, 0, 0)}, []float64{15}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []float64
			d := joined(inventory, nil, tc.samples...)["cpus"]
			for _, r := range d.Readings {
				got = append(got, r.Value)
			}
			expect.Equal(t, "", tc.want, got)
			if tc.want == nil && d.Missing != MissingUnreadable {
				t.Errorf("the reason is %q", d.Missing)
			}
		})
	}
}

// Join changes no input.
func TestJoinChangesNoInput(t *testing.T) {
	input := func() Input {
		a := jointest.Allocation("gpu", "c0", "p1", "p0")
		a.Consumed = []driver.Amount{{Resource: "b", Value: 1}, {Resource: "a", Value: 1}}
		x := driver.Hardware{UUID: "x"}
		return Input{
			Inventory: driver.Inventory{
				jointest.ID("gpu"): {Hardware: x, Taints: []driver.Taint{{Key: "k"}, {Key: "k"}}, Capacity: a.Consumed},
			},
			View: podresources.View{Allocations: []podresources.Allocation{a, a, jointest.Allocation("a", "c0", "p0")}},
			Sources: []SourceSamples{{Name: "a", Samples: []driver.Sample{
				jointest.Sample(x, driver.Reading{Quantity: driver.Utilization, Value: 1.2}, jointest.Watts(1)),
				jointest.Sample(driver.Hardware{UUID: "a"}),
			}}},
		}
	}
	in := input()
	Join(in)
	expect.Equal(t, "", input(), in)
}

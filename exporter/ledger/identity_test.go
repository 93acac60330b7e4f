package ledger_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
)

// named sets an input in which the inventory knows the hardware of gpu-0, and the source reports
// the device by its name.
func named(h *exportertest.History, hardware driver.Hardware, readings ...driver.Reading) {
	id := jointest.ID("gpu-0")
	h.In.Inventory = driver.Inventory{id: {Hardware: hardware}}
	for i := range readings {
		if readings[i].At.IsZero() {
			readings[i].At = h.Now
		}
	}
	h.In.Sources = []join.SourceSamples{{Name: "a", Samples: []driver.Sample{
		{Driver: id.Driver, Device: id.Device, Readings: readings},
	}}}
}

func energyReading(value float64) driver.Reading {
	return driver.Reading{Quantity: driver.Energy, Value: value}
}

// Other hardware under the name of a device starts a new baseline: what its counter counted
// elsewhere is not charged. The same hardware continues, also if more of its identifiers become
// known.
func TestIdentity(t *testing.T) {
	const before, after = 1000.0, 9000.0 // joules
	for name, tc := range map[string]struct {
		hardware []driver.Hardware // by tick
		changes  bool
	}{
		"the same":           {hardware: []driver.Hardware{{UUID: "A", PCI: "1"}, {UUID: "A", PCI: "1"}}},
		"in another case":    {hardware: []driver.Hardware{{UUID: "A"}, {UUID: "a"}}},
		"UUID":               {hardware: []driver.Hardware{{UUID: "A"}, {UUID: "B"}}, changes: true},
		"UUID, in its place": {hardware: []driver.Hardware{{UUID: "A", PCI: "1"}, {UUID: "B", PCI: "1"}}, changes: true},
		"the same, moved":    {hardware: []driver.Hardware{{UUID: "A", PCI: "1"}, {UUID: "A", PCI: "2"}}},
		"PCI address":        {hardware: []driver.Hardware{{PCI: "1"}, {PCI: "2"}}, changes: true},
		"a PCI address, and no UUID any more": {
			hardware: []driver.Hardware{{UUID: "A", PCI: "1"}, {PCI: "2"}}, changes: true,
		},
		"interface":                    {hardware: []driver.Hardware{{NetDev: "eth0"}, {NetDev: "eth1"}}, changes: true},
		"interface renamed":            {hardware: []driver.Hardware{{PCI: "1", NetDev: "a"}, {PCI: "1", NetDev: "b"}}},
		"RDMA device":                  {hardware: []driver.Hardware{{RDMADev: "a"}, {RDMADev: "b"}}, changes: true},
		"CPUs":                         {hardware: []driver.Hardware{{CPUs: []int{0}}, {CPUs: []int{1}}}, changes: true},
		"completed":                    {hardware: []driver.Hardware{{}, {UUID: "A"}}},
		"more completed":               {hardware: []driver.Hardware{{PCI: "1"}, {UUID: "A", PCI: "1"}}},
		"unknown now":                  {hardware: []driver.Hardware{{UUID: "A"}, {}}},
		"unknown for a while":          {hardware: []driver.Hardware{{UUID: "A"}, {}, {UUID: "A"}}},
		"replaced while it is unknown": {hardware: []driver.Hardware{{UUID: "A"}, {}, {UUID: "B"}}, changes: true},
		"other facts": {hardware: []driver.Hardware{
			{UUID: "A", Model: "x", NUMANode: "0"}, {UUID: "A", Model: "y", NUMANode: "1"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("c0", "p0")
			last := len(tc.hardware) - 1
			want := 0.0
			for _, hardware := range tc.hardware[:last] {
				named(h, hardware, energyReading(before))
				h.Pass(time.Second)
			}
			named(h, tc.hardware[last], energyReading(after))
			h.Pass(time.Second)
			if !tc.changes {
				want += after - before
			}
			named(h, tc.hardware[last], energyReading(after+100))
			want += 100
			h.Expect(h.Tick(time.Second), map[[2]string]float64{
				{"dra_device_energy_joules_total", "device=gpu-0"}:         want,
				{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: want,
				{"dra_pod_energy_joules_total", "pod=p0"}:                  want,
			})
		})
	}
}

// Readings of the old hardware that wait for the kubelet's answer are counted, and readings of the
// new hardware from its first one on. The same applies to series that only the new hardware has, to
// integrals, and to counters with a start time.
func TestIdentityChangesWhileReadingsWait(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	old, other := driver.Hardware{UUID: "A"}, driver.Hardware{UUID: "B"}
	watts := func(value float64) driver.Reading {
		return driver.Reading{Quantity: driver.Power, Value: value}
	}
	packets := func(value float64) driver.Reading {
		return driver.Reading{
			Quantity: driver.NetworkPackets, Labels: driver.Labels{"receive"}, Value: value,
			Since: jointest.Start().Add(1500 * time.Millisecond),
		}
	}
	named(h, old, energyReading(1000), watts(10))
	h.Pass(time.Second)
	named(h, old, energyReading(1010), watts(10))
	h.TickWithoutAnswer(time.Second)
	named(h, other, energyReading(9000), packets(700))
	h.TickWithoutAnswer(time.Second)
	named(h, other, energyReading(9005), packets(707))
	h.Expect(h.Tick(time.Second), map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}:         15,
		{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 15,
		{"dra_device_network_packets_total", "device=gpu-0"}:       7,
	})
	named(h, old, energyReading(1010), watts(10)) // and back
	h.Pass(time.Second)
	named(h, old, watts(20)) // its counter can no longer be read
	h.Pass(time.Second)
	third := driver.Hardware{UUID: "C"} // has no counter: the integral of its power replaces it
	named(h, third, watts(100))
	h.Pass(time.Second)
	named(h, third, watts(100))
	h.Expect(h.Tick(time.Second), map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}: 115,
	})
}

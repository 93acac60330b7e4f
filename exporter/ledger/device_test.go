package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A partition that was read and then removed is not down. A device that was read and can no longer
// be read is down.
func TestUp(t *testing.T) {
	h := exportertest.NewHistory(t)
	partition := driver.Hardware{UUID: "MIG-0", Kind: driver.KindPartition}
	h.In.Inventory[jointest.ID("mig-0")] = driver.Entry{Hardware: partition}
	h.In.Inventory[jointest.ID("twin")] = driver.Entry{Hardware: driver.Hardware{UUID: "gpu-0"}}
	h.In.Inventory[jointest.ID("never")] = driver.Entry{Hardware: driver.Hardware{UUID: "never"}}
	up := func(x exportertest.Scraped, want map[string]float64) {
		got := map[string]float64{}
		for key, v := range x["dra_device_up"] {
			got[exportertest.ParseKey(key)["device"]] = v
		}
		expect.Is(t, cmp.Diff(want, got), "", "up")
	}
	up(h.Tick(time.Second), map[string]float64{})
	h.Energy(1)
	h.ReadOf("MIG-0", jointest.Watts(1))
	h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation("mig-0", "c0", "p0"))
	up(h.Tick(time.Second), map[string]float64{"gpu-0": 1, "mig-0": 1})
	h.Free("c0")
	h.In.Sources[0].Samples = h.In.Sources[0].Samples[:1]
	up(h.Tick(time.Second), map[string]float64{"gpu-0": 1})
	h.In.View.Allocations = append(
		h.In.View.Allocations, jointest.Allocation("twin", "c1", "p0"), jointest.Allocation("never", "c1", "p0"),
	)
	up(h.Tick(time.Second), map[string]float64{"twin": 1, "never": 0})
	h.In.Sources[0].Samples = nil
	up(h.Tick(time.Second), map[string]float64{"gpu-0": 0, "twin": 0, "never": 0})
}

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

// A device that falls off the bus is down. Its new errors are counted, and its error counters are
// kept as long as it is missing. Values that can't be read are absent.
func TestErrorsOfALostDevice(t *testing.T) {
	h := exportertest.NewHistory(t)
	since := jointest.Start().Add(1)
	xid := func(code string, errors float64) driver.Reading {
		return driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", code}, Value: errors, Since: since}
	}
	h.Read(jointest.Watts(300))
	h.Pass(time.Second)
	h.Read(jointest.Watts(300), xid("63", 1))
	h.Pass(time.Second)
	h.Read(xid("63", 1), xid("79", 1))
	h.In.Sources[0].Samples[0].Unreadable = true
	for range 700 { // longer than the ledger remembers a counter that is not read
		x := h.Tick(time.Second)
		must.That(t, len(x["dra_device_power_watts"]) == 0,
			"power of a device that can't be read: %v", x["dra_device_power_watts"])
		if h.Now.Sub(jointest.Start()) < 5*time.Second {
			continue // the kubelet's answer may not cover the events yet
		}
		h.Expect(x, map[[2]string]float64{
			{"dra_device_up", "device=gpu-0"}:      0,
			{"dra_device_errors_total", "code=63"}: 1, {"dra_device_errors_total", "code=79"}: 1,
		})
		h.In.Sources[0].Samples = nil // from now on, its source does not report it
	}
}

// XIDs that both a library and the kernel log count are counted once: when the log takes over with
// its first record, also if the library reports an XID first; while both count; and when the log
// can no longer be read.
func TestWitnessTakesOver(t *testing.T) {
	for name, late := range map[string]int{"in the same tick": 0, "the library first": 1} {
		t.Run(name, func(t *testing.T) {
			books, begun := ledger.New(ledger.Config{}), jointest.Start()
			inventory := driver.Inventory{jointest.ID("0"): {Hardware: driver.Hardware{UUID: "GPU-0", PCI: "0000:01:00.0"}}}
			// The times of the XIDs, in half seconds. The log is read from second 3 to second 10.
			happened := map[string][]int{"31": {3, 9, 13, 23}, "79": {17}}
			library := func(tick int) driver.Sample {
				s := driver.Sample{Hardware: driver.Hardware{UUID: "GPU-0"}, Readings: []driver.Reading{jointest.Watts(1)}}
				s.Readings[0].At = begun.Add(time.Duration(tick) * time.Second)
				for code, times := range happened {
					r := driver.Reading{
						Quantity: driver.Errors, Labels: driver.Labels{"xid", code}, At: s.Readings[0].At,
						Since: begun.Add(time.Duration(times[0]/2) * time.Second),
					}
					for _, at := range times {
						if at < 2*tick {
							r.Value++
						}
					}
					if r.Value > 0 {
						s.Readings = append(s.Readings, r)
					}
				}
				return s
			}
			log := func(tick int) (out []driver.Sample) {
				s := driver.Sample{Hardware: driver.Hardware{PCI: "0000:01:00.0"}, FromLog: true}
				for code, times := range happened {
					r := driver.Reading{
						Quantity: driver.Errors, Labels: driver.Labels{"xid", code}, At: begun.Add(time.Duration(tick) * time.Second),
					}
					for _, half := range times {
						at := begun.Add(time.Duration(half) * 500 * time.Millisecond)
						if half < 6 || half >= 2*(tick-late) {
							continue
						}
						if r.Value++; r.Value == 1 {
							r.Since = at.Add(-time.Microsecond)
						}
						if half >= 2*(tick-late-1) {
							s.Events = append(s.Events, driver.Event{Quantity: r.Quantity, Labels: r.Labels, At: at})
						}
					}
					if r.Value > 0 {
						s.Readings = append(s.Readings, r)
						out = []driver.Sample{s}
					}
				}
				return out
			}
			counted := map[string]float64{}
			for tick := range 18 {
				sources := []join.SourceSamples{{Name: "nvml", Samples: []driver.Sample{library(tick)}}, {Name: "kmsg"}}
				if tick >= 3 && tick <= 10 {
					sources[1].Samples = log(tick)
				}
				now := begun.Add(time.Duration(tick) * time.Second)
				result := join.Join(join.Input{Inventory: inventory, Sources: sources})
				result.View.At = now
				for _, d := range books.Advance(result, now).Devices {
					for _, v := range d.Values {
						if v.Quantity == driver.Errors {
							counted[v.Labels[1]] = v.Value
						}
					}
				}
			}
			for code, times := range happened {
				expect.That(t, counted[code] == float64(len(times)),
					"XID %s happened %d times and was counted %v times", code, len(times), counted[code])
			}
		})
	}
}

// The first error of a code is counted if the device was read before without it, also by an earlier
// process.
func TestFirstErrorOfACode(t *testing.T) {
	for name, restarts := range map[string]bool{"while it is read": false, "while the process is away": true} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("c0", "p0")
			h.Read(jointest.Watts(300), driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", "13"}, Value: 7})
			h.Pass(time.Second)
			h.Read(jointest.Watts(300))
			h.Pass(time.Second)
			if restarts {
				var k log
				k.write(h.Ledger, h.Now.Add(-time.Second))
				h.Now = h.Now.Add(time.Minute)
				h.Ledger = restored(t, k.Kept, h.Now)
			}
			h.Read(
				jointest.Watts(300),
				driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", "94"}, Value: 1},
				driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"ecc_corrected", ""}, Value: 5000},
			)
			h.Expect(h.Tick(time.Second), map[[2]string]float64{
				{"dra_claim_errors_total", "code=94"}: 1, {"dra_device_errors_total", "code=94"}: 1,
				{"dra_device_errors_total", "kind=ecc_corrected"}: 0,
			})
		})
	}
}

// An error that has not been read for longer than the ledger remembers counters is not new when it
// is read again, whatever its kind, also by another process. What it has counted since is.
func TestErrorsReturn(t *testing.T) {
	const old, more = 23, 2
	for name, tc := range map[string]struct {
		labels   driver.Labels
		silent   bool // nothing of the device is read meanwhile
		restarts bool
		codes    int // other codes, read before
	}{
		"a counter that is refused":             {labels: driver.Labels{"nvlink", "recovery"}},
		"after a restart":                       {labels: driver.Labels{"nvlink", "recovery"}, restarts: true},
		"from a log":                            {labels: driver.Labels{"xid", "1"}},
		"from a log, after a restart":           {labels: driver.Labels{"xid", "1"}, restarts: true},
		"the source was down":                   {labels: driver.Labels{"xid", "1"}, silent: true},
		"more codes than are remembered":        {labels: driver.Labels{"xid", "1"}, codes: ledger.MaxCodes},
		"more codes than that, after a restart": {labels: driver.Labels{"xid", "1"}, codes: ledger.MaxCodes, restarts: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("c0", "p0")
			errors := driver.Reading{Quantity: driver.Errors, Labels: tc.labels, Value: old}
			readings := []driver.Reading{jointest.Watts(300), errors}
			for i := range tc.codes {
				readings = append(readings, driver.Reading{
					Quantity: driver.Errors, Labels: driver.Labels{"xid", fmt.Sprint(1000 + i)}, Value: 1,
				})
			}
			h.Read(readings...)
			h.Pass(time.Second)
			for range int(ledger.RememberFor/time.Second) + 10 {
				h.Read(jointest.Watts(300))
				if tc.silent {
					h.In.Sources[0].Samples = nil
				}
				h.Pass(time.Second)
			}
			meters, _, _ := h.Ledger.Sizes(jointest.ID("gpu-0"))
			expect.That(t, meters <= ledger.MaxCodes+1, "the ledger keeps %d meters", meters)
			if tc.restarts {
				var k log
				k.write(h.Ledger, h.Now.Add(-time.Second))
				h.Ledger = restored(t, k.Kept, h.Now)
			}
			h.Read(jointest.Watts(300), errors)
			h.Pass(time.Second)
			errors.Value += more
			h.Read(jointest.Watts(300), errors)
			h.Pass(time.Second)
			h.Expect(h.Tick(time.Second), map[[2]string]float64{
				{"dra_device_errors_total", "code=" + tc.labels[1]}: more,
			})
		})
	}
}

// The first value of a counter that a source may begin to read at any time is no error, but that of
// a code in a log is, unless it is that of other hardware.
func TestFirstErrors(t *testing.T) {
	h := exportertest.NewHistory(t)
	errors := func(kind, code string, value float64) driver.Reading {
		return driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{kind, code}, Value: value}
	}
	tick := func(uuid string, want map[[2]string]float64, readings ...driver.Reading) {
		named(h, driver.Hardware{UUID: uuid}, append(readings, energyReading(1))...)
		h.Expect(h.Tick(time.Second), want)
	}
	tick("A", nil)
	tick("A", map[[2]string]float64{
		{"dra_device_errors_total", "code=recovery"}: 0, {"dra_device_errors_total", "code=31"}: 2,
	}, errors("nvlink", "recovery", 23), errors("xid", "31", 2))
	tick("B", map[[2]string]float64{{"dra_device_errors_total", "code=63"}: 0}, errors("xid", "63", 4))
	tick("B", map[[2]string]float64{
		{"dra_device_errors_total", "code=63"}: 0, {"dra_device_errors_total", "code=79"}: 1,
	}, errors("xid", "63", 4), errors("xid", "79", 1))
}

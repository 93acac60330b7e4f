package ledger_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/test/expect"
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

// A held device is not down if its source has no readings of it and it was never read. It is down
// if it was read before.
func TestNothingToRead(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("claim", "p0")
	h.Energy(1)
	h.In.Sources[0].Samples = []driver.Sample{{Hardware: h.In.Inventory[jointest.ID("gpu-0")].Hardware}}
	x := h.Tick(time.Second)
	expect.That(t, len(x["dra_device_up"]) == 0, "up is %v", x["dra_device_up"])
	h.Expect(x, map[[2]string]float64{{"dra_exporter_unresolved_devices", "reason=no_readings"}: 1})
	silent := h.In.Sources[0].Samples
	h.Energy(2)
	h.Expect(h.Tick(time.Second), map[[2]string]float64{{"dra_device_up", "device=gpu-0"}: 1})
	h.In.Sources[0].Samples = silent
	h.Expect(h.Tick(time.Second), map[[2]string]float64{{"dra_device_up", "device=gpu-0"}: 0})
	h.In.Sources[0].Samples[0].Unreadable = true
	h.Expect(h.Tick(time.Second), map[[2]string]float64{{"dra_device_up", "device=gpu-0"}: 0})
}

// A device whose driver is gone is up while it is read. Without readings, it is neither up nor
// down, even if it was read before.
func TestDriverGone(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("claim", "p0")
	h.Energy(1)
	h.Pass(time.Second)
	entry := h.In.Inventory[jointest.ID("gpu-0")]
	entry.DriverGone = true
	h.In.Inventory[jointest.ID("gpu-0")] = entry
	h.Expect(h.Tick(time.Second), map[[2]string]float64{{"dra_device_up", "device=gpu-0"}: 1})
	h.In.Sources[0].Samples = nil
	x := h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{{"dra_exporter_unresolved_devices", "reason=driver_gone"}: 1})
	expect.That(t, len(x["dra_device_up"]) == 0, "it is up, or down: %v", x["dra_device_up"])
}

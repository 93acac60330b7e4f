package ledger_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The integral of a gauge replaces a counter that the hardware does not have. The source info shows
// that.
func TestIntegral(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	var x exportertest.Scraped
	for i := range 3 {
		h.Read(driver.Reading{
			Quantity: driver.Power, Value: 100 * float64(i+1),
		}, driver.Reading{Quantity: driver.Utilization, Value: 0.5})
		x = h.Tick(10 * time.Second)
	}
	h.Expect(x, map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}:         4000,
		{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 4000,
		{"dra_device_active_seconds_total", "device=gpu-0"}:        10,
	})
	sources := map[string]float64{}
	for key := range x["dra_device_quantity_source_info"] {
		l := exportertest.ParseKey(key)
		sources[l["quantity"]+" from "+l["source"]]++
	}
	want := map[string]float64{
		"power from a": 1, "utilization from a": 1, "energy from a" + " (integral of its gauge)": 1,
		"active_seconds from a" + " (integral of its gauge)": 1,
	}
	expect.Is(t, cmp.Diff(want, sources), "", "sources")
	h.Now = h.Now.Add(ledger.MaxIntegration - 9*time.Second) // the gap is then too long to integrate
	h.Read(driver.Reading{Quantity: driver.Power, Value: 200}, driver.Reading{Quantity: driver.Utilization, Value: 0.5})
	x = h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{{"dra_device_energy_joules_total", "device=gpu-0"}: 4000})
	h.Read(driver.Reading{Quantity: driver.Power, Value: 200}, driver.Reading{Quantity: driver.Energy, Value: 1e6})
	h.Pass(time.Second) // a hardware counter appears: it counts from its present value, and the integral ends
	h.Read(driver.Reading{Quantity: driver.Power, Value: 200}, driver.Reading{Quantity: driver.Energy, Value: 1e6 + 7})
	x = h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{{"dra_device_energy_joules_total", "device=gpu-0"}: 4007})
}

// A pod whose cgroup is gone does no more work, even if the kubelet still lists it. The gauge fell
// at that moment, not evenly since the reading before.
func TestIntegralUntilGone(t *testing.T) {
	for name, test := range map[string]struct {
		change podresources.Change
		want   float64
	}{
		"its cgroup":      {podresources.Change{Gone: true, PodUID: "uid-p0"}, 0.8 * 0.75},
		"another pod's":   {podresources.Change{Gone: true, PodUID: "uid-p1"}, 0.8 / 2},
		"comes, not goes": {podresources.Change{PodUID: "uid-p0"}, 0.8 / 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("c0", "p0")
			h.Read(driver.Reading{Quantity: driver.Utilization, Value: 0.8})
			h.Pass(time.Second)
			test.change.At = h.Now.Add(-250 * time.Millisecond)
			h.Changes = []podresources.Change{test.change}
			h.Read(driver.Reading{Quantity: driver.Utilization, Value: 0})
			h.Expect(h.Tick(time.Second), map[[2]string]float64{
				{
					"dra_device_active_seconds_total", "device=gpu-0",
				}: test.want, {"dra_pod_active_seconds_total", "pod=p0"}: test.want,
			})
		})
	}
}

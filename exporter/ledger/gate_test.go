package ledger_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A suspicion that begins before a restart of the process ends as it would have without: the old
// value holds if the readings return to it.
func TestSuspicionOutlivesRestart(t *testing.T) {
	const high = 22_543_283.0
	for name, low := range map[string][]float64{
		"not explained": {high / 3},
		"explained":     {200},
		"for longer":    {200, 200},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("c0", "p0")
			for i := range 3 {
				h.Energy(high + 52*float64(i))
				h.Pass(time.Second)
			}
			seconds := 3
			for _, v := range low {
				h.Energy(v)
				h.Pass(time.Second)
				seconds++
			}
			var k log
			k.write(h.Ledger, h.Now)
			h.Restart(k.Kept, h.Now)
			for range 3 {
				h.Energy(high + 52*float64(seconds))
				h.Pass(time.Second)
				seconds++
			}
			h.Energy(high + 52*float64(seconds))
			h.Expect(h.Tick(time.Second), map[[2]string]float64{
				{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 52 * float64(seconds),
			})
		})
	}
}

// A line that was left before a restart goes on after it: its first reading then is the second one
// of the line, and counts at once.
func TestDoubtedLineGoesOnAfterARestart(t *testing.T) {
	const high, low = 22_543_283.0, 7e6
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	for i := range 3 {
		h.Energy(high + 52*float64(i))
		h.Pass(time.Second)
	}
	h.Energy(low)
	h.Pass(time.Second)
	var k log
	k.write(h.Ledger, h.Now)
	h.Restart(k.Kept, h.Now)
	h.Energy(low + 52)
	h.Expect(h.Tick(time.Second), map[[2]string]float64{
		{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 3 * 52,
	})
}

// An energy counter that has never shown anything but 0 is that of a device without a sensor: there
// is no energy. The integral of its power replaces it, if there is a power.
func TestEnergyOfNoSensor(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	watts := 0.0
	tick := func(joules float64) exportertest.Scraped {
		h.Read(driver.Reading{Quantity: driver.Power, Value: watts}, driver.Reading{Quantity: driver.Energy, Value: joules})
		return h.Tick(time.Second)
	}
	tick(0)
	x := tick(0)
	for _, family := range []string{
		"dra_device_power_watts", "dra_device_energy_joules_total", "dra_claim_energy_joules_total",
		"dra_device_power_peak_watts",
	} {
		rows := x[family]
		expect.That(t, len(rows) == 0, "%s: %v", family, rows)
	}
	watts = 50
	tick(0)
	tick(0)
	h.Expect(tick(0), map[[2]string]float64{{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 100})
	h.Expect(tick(50), map[[2]string]float64{{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 150})
	h.Expect(tick(100), map[[2]string]float64{{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 200})
}

// What is above the device's own limits does not count: power above its limits, and bytes above the
// speed of its link. Without them it could be.
func TestLimitsOfTheDevice(t *testing.T) {
	limits := []driver.Reading{
		{Quantity: driver.PowerLimit, Labels: driver.Labels{"max"}, Value: 300},
		{Quantity: driver.LinkWidthMax, Labels: driver.Labels{"pcie"}, Value: 4},
		{Quantity: driver.LinkGenerationMax, Labels: driver.Labels{"pcie"}, Value: 1},
	}
	for name, test := range map[string]struct {
		limits []driver.Reading
		want   map[[2]string]float64
	}{
		"known": {limits, map[[2]string]float64{
			{"dra_device_energy_joules_total", "device=gpu-0"}: 100, {"dra_device_io_bytes_total", "device=gpu-0"}: 1e6,
		}},
		"unknown": {nil, map[[2]string]float64{
			{"dra_device_energy_joules_total", "device=gpu-0"}: 50_100,
			{"dra_device_io_bytes_total", "device=gpu-0"}:      1e6 + 2e10,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			joules, bytes := 1e6, 1e9
			tick := func(moreJoules, moreBytes float64) exportertest.Scraped {
				joules, bytes = joules+moreJoules, bytes+moreBytes
				h.Read(append([]driver.Reading{
					{Quantity: driver.Energy, Value: joules},
					{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: bytes},
				}, test.limits...)...)
				return h.Tick(time.Second)
			}
			tick(0, 0)
			tick(100, 1e6)
			h.Expect(tick(50_000, 2e10), test.want)
			rejected := len(h.Last.Rejected)
			expect.That(t, (rejected == 2) == (test.limits != nil) && rejected%2 <= 0, "rejected: %v", h.Last.Rejected)
		})
	}
}

// A source that reads rarely repeats its last reading at each tick. Nothing explains a doubted one
// by being repeated.
func TestRepeatedReadingExplainsNothing(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	tick := func(value float64, at time.Time) exportertest.Scraped {
		h.Read(driver.Reading{
			Quantity: driver.Errors, Labels: driver.Labels{"pcie_replay"}, Value: value, At: at,
		}, driver.Reading{Quantity: driver.Power, Value: 50})
		return h.Tick(time.Second)
	}
	var x exportertest.Scraped
	rejected := 0
	for _, value := range []float64{300, 100, 301} {
		at := h.Now
		for range 10 {
			x = tick(value, at)
			rejected += len(h.Last.Rejected)
		}
	}
	h.Expect(x, map[[2]string]float64{{"dra_device_errors_total", "kind=pcie_replay"}: 1})
	expect.Is(t, rejected, 1, "readings were rejected")
}

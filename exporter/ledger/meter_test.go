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
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testclock"
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

// clock is a device that claim a holds for 250 ticks of 10 s, and claim b for the next 250. Its
// load is constant. The wall clock is set after the 100th tick.
type clock struct {
	step  time.Duration // by which the wall clock is set
	own   bool          // the source has its own timestamps, of the wall clock
	slow  int           // ticks for which the source serves the same reading
	since time.Duration // how long before the start the counter began, as the source reports; 0: not reported
}

const (
	clockTicks = 500
	clockTick  = 10 * time.Second
	clockStep  = 100
)

// run plays all ticks and returns the last snapshot. The test fails if a counter falls.
func (c clock) run(t *testing.T) *book.Snapshot {
	config := exportertest.LedgerConfig()
	config.Retention = clockTicks * clockTick
	l := ledger.New(config)
	start := time.Now() // with a monotonic clock
	gpu := jointest.ID("gpu-0")
	var reading time.Time
	var joules float64
	var dates holders.Dates
	var s *book.Snapshot
	before := map[string]float64{}
	for i := range clockTicks {
		now := start.Add(time.Duration(i) * clockTick)
		if i >= clockStep {
			now = testclock.Stepped(now, c.step)
		}
		if i%c.slow == 0 {
			reading, joules = now.Add(-300*time.Millisecond), float64(i)*1000
		}
		energy := driver.Reading{Quantity: driver.Energy, Value: joules, At: reading}
		if c.since > 0 {
			energy.Since = start.Add(-c.since).Round(0)
		}
		if c.own {
			energy.At = reading.Round(0)
		}
		busy := driver.Reading{Quantity: driver.Utilization, Value: 0.5, At: energy.At}
		claim := "a"
		if i >= clockTicks/2 {
			claim = "b"
		}
		in := join.Input{
			Inventory: driver.Inventory{gpu: {Hardware: driver.Hardware{UUID: "GPU-0"}}},
			View: dates.Date(
				[]podresources.Allocation{jointest.Allocation(gpu.Device, claim, "pod-"+claim)}, holders.Signs{At: now}, now,
			),
			Sources: []join.SourceSamples{{Name: "x", Samples: []driver.Sample{
				{Hardware: driver.Hardware{UUID: "GPU-0"}, Readings: []driver.Reading{energy, busy}},
			}}},
		}
		s = l.Advance(join.Join(in), now)
		for name, value := range clockSums(s) {
			must.That(t, value >= before[name]-1e-6, "%s falls from %v to %v at tick %d", name, before[name], value, i)
			before[name] = value
		}
	}
	return s
}

// clockSums returns the sums of the device and its claims.
func clockSums(s *book.Snapshot) map[string]float64 {
	out := map[string]float64{}
	add := func(who string, values []book.Value) {
		for _, v := range values {
			if v.Quantity == driver.Energy || v.Quantity == driver.ActiveSeconds {
				out[fmt.Sprint(who, " ", v.Quantity)] = v.Value
			}
		}
	}
	add("device", s.Devices[0].Values)
	for i := range s.Claims {
		h := &s.Claims[i]
		add(h.Name, h.Values)
		out[h.Name+" allocated"] = h.Allocated
	}
	return out
}

// If the wall clock is set, nothing is lost and nothing is counted twice, also if a source's
// readings have only timestamps of the wall clock.
func TestWallClockIsSet(t *testing.T) {
	steps := testclock.Steps()
	if testing.Short() {
		steps = []time.Duration{steps[0], steps[len(steps)-1]}
	}
	for _, c := range []clock{
		{slow: 1},
		{slow: 1, own: true},
		{slow: 3, own: true},
		{slow: 1, since: 20 * time.Minute},
		{slow: 1, own: true, since: 20 * time.Minute},
		{slow: 3, own: true, since: 20 * time.Minute},
	} {
		want := clockSums(c.run(t))
		must.That(t, len(want) == 8, "sums %v", want)
		for _, c.step = range steps {
			t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
				got := clockSums(c.run(t))
				for name, value := range want {
					slack := 2 * float64(c.slow) // readings
					switch name {
					case "a allocated", "b allocated", "device energy":
						slack = 1e-6
					case "a energy", "b energy":
						slack *= 1000
					default:
						slack *= 5
					}
					diff := got[name] - value
					expect.That(t, diff <= slack && diff >= -slack, "%s is %v, and %v if the clock is not set", name, got[name], value)
				}
			})
		}
	}
}

// After the wall clock was set back, a source may report that its counter began in the future. Such
// a counter did not begin while the device was known: its value is not charged to the holder.
func TestCounterOfTheFuture(t *testing.T) {
	for ahead, want := range map[time.Duration]float64{time.Hour: 0, -5 * time.Second: 700} {
		h := exportertest.NewHistory(t)
		h.Hold("c", "p")
		h.Pass(10 * time.Second)
		h.Pass(10 * time.Second)
		h.Read(driver.Reading{Quantity: driver.Energy, Value: 700, At: h.Now, Since: h.Now.Add(ahead)})
		x := h.Tick(0)
		if got := exportertest.SumOf(x.Matching("dra_claim_energy_joules_total")); got != want {
			t.Errorf("a counter that began %v from now: %v J are charged, want %v", ahead, got, want)
		}
	}
}

// While a node is suspended, its wall clock advances and its monotonic clock stops. Claims are
// charged what the hardware's counters have counted, also while suspended. They are charged neither
// allocated nor active time for the suspension.
func TestSuspended(t *testing.T) {
	for name, tt := range map[string]struct{ after, want float64 }{ // joules of the counter, and of the claim
		"the counter goes on":           {2500, 1500},
		"the counter stands":            {2000, 1000},
		"the counter begins at 0 again": {50, 1050},
	} {
		t.Run(name, func(t *testing.T) {
			clock, h := testclock.New(), exportertest.NewHistory(t)
			tick := func(joules float64) exportertest.Scraped {
				h.Now = clock.Now()
				h.Read(driver.Reading{Quantity: driver.Energy, Value: joules},
					driver.Reading{Quantity: driver.Utilization, Value: 0.5})
				return h.Tick(0)
			}
			h.Hold("c", "p")
			tick(1000)
			clock.Pass(10 * time.Second)
			tick(2000)
			clock.Set(time.Hour)
			clock.Pass(time.Second)
			x := tick(tt.after)
			for family, want := range map[string]float64{
				"energy_joules_total": tt.want, "active_seconds_total": 5.5, "allocated_seconds_total": 11,
			} {
				for _, of := range []string{"dra_claim_", "dra_pod_", "dra_device_"} {
					if got := exportertest.SumOf(x.Matching(of + family)); !exportertest.Close(got, want, 0) {
						t.Errorf("%s%s is %v, want %v", of, family, got, want)
					}
				}
			}
		})
	}
}

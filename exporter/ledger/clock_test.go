package ledger_test

import (
	"fmt"
	"testing"
	"time"

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

package ledger_test

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const gib = 1 << 30

// fitHistory returns the history of claim a, which holds gpu-0 with 80 GiB. The inventory also has
// a partition that is a quarter of such a GPU.
func fitHistory(t *testing.T) *exportertest.History {
	h := exportertest.NewHistory(t)
	gpu := h.In.Inventory[jointest.ID("gpu-0")]
	gpu.Model, gpu.Capacity = "H100", []driver.Amount{{Resource: "memory", Value: 80 * gib}}
	h.In.Inventory[jointest.ID("gpu-0")] = gpu
	h.In.Inventory[jointest.ID("quarter")] = driver.Entry{
		Hardware: driver.Hardware{
			Kind: driver.KindPartition, Model: "H100", Profile: "2g.20gb", Parent: "gpu-1", ParentShare: 0.25,
		},
		Capacity: []driver.Amount{{Resource: "memory", Value: 20 * gib}},
	}
	h.Hold("a", "p0")
	return h
}

// fitting plays ticks of one second, with a utilization and a used memory in GiB.
func fitting(h *exportertest.History, seconds int, utilization, memory float64) {
	fittingEvery(h, time.Second, seconds, utilization, memory)
}

func fittingEvery(h *exportertest.History, pause time.Duration, ticks int, utilization, memory float64) {
	for range ticks {
		h.Read(
			driver.Reading{Quantity: driver.Utilization, Value: utilization},
			driver.Reading{Quantity: driver.MemoryUsed, Value: memory * gib},
		)
		h.Pass(pause)
	}
}

func expectFit(t *testing.T, h *exportertest.History, want fit.Reason) *fit.Advice {
	a := h.Last.Claims[0].Advice
	must.That(t, a != nil && a.Reason == want, "advice %+v, want the reason %q", a, want)
	return a
}

// With a margin of 5 %, a peak of 18 GiB needs 18.9 GiB of the quarter's 20. The utilization is 0.2
// for 4998 s and 0.9 for 2 s. It may exceed the advised activity for 0.1 % of the time, or 5 s.
func TestAdvice(t *testing.T) {
	h := fitHistory(t)
	fitting(h, 60, 0.2, 18)
	x := exportertest.Scrape(t, h.Last)
	expectFit(t, h, fit.NotMeasured) // the advice is that of the first tick
	if got := x.Matching("dra_claim_fit_ratio"); len(got) > 0 {
		t.Fatalf("after 59 seconds: %v", got)
	}
	fitting(h, 2, 0.9, 17.5)
	fittingEvery(h, 10*time.Second, 494, 0.2, 17.5)
	x = exportertest.Scrape(t, h.Last)
	a := expectFit(t, h, fit.Advised)
	expect.That(t, a.Alternative.Name == "2g.20gb" && a.Unused == 0.75 && a.Memory == 18*gib && a.MaxActivity == 0.9,
		"advice %+v", a)
	// A bucket of the distribution is 9 % wide. The reported value is never below the true one.
	expect.That(t, a.Activity >= 0.2 && a.Activity <= 0.2*1.1, "p99.9 of the activity is %v, want 0.2", a.Activity)
	h.Expect(x, map[[2]string]float64{
		{"dra_claim_fit_ratio", "resource=memory"}:             18.0 / 80 / 0.95,
		{"dra_claim_fit_ratio", "resource=activity"}:           a.Activity / 0.95,
		{"dra_claim_fit_unused_ratio", "alternative=2g.20gb"}:  0.75,
		{"dra_claim_fit_unused_ratio", "resourceclaim_name=a"}: 0.75,
	})
	fitting(h, 60, 0.9, 19.2) // 20.2 GiB with the margin
	fitting(h, 60, 0.2, 17)
	expectFit(t, h, fit.Growing)
	fittingEvery(h, 10*time.Second, 600, 0.2, 19)
	x = exportertest.Scrape(t, h.Last)
	if a := expectFit(t, h, fit.NothingSmaller); a.Memory != 19.2*gib || math.Abs(a.Activity-0.9) > 0.09 {
		t.Errorf("after a peak: %+v", a)
	}
	if got := x.Matching("dra_claim_fit_unused_ratio"); len(got) > 0 {
		t.Errorf("after a peak: %v", got)
	}
	h.Free("a")
	fitting(h, 1, 0.2, 17)
	if x = exportertest.Scrape(t, h.Last); len(x.Matching("dra_claim_fit_ratio")) > 0 || h.Last.Claims[0].Advice != nil {
		t.Error("a claim that ended a moment ago has advice")
	}
}

// The advice on an ended claim covers its whole life, even if that was short. It comes at most a
// minute after the last reading of the claim. Only claims that hold devices have metrics of advice.
func TestAdviceForEndedClaim(t *testing.T) {
	h := fitHistory(t)
	c := exportertest.LedgerConfig()
	c.Fit.After = 24 * time.Hour
	h.Ledger = ledger.New(c)
	fitting(h, 120, 0.1, 10)
	fitting(h, 80, 0.2, 18)
	expectFit(t, h, fit.TooShort)
	h.Free("a")
	fitting(h, 1, 0.2, 18)  // it ended in the middle of this second
	fitting(h, 70, 0.9, 79) // of no claim
	x := exportertest.Scrape(t, h.Last)
	a := expectFit(t, h, fit.Advised)
	expect.That(t, a.Memory == 18*gib && a.MaxActivity == 0.2 && a.Alternative.Name == "2g.20gb" && a.Ended != nil,
		"advice %+v", a)
	got := x.Matching("dra_claim_fit_ratio")
	expect.That(t, len(got) == 0, "metrics of a claim that ended: %v", got)

	h.Hold("b", "p1") // too short for advice
	fitting(h, 30, 0.2, 18)
	h.Free("b")
	fitting(h, 130, 0.2, 18)
	if a := h.Last.Claims[1].Advice; a == nil || a.Reason != fit.TooShort {
		t.Errorf("after 30 s: %+v", a)
	}
}

// If two claims hold a device and the use of each is unknown, neither gets advice, also later. The
// use by process is known.
func TestNoAdviceOnDividedUse(t *testing.T) {
	for name, tc := range map[string]struct {
		processes []driver.Process
		want      fit.Reason
	}{
		"divided": {nil, fit.Divided},
		"by process": {
			[]driver.Process{exportertest.Process(1, 0.1, 8*gib), exportertest.Process(2, 0.1, 8*gib)}, fit.Advised,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := fitHistory(t)
			fitting(h, 1, 0.2, 8)
			h.Hold("b", "p1")
			for range 100 {
				h.Read(
					driver.Reading{Quantity: driver.Utilization, Value: 0.2},
					driver.Reading{Quantity: driver.MemoryUsed, Value: 16 * gib},
				)
				if tc.processes != nil {
					h.Run(tc.processes...)
				}
				h.Pass(time.Second)
			}
			h.Free("b")
			fitting(h, 100, 0.2, 16)
			expectFit(t, h, tc.want)
		})
	}
}

// strict returns a ledger with the configuration of the program: there is no advice on claims whose
// memory is read rarely.
func strict() *ledger.Ledger {
	c := exportertest.LedgerConfig()
	c.Fit.MemoryEvery = fit.DefaultMemoryEvery
	return ledger.New(c)
}

// A claim that began before the exporter is judged by what was measured, and the advice says since
// when. A claim that began later has no such time.
func TestAdviceOnWhatBeganBefore(t *testing.T) {
	h := fitHistory(t)
	h.Ledger = strict()
	began := h.Now
	fitting(h, 300, 0.2, 18)
	a := expectFit(t, h, fit.Advised)
	expect.That(t, a.Partial && a.Since.Sub(began).Abs() <= 2*time.Second,
		"it is measured since %v, want %v", a.Since, began)
	h.Free("a")
	fitting(h, 1, 0, 0)
	h.Hold("b", "p0")
	fitting(h, 300, 0.2, 18)
	for i := range h.Last.Claims {
		if a := h.Last.Claims[i].Advice; a != nil && a.Reason != fit.Advised {
			t.Errorf("a claim that began later: %+v", a)
		}
	}
	h = fitHistory(t)
	h.Ledger = strict()
	h.In.View.Allocations[0].AllocatedAt = h.Now
	fitting(h, 300, 0.2, 18)
	if a := expectFit(t, h, fit.Advised); a.Partial {
		t.Errorf("a claim that was measured from its beginning: %+v", a)
	}
}

// A use of 70 GiB for 1 s of every 5 s can be missed by readings every 5 s. There is no advice on
// such readings.
func TestNoAdviceOnMemoryReadRarely(t *testing.T) {
	h := fitHistory(t)
	h.Ledger = strict()
	h.In.View.Allocations[0].AllocatedAt = h.Now
	fittingEvery(h, 5*time.Second, 60, 0.2, 8)
	expectFit(t, h, fit.ReadRarely)
}

// If a claim used links to other devices, a decoder or much memory bandwidth, a smaller device is
// vetoed, no matter how long ago that was.
func TestVetoesAreRemembered(t *testing.T) {
	for veto, read := range map[fit.Veto]func(second int) driver.Reading{
		fit.VetoPeers: func(second int) driver.Reading {
			return driver.Reading{
				Quantity: driver.IOBytes, Labels: driver.Labels{"nvlink", "transmit"}, Value: 200e9 * float64(min(second, 3)),
			}
		},
		fit.VetoEngine: func(second int) driver.Reading {
			busy := 0.0
			if second == 2 {
				busy = 0.9
			}
			return driver.Reading{Quantity: driver.EngineUtilization, Labels: driver.Labels{"decoder"}, Value: busy}
		},
		fit.VetoBandwidth: func(second int) driver.Reading {
			return driver.Reading{Quantity: driver.EngineUtilization, Labels: driver.Labels{"dram"}, Value: 0.5}
		},
	} {
		h := fitHistory(t)
		for second := range 100 {
			h.Read(
				driver.Reading{Quantity: driver.Utilization, Value: 0.2},
				driver.Reading{Quantity: driver.MemoryUsed, Value: 8 * gib}, read(second),
			)
			h.Pass(time.Second)
		}
		if a := expectFit(t, h, fit.NothingSmaller); a.Veto != veto {
			t.Errorf("%s: %+v", veto, a)
		}
	}
}

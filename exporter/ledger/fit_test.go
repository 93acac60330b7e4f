package ledger_test

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

const gib = 1 << 30

// fitHistory is that of gpu-0 with 80 GiB, and a partition that is a quarter of it.
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

// fitting ticks once a second, with a utilization and memory in GiB.
func fitting(h *exportertest.History, seconds int, utilization, memory float64) exportertest.Scraped {
	return fittingEvery(h, time.Second, seconds, utilization, memory)
}

func fittingEvery(
	h *exportertest.History, pause time.Duration, ticks int, utilization, memory float64,
) exportertest.Scraped {
	var x exportertest.Scraped
	for range ticks {
		h.Read(
			driver.Reading{Quantity: driver.Utilization, Value: utilization},
			driver.Reading{Quantity: driver.MemoryUsed, Value: memory * gib},
		)
		x = h.Tick(pause)
	}
	return x
}

func expectFit(t *testing.T, h *exportertest.History, want fit.Reason) *fit.Advice {
	t.Helper()
	a := h.Last.Claims[0].Advice
	if a == nil || a.Reason != want {
		t.Fatalf("advice %+v, want the reason %q", a, want)
	}
	return a
}

// With a margin of 5 %, a peak of 18 GiB needs 18.9 GiB of the quarter's 20. Utilization is 0.2 in
// 4998 s and 0.9 in 2: 0.1 % of the time, or 5 s, may be above it.
func TestAdvice(t *testing.T) {
	h := fitHistory(t)
	x := fitting(h, 60, 0.2, 18)
	expectFit(t, h, fit.NotMeasured) // of the first tick
	if got := x.Matching("dra_claim_fit_ratio"); len(got) > 0 {
		t.Fatalf("after 59 seconds: %v", got)
	}
	fitting(h, 2, 0.9, 17)
	x = fittingEvery(h, 10*time.Second, 494, 0.2, 17)
	a := expectFit(t, h, fit.Advised)
	if a.Alternative.Name != "2g.20gb" || a.Unused != 0.75 || a.Memory != 18*gib || a.MaxActivity != 0.9 {
		t.Errorf("advice %+v", a)
	}
	// A bucket of the distribution is 9 % wide: what is told is never below the truth.
	if a.Activity < 0.2 || a.Activity > 0.2*1.1 {
		t.Errorf("p99.9 of the activity is %v, want 0.2", a.Activity)
	}
	h.Expect(x, map[[2]string]float64{
		{"dra_claim_fit_ratio", "resource=memory"}:             18.0 / 80 / 0.95,
		{"dra_claim_fit_ratio", "resource=activity"}:           a.Activity / 0.95,
		{"dra_claim_fit_unused_ratio", "alternative=2g.20gb"}:  0.75,
		{"dra_claim_fit_unused_ratio", "resourceclaim_name=a"}: 0.75,
	})
	fitting(h, 60, 0.9, 19.2) // 20.2 GiB with the margin
	x = fitting(h, 60, 0.2, 17)
	if a := expectFit(t, h, fit.NothingSmaller); a.Memory != 19.2*gib || math.Abs(a.Activity-0.9) > 0.09 {
		t.Errorf("after a peak: %+v", a)
	}
	if got := x.Matching("dra_claim_fit_unused_ratio"); len(got) > 0 {
		t.Errorf("after a peak: %v", got)
	}
	h.Free("a")
	if x = fitting(h, 1, 0.2, 17); len(x.Matching("dra_claim_fit_ratio")) > 0 || h.Last.Claims[0].Advice != nil {
		t.Error("a claim that ended has advice")
	}
}

// Where two claims hold a device and it is not known what each used, neither gets advice, then and
// later. What processes use is known.
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
			fitting(h, 1, 0.2, 16)
			h.Hold("b", "p1")
			for range 100 {
				h.Read(
					driver.Reading{Quantity: driver.Utilization, Value: 0.2},
					driver.Reading{Quantity: driver.MemoryUsed, Value: 16 * gib},
				)
				if tc.processes != nil {
					h.Run(tc.processes...)
				}
				h.Tick(time.Second)
			}
			h.Free("b")
			fitting(h, 100, 0.2, 8)
			expectFit(t, h, tc.want)
		})
	}
}

// A claim with admin access uses nothing, and gets no advice.
func TestNoAdviceForAdminAccess(t *testing.T) {
	h := fitHistory(t)
	h.Free("a")
	a := jointest.Allocation("gpu-0", "monitor", "m0")
	a.Admin = true
	h.In.View.Allocations = []podresources.Allocation{a}
	if x := fitting(h, 200, 0.2, 18); len(x.Matching("dra_claim_fit_ratio")) > 0 || len(h.Last.Claims) > 0 {
		t.Errorf("admin access has rows: %+v", h.Last.Claims)
	}
}

// Memory that is not measured gives no advice, however long the activity was.
func TestNoAdviceWithoutMemory(t *testing.T) {
	h := fitHistory(t)
	for range 200 {
		h.Read(driver.Reading{Quantity: driver.Utilization, Value: 0.2})
		h.Tick(time.Second)
	}
	expectFit(t, h, fit.NotMeasured)
}

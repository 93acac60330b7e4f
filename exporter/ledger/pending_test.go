package ledger_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
)

// If admin access becomes known a second late, no holder is charged wrongly in between: the claim
// with admin access is charged nothing, and the holder of the device is charged no less.
func TestAdminMarkComesLate(t *testing.T) {
	for name, share := range map[string]string{"of a device": "", "of a share that the kubelet does not report": "s-1"} {
		t.Run(name, func(t *testing.T) { testAdminMarkComesLate(t, share) })
	}
}

func testAdminMarkComesLate(t *testing.T, share string) {
	h := exportertest.NewHistory(t)
	h.Hold("owner", "p0")
	seconds := 0
	play := func(n int) exportertest.Scraped {
		var x exportertest.Scraped
		for range n {
			x = energyAt(h, seconds)
			seconds++
		}
		return x
	}
	play(3)
	h.Hold("monitor", "m0").Pending = true
	x := play(2)
	if n := len(x.Matching("dra_claim_energy_joules_total", "resourceclaim_name=monitor")); n != 0 {
		t.Errorf("a claim that is pending has %d series", n)
	}
	monitor := h.Hold("monitor", "m0")
	monitor.Admin, monitor.ShareID = true, share
	x = play(1)
	h.Expect(x, map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}:                50,
		{"dra_claim_energy_joules_total", "resourceclaim_name=owner"}:     50,
		{"dra_claim_allocated_seconds_total", "resourceclaim_name=owner"}: 5,
	})
	if n := len(x.Matching("dra_claim_energy_joules_total", "resourceclaim_name=monitor")); n != 0 {
		t.Errorf("a claim with admin access has %d series", n)
	}
}

// A pending claim that turns out to hold the device, or a share that the kubelet does not report,
// is charged from its beginning, as if it had been known at once. The same applies to a claim about
// which nothing becomes known for 2 s.
func TestPendingClaimIsChargedFromItsBeginning(t *testing.T) {
	for name, of := range map[string]struct {
		answered bool
		share    string
	}{"answered": {true, ""}, "answered, with a share": {true, "s-1"}, "never answered": {}} {
		t.Run(name, func(t *testing.T) {
			answered := of.answered
			late, known := exportertest.NewHistory(t), exportertest.NewHistory(t)
			for second := range 10 {
				for _, h := range []*exportertest.History{late, known} {
					switch second {
					case 3:
						a := h.Hold("a", "p0")
						if a.Pending = h == late; h == known {
							a.ShareID = of.share
						}
					case 4:
						if answered {
							h.Hold("a", "p0").ShareID = of.share
						}
					case 8:
						h.Free("a")
					}
				}
				x, y := energyAt(late, second), energyAt(known, second)
				waits := second == 3 || second == 4 && !answered
				if waits {
					continue
				}
				for _, family := range []string{
					"dra_device_energy_joules_total", "dra_device_unattributed_energy_joules_total",
					"dra_device_allocated_seconds_total",
					"dra_claim_energy_joules_total", "dra_pod_energy_joules_total", "dra_claim_allocated_seconds_total",
					"dra_claim_device_info",
				} {
					if n, want := len(x.Matching(family)), len(y.Matching(family)); n != want {
						t.Errorf("second %d: %d series of %s, want %d", second, n, family, want)
					}
					for series, want := range y.Matching(family) {
						if got := x.Matching(family)[series]; !exportertest.Close(got, want, 0) {
							t.Errorf("second %d: %s{%s} is %v, want %v", second, family, series, got, want)
						}
					}
				}
			}
		})
	}
}

// A device that is held at the first answer was held before, also if its holder is pending at
// first.
func TestPendingAtTheFirstAnswer(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0").Pending = true
	energyAt(h, 0)
	energyAt(h, 1)
	h.Hold("a", "p0")
	x := energyAt(h, 2)
	h.Expect(x, map[[2]string]float64{
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}: 20,
		{"dra_device_energy_joules_total", "device=gpu-0"}:        20,
	})
	// A device that is removed from the inventory while its claim is pending.
	h.Hold("b", "p1").Pending = true
	energyAt(h, 3)
	h.In.Inventory, h.In.View.Allocations = nil, nil
	h.Pass(time.Second)
	h.Pass(time.Second)
}

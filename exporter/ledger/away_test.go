package ledger_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// What a device counts while the exporter does not run is charged to the holders of that time, as
// far as they are known. The bound of the receipt covers the rest, and not much more. The device
// draws 1 W: all numbers are seconds, and so joules.
func TestHoldsWhileAway(t *testing.T) {
	const (
		present = 10 // with the exporter, before and after
		edges   = 4  // allowed error, since beginnings and ends are only known to be between two ticks
	)
	// might is what a claim is charged, and the interval that its receipt must cover.
	type might struct{ charged, least, most float64 }
	always := func(v float64) might { return might{v, v, v} }
	for name, test := range map[string]struct {
		away         float64
		before, then string  // the claims that hold the device before, and afterwards
		cgroup       float64 // the latest time at which the later claim's cgroup was created; 0: unknown
		finished     float64 // the end of the earlier claim's pod, by its object; 0: unknown
		rebooted     bool
		a, b         might
	}{
		"held all the time": {away: 60, before: "a", then: "a", a: always(2*present + 60)},
		"began, its cgroup is known": {
			away: 60, then: "b", cgroup: 30, b: might{present + 30, present, present + 60},
		},
		"began, nothing is known": {away: 60, then: "b", b: might{present, present, present + 60}},
		"began in a short time":   {away: 2, then: "b", b: might{present + 1, present, present + 2}},
		"ended, nothing is known": {away: 60, before: "a", a: might{present, present, present + 60}},
		"ended, its object says when": {
			away: 60, before: "a", finished: 20, a: might{present + 20, present + 19, present + 21},
		},
		"one after the other": {
			away: 60, before: "a", then: "b", finished: 20, cgroup: 30,
			a: might{present + 20, present + 19, present + 21}, b: might{present + 30, present, present + 60},
		},
		"held for too long to know":       {away: 601, before: "a", then: "a", a: always(present)},
		"began in a time that is unknown": {away: 601, then: "b", b: always(present)},
		"held before a reboot":            {away: 60, before: "a", then: "a", rebooted: true, a: always(present)},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			var k log
			begun := h.Now
			got := map[string]might{}
			tick := func(pause float64) {
				h.Read(driver.Reading{Quantity: driver.Energy, Value: h.Now.Sub(begun).Seconds()})
				h.Pass(0)
				k.write(h.Ledger, h.Now)
				for c := range h.Last.ClosedClaims() {
					v := c[0].Amounts[0]
					if _, twice := got[c[0].Name]; !twice { // after a reboot it is another account
						got[c[0].Name] = might{v.Value, v.Value - v.Bound, v.Value + v.Bound}
					}
				}
				h.Now = h.Now.Add(time.Duration(pause * 1e9))
			}
			ticks := func() {
				for range present {
					tick(1)
				}
			}
			hold := func(claim string) {
				if claim != "" {
					h.Hold(claim, "p-"+claim)
				}
			}
			tick(0.001) // the first answer
			hold(test.before)
			ticks()
			left := h.Now.Add(-time.Second) // the last tick
			h.Now = left.Add(time.Duration(test.away * 1e9))
			k.Rebooted = test.rebooted
			h.Restart(k.Kept, h.Now)
			k = log{}
			h.Free(test.before)
			hold(test.then)
			sign := func(at float64, c podresources.Change) {
				if at != 0 {
					c.At = left.Add(time.Duration(at * 1e9))
					h.Changes = append(h.Changes, c)
				}
			}
			sign(test.finished, podresources.Change{
				PodUID: "uid-p-a", Gone: true, Doubt: podresources.Doubt{Early: time.Second},
			})
			sign(test.cgroup, podresources.Change{
				PodUID: "uid-p-b", Doubt: podresources.Doubt{Early: time.Duration(test.cgroup * 1e9)},
			})
			ticks()
			h.Free(test.then)
			h.Changes = nil
			for range 60 { // until the receipts are complete
				tick(1)
			}
			for claim, want := range map[string]might{"a": test.a, "b": test.b} {
				g := got[claim]
				expect.That(t, g.charged >= want.charged-edges && g.charged <= want.charged+edges,
					"claim %s is charged %.1f J, want %v", claim, g.charged, want.charged)
				widest := 4.0 * edges
				if want.least < want.most { // the device may have done all of its work before or after the change
					widest += 2 * test.away
				}
				expect.That(t, g.least <= want.least && g.most >= want.most && g.most-g.least <= widest,
					"the receipt of claim %s has %.1f to %.1f J, want %v to %v", claim, g.least, g.most, want.least, want.most)
			}
			total := exportertest.Scrape(t, h.Last).One(t, "dra_device_energy_joules_total", "device=gpu-0")
			if want := h.Now.Sub(begun).Seconds() - 1; total < want-edges || total > want+edges {
				t.Errorf("the device has %.1f J, want %v", total, want)
			}
		})
	}
}

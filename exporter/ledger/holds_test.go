package ledger_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// held returns an allocation of gpu-0 that the pod of a claim holds from one second to another. A
// beginning below 0 is unknown. An end below 0 means that the pod still holds it. A hold is
// identified by its claim and its beginning.
func held(claim string, from, to float64) podresources.Allocation {
	at := func(second float64) (t time.Time) {
		if second >= 0 {
			t = jointest.Start().Add(time.Duration(second * float64(time.Second)))
		}
		return t
	}
	a := jointest.Allocation("gpu-0", claim, "pod-"+claim)
	a.Holders[0].Hold = &podresources.Hold{ID: jointest.HoldID(claim, from), From: at(from), To: at(to)}
	return a
}

func shareOf(a podresources.Allocation) podresources.Allocation {
	a.ShareID = "#1"
	return a
}

// The holders of a decided time do not change. If the beginning or end of a hold becomes known too
// late, it takes effect from the decided time on, and is counted as a correction. The device uses
// 10 J a second. Each tick decides the time up to it, unless the device waits.
func TestHoldsThatAreKnownLate(t *testing.T) {
	type view struct {
		held, ended []podresources.Allocation
		waiting     float64 // the second since which the device waits; 0: it does not
	}
	some := func(a ...podresources.Allocation) []podresources.Allocation { return a }
	for name, tc := range map[string]struct {
		views       []view // of the seconds 0 to 3
		joules      map[string]float64
		corrections int
	}{
		"in time": {
			[]view{{}, {held: some(held("a", 0.5, -1))}, {ended: some(held("a", 0.5, 1.25))}, {}},
			map[string]float64{"a": 7.5},
			0,
		},
		"a late beginning": {
			[]view{{}, {}, {held: some(held("a", 0.5, -1))}, {ended: some(held("a", 0.5, 2.5))}},
			map[string]float64{"a": 15},
			1,
		},
		"a late end": {
			[]view{{}, {held: some(held("a", 0, -1))}, {held: some(held("a", 0, -1))}, {ended: some(held("a", 0, 1.5))}},
			map[string]float64{"a": 20},
			1,
		},
		"both between two ticks": {
			[]view{{}, {}, {ended: some(held("a", 1.25, 1.5))}, {ended: some(held("a", 1.25, 1.5))}},
			map[string]float64{"a": 2.5},
			0,
		},
		"both while the device waited, with another": {
			[]view{
				{held: some(held("b", -1, -1))},
				{held: some(held("b", -1, -1)), waiting: 0.5},
				{held: some(held("b", -1, -1)), waiting: 0.5},
				{held: some(held("b", -1, -1)), ended: some(held("a", 0.5, 1.5))},
			},
			map[string]float64{"a": 5, "b": 25},
			0,
		},
		"one known after it waited": {
			[]view{{}, {waiting: 0.5}, {waiting: 0.5}, {held: some(held("a", 0.5, -1))}},
			map[string]float64{"a": 25},
			0,
		},
		"a share whose ID becomes known later": {
			[]view{
				{},
				{held: some(held("a", 0.5, -1))},
				{held: some(held("a", 0.5, -1))},
				{held: some(shareOf(held("a", 0.5, -1)))},
			},
			map[string]float64{"a": 25},
			0,
		},
		"a hold of no time": {
			[]view{{}, {held: some(held("a", 1, -1))}, {ended: some(held("a", 1, 1))}, {}},
			map[string]float64{"a": 0},
			0,
		},
		"a hold of no time between two ticks": {
			[]view{
				{},
				{},
				{held: some(held("b", 1.25, -1)), ended: some(held("a", 1.5, 1.5))},
				{held: some(held("b", 1.25, -1)), ended: some(held("a", 1.5, 1.5))},
			},
			map[string]float64{"b": 17.5},
			0,
		},
		"two pods of one name": {
			[]view{
				{},
				{held: some(held("a", 0.5, -1))},
				{held: some(held("a", 1.5, -1)), ended: some(held("a", 0.5, 1.25))},
				{held: some(held("a", 1.5, -1)), ended: some(held("a", 0.5, 1.25))},
			},
			map[string]float64{"a": 22.5},
			0,
		},
	} {
		for _, every := range []int{1, 3} { // seconds from one reading to the next
			t.Run(fmt.Sprintf("%s, readings each %d s", name, every), func(t *testing.T) {
				books := ledger.New(exportertest.LedgerConfig())
				var s *book.Snapshot
				corrections := 0
				for second, v := range tc.views {
					now := jointest.Start().Add(time.Duration(second) * time.Second)
					read := second / every * every
					in := join.Input{
						View:      podresources.View{At: now, Allocations: v.held, Ended: v.ended},
						Inventory: driver.Inventory{jointest.ID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}},
						Sources: []join.SourceSamples{{Name: "a", Samples: []driver.Sample{{
							Hardware: driver.Hardware{UUID: "gpu-0"},
							Readings: []driver.Reading{{
								Quantity: driver.Energy, Value: 1000 + 10*float64(read),
								At: jointest.Start().Add(time.Duration(read) * time.Second),
							}},
						}}}},
					}
					if v.waiting > 0 {
						since := jointest.Start().Add(time.Duration(v.waiting * float64(time.Second)))
						in.View.Waiting = map[driver.ID]time.Time{jointest.ID("gpu-0"): since}
					}
					s = books.Advance(join.Join(in), now)
					corrections += s.Corrections
				}
				for _, h := range s.Claims {
					holds := slices.ContainsFunc(tc.views[3].held, func(a podresources.Allocation) bool {
						return a.Claim.Name == h.Name
					})
					expect.That(t, holds == h.Ended.IsZero(),
						"claim %s holds the device: %v, and it ended at %v", h.Name, holds, h.Ended)
				}
				expect.Is(t, corrections, tc.corrections, "corrections")
				rest, want := 30., map[[2]string]float64{}
				for claim, joules := range tc.joules {
					rest -= joules
					for _, of := range [][2]string{{"dra_claim_", "resourceclaim_name="}, {"dra_pod_", "pod=pod-"}} {
						want[[2]string{of[0] + "energy_joules_total", of[1] + claim}] = joules
						if len(tc.joules) == 1 {
							want[[2]string{of[0] + "allocated_seconds_total", of[1] + claim}] = joules / 10
						}
					}
				}
				want[[2]string{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}] = rest
				x := exportertest.Scrape(t, exportertest.Whole(s))
				for key, v := range want {
					if got := x.One(t, key[0], key[1]); math.Abs(got-v) > 1e-9 {
						t.Errorf("%s{%s} is %v, want %v", key[0], key[1], got, v)
					}
				}
			})
		}
	}
}

// A hold has one holding period, if its pod has two containers, and a pod of the same name ended a
// moment ago whose containers are sorted between them.
func TestHoldOfTwoContainers(t *testing.T) {
	both := func(uid string, from, to float64) podresources.Allocation {
		a := held("a", from, to)
		second := a.Holders[0]
		a.Holders[0].Container, a.Holders[0].UID, second.UID, second.Container = "main", uid, "", "side"
		a.Holders = append(a.Holders, second) // the pod's UID is known for one container
		return a
	}
	books := ledger.New(exportertest.LedgerConfig())
	view := podresources.View{At: jointest.Start()}
	books.Advance(join.Join(join.Input{View: view}), view.At)
	view.At = view.At.Add(time.Second)
	view.Ended = []podresources.Allocation{both("uid-1", 0.2, 0.4), both("uid-2", 0.6, 0.8)}
	inventory := driver.Inventory{jointest.ID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}}
	s := books.Advance(join.Join(join.Input{View: view, Inventory: inventory}), view.At)
	var periods []string
	for p := range s.Timeline.All() {
		periods = append(periods, fmt.Sprint(p.PodUID, " ", p.From.Sub(jointest.Start()), " ", p.To.Sub(jointest.Start())))
	}
	slices.Sort(periods)
	if want := []string{"uid-1 200ms 400ms", "uid-2 600ms 800ms"}; !slices.Equal(periods, want) {
		t.Errorf("periods %q, want %q", periods, want)
	}
}

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

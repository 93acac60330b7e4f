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

package ledger_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// live plays seconds in which gpu-0 uses 10 J and pod p of claim c holds it. Each second has the
// UIDs of the claim and of the pod; ? is an unknown UID, and - is no holder. A change between two
// seconds takes effect in the middle.
func live(h *exportertest.History, seconds ...string) exportertest.Scraped {
	var x exportertest.Scraped
	for _, second := range seconds {
		h.Free("c")
		if claim, pod, held := strings.Cut(second, " "); held {
			a := h.Hold("c", "p")
			a.ClaimUID, a.Holders[0].UID = strings.Trim(claim, "?"), strings.Trim(pod, "?")
		}
		h.Energy(10 * h.Now.Sub(jointest.Start()).Seconds())
		x = h.Tick(time.Second)
	}
	return x
}

// rowsOf returns the UIDs and joules of rows.
func rowsOf(rows ...[]book.Holder) []string {
	out := []string{}
	for _, h := range slices.Concat(rows...) {
		joules := 0.
		for _, v := range h.Values {
			if v.Quantity == driver.Energy {
				joules = v.Value
			}
		}
		out = append(out, fmt.Sprintf("%s: %.0f", h.UID, math.Round(joules)))
	}
	return out
}

// An account belongs to one UID. If a UID becomes known or unknown while the device is held, the
// account stays the same. Without UIDs, a name that is seen again after its holds ended gets a new
// account. The series of the name continue.
func TestAccountsAreOfUIDs(t *testing.T) {
	for name, tc := range map[string]struct {
		seconds []string
		claims  []string // the newest one, and then the earlier ones
		pods    []string
	}{
		"the same again": {
			[]string{"-", "u a", "u a", "-", "u a", "u a"}, []string{"u: 35"}, []string{"a: 35"},
		},
		"the same claim, another pod": {
			[]string{"-", "u a", "u a", "-", "u b", "u b"}, []string{"u: 35"}, []string{"b: 15", "a: 20"},
		},
		"another one": {
			[]string{"-", "u a", "u a", "-", "v b", "v b"}, []string{"v: 15", "u: 20"}, []string{"b: 15", "a: 20"},
		},
		"another one at once": {
			[]string{"-", "u a", "u a", "v b", "v b"}, []string{"v: 15", "u: 20"}, []string{"b: 15", "a: 20"},
		},
		"a third one": {
			[]string{"-", "u a", "-", "v b", "-", "w c", "w c"},
			[]string{"w: 15", "v: 10", "u: 10"},
			[]string{"c: 15", "b: 10", "a: 10"},
		},
		"known later":   {[]string{"-", "? a", "? ?", "u a", "u a"}, []string{"u: 35"}, []string{"a: 35"}},
		"unknown later": {[]string{"-", "u a", "u a", "? ?", "? a"}, []string{"u: 35"}, []string{"a: 35"}},
		"another one, known later": {
			[]string{"-", "u a", "u a", "-", "? b", "? b", "v b"}, []string{"v: 25", "u: 20"}, []string{"b: 25", "a: 20"},
		},
		"the same one, known later": {
			[]string{"-", "u a", "u a", "-", "? b", "? b", "u b"}, []string{"u: 45"}, []string{"b: 25", "a: 20"},
		},
		"never known": {
			[]string{"-", "? a", "? a", "-", "? a", "? a"}, []string{": 15", ": 20"}, []string{"a: 35"},
		},
		"neither is ever known": {
			[]string{"-", "? ?", "? ?", "-", "? ?", "? ?"}, []string{": 15", ": 20"}, []string{": 15", ": 20"},
		},
		"the one before, as long as the new one is not known": {
			[]string{"-", "u a", "u a", "-", "u b", "v b", "v b"}, []string{"v: 20", "u: 25"}, []string{"b: 25", "a: 20"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			x := live(h, tc.seconds...)
			expect.Equal(t, "claims", tc.claims, rowsOf(h.Last.Claims, h.Last.EarlierClaims))
			expect.Equal(t, "pods", tc.pods, rowsOf(h.Last.Pods, h.Last.EarlierPods))
			charged := 10*h.Last.Time.Sub(jointest.Start()).Seconds() -
				x.One(t, "dra_device_unattributed_energy_joules_total", "device=gpu-0")
			h.Expect(x, map[[2]string]float64{
				{claimEnergy, "resourceclaim_name=c"}: charged, {podEnergy, "pod=p"}: charged,
				{"dra_claim_allocated_seconds_total", "resourceclaim_name=c"}: charged / 10,
			})
		})
	}
}

// The series of a name continue those of the earlier claim of that name, with its late charges,
// also after the earlier account is dropped. Peaks and last times are those of the present claim.
func TestSeriesGoOn(t *testing.T) {
	h := exportertest.NewHistory(t)
	read := func(joules, memory, errors float64) {
		h.Read(
			driver.Reading{Quantity: driver.Energy, Value: joules}, driver.Reading{Quantity: driver.MemoryUsed, Value: memory},
			driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: errors},
		)
	}
	hold := func(uid string) {
		a := h.Hold("c", "p-"+uid)
		a.ClaimUID = uid
	}
	hold("u")
	read(0, 80, 0)
	h.Pass(time.Second)
	read(10, 80, 1)
	h.Pass(time.Second)
	h.Free("c")
	h.Pass(time.Second) // at 2 s, ended at 1.5 s
	hold("v")
	h.Pass(time.Second) // at 3 s, began at 2.5 s
	read(40, 30, 1)     // at 4 s, evenly since 1 s
	x := h.Tick(time.Second)
	const row = "resourceclaim_name=c"
	expected := map[[2]string]float64{
		{claimEnergy, row}: 10 + 5 + 15, {"dra_claim_errors_total", row}: 1, {"dra_claim_memory_used_peak_bytes", row}: 30,
		{"dra_claim_allocated_seconds_total", row}: 3, {"dra_claim_info", "uid=v"}: 1,
	}
	h.Expect(x, expected)
	expect.Equal(t, "claims", []string{"v: 15", "u: 15"}, rowsOf(h.Last.Claims, h.Last.EarlierClaims))
	v := &h.Last.Claims[0]
	if want := jointest.Start().Add(2500 * time.Millisecond); !v.Born.Equal(want) || !v.LastError.IsZero() {
		t.Errorf("v began at %v and was last hit at %v, want %v and never", v.Born, v.LastError, want)
	}
	if born := v.Metrics().Born; !born.Equal(jointest.Start()) {
		t.Errorf("the series began at %v, want %v", born, jointest.Start())
	}
	h.Now = h.Now.Add(exportertest.Retention + ledger.RememberFor)
	for range 2 { // the second tick exports what remained
		read(40, 30, 1)
		x = h.Tick(time.Second)
	}
	n := len(h.Last.EarlierClaims)
	expect.That(t, n <= 0, "%d earlier claims are kept", n)
	expected[[2]string{"dra_claim_allocated_seconds_total", row}] = 3 + h.Last.Time.Sub(jointest.Start()).Seconds() - 4
	h.Expect(x, expected)
	if born := h.Last.Claims[0].Metrics().Born; !born.Equal(jointest.Start()) {
		t.Errorf("the series began at %v, want %v", born, jointest.Start())
	}
}

// A pod that was deleted by force may still run beside a new pod of the same name. The gauges of
// the name have the sum of both parts, also while only the older pod holds the device.
func TestTwoOfOneName(t *testing.T) {
	h := exportertest.NewHistory(t)
	hold := func(claim, uid string) { h.Hold(claim, "p").Holders[0].UID = uid }
	tick := func() exportertest.Scraped {
		h.Read(driver.Reading{Quantity: driver.Power, Value: 120})
		return h.Tick(time.Second)
	}
	const of, power = "pod=p", "dra_pod_power_watts"
	hold("old", "a")
	tick()
	hold("new", "b")
	tick()
	h.Expect(tick(), map[[2]string]float64{
		{power, of}: 120, {"dra_claim_power_watts", "resourceclaim_name=old"}: 60,
		{"dra_claim_power_watts", "resourceclaim_name=new"}: 60,
	})
	h.Free("new")
	tick()
	h.Expect(tick(), map[[2]string]float64{{power, of}: 120, {"dra_claim_power_watts", "resourceclaim_name=old"}: 120})
	h.Free("old")
	tick()
	got := len(tick().Matching(power))
	expect.That(t, got <= 0, "%d series after the end", got)
}

// The timeline has, by UID, when each claim and pod held the device, and includes what became known
// later. Beginnings and ends may be wrong by half a second here. A timeline that was returned
// earlier does not change.
func TestTimeline(t *testing.T) {
	h := exportertest.NewHistory(t)
	live(h, "-", "? a", "u a")
	early := h.Last.Timeline
	live(h, "-", "v b", "v b")
	h.Hold("admin", "q").Admin = true
	live(h, "v b")
	after := func(seconds float64) time.Time {
		return jointest.Start().Add(time.Duration(seconds * float64(time.Second)))
	}
	u, v, admin := "c u p a 0.5 2.5", "c v p b 3.5 -", "admin  q uid-q 5.5 -"
	for name, tc := range map[string]struct {
		of       timeline.Timeline
		from, to float64
		want     []string // + marks a period that covers all of it
	}{
		"all":                        {h.Last.Timeline, 0, 9, []string{u, v, admin}},
		"before":                     {h.Last.Timeline, -1, -0.1, nil},
		"a moment":                   {h.Last.Timeline, 1.5, 1.5, []string{u + " +"}},
		"when it may have begun":     {h.Last.Timeline, 0.2, 0.2, []string{u}},
		"when it may have ended":     {h.Last.Timeline, 2.8, 2.8, []string{u}},
		"a span with both":           {h.Last.Timeline, 2, 4, []string{u, v}},
		"a span of one":              {h.Last.Timeline, 4.1, 4.9, []string{v + " +"}},
		"what was known at second 2": {early, 0, 9, []string{"c u p a 0.5 -"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for p := range tc.of.Held(jointest.ID("gpu-0"), after(tc.from), after(tc.to)) {
				to := "-"
				if !p.To.IsZero() {
					to = fmt.Sprint(p.To.Sub(jointest.Start()).Seconds())
				}
				if p.Covers(after(tc.from), after(tc.to)) {
					to += " +"
				}
				began := p.From.Sub(jointest.Start()).Seconds()
				got = append(got, fmt.Sprintf("%s %s %s %s %v %s", p.Claim.Name, p.ClaimUID, p.Pod.Name, p.PodUID, began, to))
			}
			expect.Equal(t, "", tc.want, got)
		})
	}
	h.Free("c")
	h.Free("admin")
	h.Pass(ledger.RememberFor + 2*time.Minute)
	h.Pass(time.Second)
	for p := range h.Last.Timeline.All() {
		t.Errorf("%+v is still there", p)
	}
}

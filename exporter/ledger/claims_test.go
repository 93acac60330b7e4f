package ledger_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// lifeStory plays the life of a claim, in seconds since the start of the ledger: it is allocated at
// 2, the pod is seen at 2.3, the CDI spec is written at 6.5, the device is busy from 10 to 20, the
// hold ends at 25, and the spec is removed at 25.5.
type lifeStory struct {
	*exportertest.History
	from, to int // when the device is busy
	edit     func(a *podresources.Allocation)
	other    bool // another claim holds the device too
	closed   []book.Closed
}

const lifeCDI = "example.com/gpu=gpu-0"

func sec(s float64) time.Time { return jointest.Start().Add(time.Duration(s * float64(time.Second))) }

func newLifeStory(t *testing.T) *lifeStory {
	s := &lifeStory{History: exportertest.NewHistory(t), from: 10, to: 20}
	s.Changes = []podresources.Change{
		{At: sec(6.5), CDI: []string{lifeCDI}}, {At: sec(25.5), Gone: true, CDI: []string{lifeCDI}},
	}
	return s
}

// play plays the seconds from one to another.
func (s *lifeStory) play(from, to int) {
	all := s.Changes
	for i := from; i < to; i++ {
		s.Changes = nil
		for _, c := range all {
			if !c.At.After(s.Now) {
				s.Changes = append(s.Changes, c)
			}
		}
		s.second(i)
		s.closed = append(s.closed, s.Last.Closed...)
	}
	s.Changes = all
}

func (s *lifeStory) second(i int) {
	a := jointest.Allocation("gpu-0", "claim", "p")
	a.ClaimUID, a.AllocatedAt = "uid", sec(2)
	a.Holders[0].UID = "pod-uid"
	a.Holders[0].Hold = &podresources.Hold{From: sec(2.3), Wanted: sec(2.3), Reason: podresources.ReasonWaiting}
	a.State = podresources.StateAllocated
	if i >= 7 {
		a.State, a.CDI = podresources.StatePrepared, []string{lifeCDI}
	}
	s.In.View.Allocations = nil
	if s.edit != nil {
		s.edit(&a)
	}
	if i >= 3 && i < 25 {
		s.In.View.Allocations = []podresources.Allocation{a}
	}
	if s.other {
		s.In.View.Allocations = append(s.In.View.Allocations, jointest.Allocation("gpu-0", "other", "q"))
	}
	busy := 0.0
	if i > s.from && i <= s.to {
		busy = 1
	}
	s.Read(driver.Reading{Quantity: driver.Utilization, Value: busy})
	s.Pass(time.Second)
}

// seconds returns the durations of a life in seconds; -1: unknown.
func seconds(l book.Life) map[string]float64 {
	out := map[string]float64{}
	for name, of := range map[string]func() (time.Duration, bool){
		"preparation": l.Preparation, "first activity": l.FirstActivity, "activity": l.Activity, "idle end": l.IdleEnd,
		"unpreparation": l.Unpreparation,
	} {
		took, known := of()
		out[name] = -1
		if known {
			out[name] = took.Round(100 * time.Millisecond).Seconds()
		}
	}
	return out
}

// The expected values, by hand: the pod waits since 2.3, the claim is prepared at 6.5, and is busy
// from the reading at 10 to the one at 20. The pod ended between the answers at 24 and 25.
func TestLife(t *testing.T) {
	s := newLifeStory(t)
	s.play(0, 70)
	must.That(t, len(s.closed) == 1, "%d claims were closed, want 1", len(s.closed))
	life := book.LifeOf(s.closed)
	want := map[string]float64{
		"preparation": 4.2, "first activity": 3.5, "activity": 10, "idle end": 4.5, "unpreparation": 1,
	}
	if diff := cmp.Diff(want, seconds(life)); diff != "" {
		t.Errorf("-want +got:\n%s\n%+v", diff, life)
	}
	text := exportertest.Text(t, s.Last)
	for _, line := range []string{
		`dra_claim_preparation_seconds_bucket{driver="gpu.example.com",le="4"} 0`,
		`dra_claim_preparation_seconds_bucket{driver="gpu.example.com",le="16"} 1`,
		`dra_claim_preparation_seconds_sum{driver="gpu.example.com"} 4.2`,
		`dra_claim_preparation_seconds_count{driver="gpu.example.com"} 1`,
		`dra_claim_first_activity_seconds_bucket{driver="gpu.example.com",le="1"} 0`,
		`dra_claim_first_activity_seconds_bucket{driver="gpu.example.com",le="4"} 1`,
		`dra_claim_first_activity_seconds_sum{driver="gpu.example.com"} 3.5`,
	} {
		expect.That(t, strings.Contains(text, line+"\n"), "there is no %s", line)
	}
}

// Unknown durations have no value: those of a claim that was held from the beginning, that was
// allocated before, that has no object, no activity or no CDI spec, or that is shared.
func TestLifeUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(s *lifeStory)
		first  int // the second of the first answer
		want   map[string]float64
	}{
		"held from the beginning": {first: 12, want: map[string]float64{
			"preparation": -1, "first activity": -1, "activity": -1, "idle end": -1, "unpreparation": 1,
		}},
		"no object of the claim": {
			change: func(s *lifeStory) { s.edit = func(a *podresources.Allocation) { a.AllocatedAt = time.Time{} } },
			want: map[string]float64{
				"preparation": -1, "first activity": 3.5, "activity": 10, "idle end": 4.5, "unpreparation": 1,
			},
		},
		"allocated before": {
			change: func(s *lifeStory) { s.edit = func(a *podresources.Allocation) { a.AllocatedAt = sec(-2) } },
			want: map[string]float64{
				"preparation": -1, "first activity": 3.5, "activity": 10, "idle end": 4.5, "unpreparation": 1,
			},
		},
		"idle": {change: func(s *lifeStory) { s.to = 0 }, want: map[string]float64{
			"preparation": 4.2, "first activity": -1, "activity": -1, "idle end": -1, "unpreparation": 1,
		}},
		"no CDI spec": {change: func(s *lifeStory) { s.Changes = nil }, want: map[string]float64{
			"preparation": 4.7, "first activity": 3, "activity": 10, "idle end": 4.5, "unpreparation": -1,
		}},
		"shared": {change: func(s *lifeStory) { s.other = true }, want: map[string]float64{
			"preparation": 4.2, "first activity": -1, "activity": -1, "idle end": -1, "unpreparation": 1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLifeStory(t)
			if tc.change != nil {
				tc.change(s)
			}
			s.Now = sec(float64(tc.first))
			s.play(tc.first, 70)
			closed := slices.DeleteFunc(s.closed, func(c book.Closed) bool { return c.Name != "claim" })
			expect.Equal(t, "", tc.want, seconds(book.LifeOf(closed)))
		})
	}
}

// The life of a claim continues over a restart of the exporter, whether the claim waits, is
// prepared or has ended. No claim counts twice.
func TestLifeOverRestart(t *testing.T) {
	for _, at := range []int{4, 8, 15, 30} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			s := newLifeStory(t)
			s.play(0, at)
			k := log{}
			k.write(s.Ledger, s.Now)
			s.Ledger = restored(t, k.Kept, s.Now)
			s.play(at, 70)
			want := map[string]float64{
				"preparation": 4.2, "first activity": 3.5, "activity": 10, "idle end": 4.5, "unpreparation": 1,
			}
			life := book.LifeOf(s.closed)
			if diff := cmp.Diff(want, seconds(life)); diff != "" {
				t.Errorf("-want +got:\n%s\n%+v", diff, life)
			}
			lives := s.Last.Lives
			expect.That(t, len(lives) == 1 && lives[0].Preparation.Count() == 1 && lives[0].FirstActivity.Count() == 1,
				"the distributions are %+v", lives)
		})
	}
}

// A claim of several devices is prepared with the last device, and active with the first. What is
// unknown of one device is unknown of the claim, except the activity of devices that had none.
func TestLifeOfSeveral(t *testing.T) {
	one := book.Life{
		Allocated: sec(0), Waiting: sec(1), Prepared: sec(5), FirstActive: sec(9), LastActive: sec(20), Ended: sec(30),
		Unprepared: sec(31),
	}
	two := one
	two.Prepared, two.FirstActive, two.LastActive, two.Unprepared = sec(7), sec(8), sec(19), time.Time{}
	idle := one
	idle.FirstActive, idle.LastActive = time.Time{}, time.Time{}
	got := book.LifeOf([]book.Closed{{Life: one}, {Life: two}, {Life: idle}})
	want := one
	want.Prepared, want.FirstActive, want.Unprepared = sec(7), sec(8), time.Time{}
	expect.Equal(t, "", want, got)
}

// A receipt has what was charged for the first time in the tick in which it is made.
func TestReceiptHasFirstCharge(t *testing.T) {
	closedAt := func(readAt int) (tick int, of book.Closed) {
		h := exportertest.NewHistory(t)
		h.Energy(1000)
		h.Pass(time.Second)
		h.Hold("c0", "p0")
		for tick := range 60 {
			if tick == 10 {
				h.Free("c0")
			}
			if h.Read(); tick == readAt {
				h.Energy(7000)
			}
			if h.Pass(time.Second); len(h.Last.Closed) > 0 {
				return tick, h.Last.Closed[0]
			}
		}
		t.Fatal("the claim is not closed")
		return 0, book.Closed{}
	}
	tick, without := closedAt(-1)
	_, with := closedAt(tick)
	expect.That(t, len(without.Amounts) == 0 && len(with.Amounts) == 1 && with.Amounts[0].Value >= 500,
		"the receipt has %+v without a reading, %+v with one when it is made", without.Amounts, with.Amounts)
}

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

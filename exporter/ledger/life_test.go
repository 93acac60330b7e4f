package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
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

package holders

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// datesTest calls Dates step by step.
type datesTest struct {
	Dates
	signs Signs
	all   []Change // signs has those of them that were seen
	view  podresources.View
}

// call passes allocations at a time in milliseconds.
func (d *datesTest) call(ms int, allocations ...Allocation) {
	d.signs.At = at(ms)
	for len(d.all) > 0 && !d.all[0].At.After(at(ms)) {
		d.signs.Changes, d.all = append(d.signs.Changes, d.all[0]), d.all[1:]
	}
	d.view = d.Date(allocations, d.signs, at(ms))
}

// uids sets the UIDs of the holders of an allocation.
func uids(a Allocation) Allocation {
	for i := range a.Holders {
		a.Holders[i].UID = "uid-" + a.Holders[i].Name
	}
	return a
}

// intervals returns the holds of a view as texts: "device#share pod [from, to)" in milliseconds.
func intervals(v podresources.View) (out []string) {
	ms := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return fmt.Sprint(t.Sub(at(0)).Milliseconds())
	}
	for _, a := range slices.Concat(v.Ended, v.Allocations) {
		for _, h := range a.Holders {
			device := a.Device.Device + a.ShareID
			out = append(out, fmt.Sprintf("%s %s [%s, %s)", device, h.Name, ms(h.Hold.From), ms(h.Hold.To)))
		}
	}
	return out
}

func (d *datesTest) expect(t *testing.T, what string, want ...string) {
	expect.Equal(t, what, want, intervals(d.view))
}

// A change between two answers has the time of its sign. Without a sign it has the middle between
// the answers or, if these are far apart, the time of the later answer.
func TestIntervals(t *testing.T) {
	pod := func(ms int, gone bool) Change { return Change{At: at(ms), Gone: gone, PodUID: "uid-p"} }
	const cdi = "example.com/gpu=gpu-0"
	for name, tc := range map[string]struct {
		changes  []Change
		gap      int // between the calls around each change, in milliseconds; 0: 1000
		waits    bool
		watched  bool
		from, to int // in milliseconds
	}{
		"middles":                   {from: 1500, to: 4500},
		"pod":                       {changes: []Change{pod(1200, false), pod(4900, true)}, from: 1200, to: 4900},
		"CDI":                       {changes: []Change{{At: at(1100), CDI: []string{cdi}}}, from: 1100, to: 4500},
		"the last sign of a coming": {changes: []Change{pod(1100, false), pod(1800, false)}, from: 1800, to: 4500},
		"the first sign of a going": {changes: []Change{pod(4200, true), pod(4800, true)}, from: 1500, to: 4200},
		"signs of others": {
			changes: []Change{{At: at(1100), PodUID: "q"}, {At: at(1200), CDI: []string{"x/y=z"}}}, from: 1500, to: 4500,
		},
		"signs of other times": {
			changes: []Change{pod(-1100, false), pod(2100, false), pod(3500, true)}, from: 1500, to: 4500,
		},
		"a sign before an answer":       {changes: []Change{pod(-900, false)}, from: 1000, to: 4500},
		"a sign at the earlier answer":  {changes: []Change{pod(1000, false)}, from: 1000, to: 4500},
		"a sign before and one between": {changes: []Change{pod(900, false), pod(1200, false)}, from: 1200, to: 4500},
		"a sign at the later answer":    {changes: []Change{pod(2000, false)}, from: 2000, to: 4500},
		"far apart: with the answers":   {gap: 4000, from: 8000, to: 20000},
		"far apart: with the signs": {
			gap: 4000, changes: []Change{pod(5500, false), pod(18500, true)}, from: 5500, to: 18500,
		},
		"just not too far: the middles": {gap: 3000, from: 4500, to: 13500},
		"not prepared":                  {waits: true, from: 2000, to: 4500},
		"watched, and no end seen yet":  {watched: true, from: 1500, to: 5000},
		"watched, and seen earlier":     {watched: true, changes: []Change{pod(3900, true)}, from: 1500, to: 4000},
	} {
		t.Run(name, func(t *testing.T) {
			d := datesTest{signs: Signs{Watched: tc.watched}, all: tc.changes}
			gap := max(tc.gap, 1000)
			a := uids(held("gpu-0", "p"))
			a.CDI = []string{cdi}
			if tc.waits {
				a.State = podresources.StateAllocated
			}
			d.call(0)
			d.call(gap)
			for i := 2; i < 5; i++ {
				d.call(i*gap, a)
				d.expect(t, "held", fmt.Sprintf("gpu-0 p [%d, -)", tc.from))
			}
			d.call(5 * gap)
			d.expect(t, "ended", fmt.Sprintf("gpu-0 p [%d, %d)", tc.from, tc.to))
			d.call(tc.to + 10_000)
			d.expect(t, "for ten seconds", fmt.Sprintf("gpu-0 p [%d, %d)", tc.from, tc.to))
			d.call(tc.to + 10_001)
			d.expect(t, "and not longer")
		})
	}
}

// The largest error of a start and of an end: for a sign the time that its news takes, for a guess
// the time between the answers, and for an end while the kubelet does not answer all of that time.
func TestDoubts(t *testing.T) {
	pod := func(ms int, gone bool) Change { return Change{At: at(ms), Gone: gone, PodUID: "uid-p"} }
	silent := &podresources.Hold{Reason: podresources.ReasonNoAnswer, Since: at(1200)}
	by := func(early, late int) podresources.Doubt {
		return podresources.Doubt{Early: at(early).Sub(at(0)), Late: at(late).Sub(at(0))}
	}
	for name, tc := range map[string]struct {
		changes  []Change
		watched  bool
		last     *podresources.Hold
		from, to podresources.Doubt
	}{
		"middles":                 {from: by(500, 500), to: by(500, 500)},
		"signs":                   {changes: []Change{pod(1200, false), pod(3300, true)}, from: by(50, 50), to: by(50, 50)},
		"a sign before an answer": {changes: []Change{pod(900, false)}, from: by(100, 1000), to: by(500, 500)},
		"an old sign":             {changes: []Change{pod(-3000, false)}, from: by(4500, 500), to: by(500, 500)},
		"watched":                 {watched: true, from: by(500, 500), to: by(1000, 0)},
		"the kubelet is silent":   {last: silent, from: by(500, 500), to: by(2000, 500)},
	} {
		d := datesTest{signs: Signs{Watched: tc.watched}, all: tc.changes}
		a := uids(held("gpu-0", "p"))
		d.call(0)
		d.call(1000)
		d.call(2000, a)
		if tc.last != nil {
			a = uids(held("gpu-0", "p"))
			a.Holders[0].Hold = tc.last
		}
		d.call(3000, a)
		d.call(4000)
		got := d.view.Ended[0].Holders[0].Hold
		expect.That(t, got.FromDoubt == tc.from && got.ToDoubt == tc.to,
			"%s: the begin may be off by %v, want %v; the end by %v, want %v", name, got.FromDoubt, tc.from, got.ToDoubt, tc.to)
	}
}

// A hold continues when its share becomes known.
func TestShareIsKnownLater(t *testing.T) {
	for _, pending := range []bool{false, true} {
		var d datesTest
		a := held("gpu-0", "p")
		d.call(0)
		a.Pending = pending
		d.call(1000, a)
		a.Pending, a.ShareID = false, "#1"
		d.call(2000, a)
		d.expect(t, fmt.Sprint("pending ", pending), "gpu-0#1 p [500, -)")
	}
}

// If pods are watched, a hold without a sign began when the object of its pod arrived. If that
// arrived during a request to the kubelet, the hold began at the start of the request, and not in
// the middle between two answers.
func TestHoldBeginsWithTheObjectOfItsPod(t *testing.T) {
	for came, want := range map[int]string{800: "gpu-0 p [800, -)", 1001: "gpu-0 p [1000, -)"} {
		d := datesTest{signs: Signs{Watched: true}}
		d.call(0)
		a := uids(held("gpu-0", "p"))
		a.Holders[0].Hold = &podresources.Hold{Wanted: at(came)}
		d.view = d.Date([]Allocation{a}, Signs{At: at(1000), Watched: true}, at(1005))
		d.expect(t, fmt.Sprint("the object came at ", came), want)
	}
}

// Pods that share a device have their own times. A pod of the same name with another UID is another
// pod. A UID that becomes known, or unknown, changes nothing.
func TestPodsAreDatedEach(t *testing.T) {
	var d datesTest
	of := func(uid string, names ...string) Allocation {
		a := held("gpu-0", names...)
		a.Holders[0].UID = uid
		return a
	}
	d.call(0)
	d.call(1000, of("", "p"))
	d.call(2000, of("1", "p", "q"))
	d.expect(t, "a second pod", "gpu-0 p [500, -)", "gpu-0 q [1500, -)")
	d.call(3000, of("", "p", "q"))
	d.expect(t, "a UID is not known any more", "gpu-0 p [500, -)", "gpu-0 q [1500, -)")
	d.call(4000, of("2", "p", "q"))
	d.expect(t, "another pod of the name", "gpu-0 p [500, 3500)", "gpu-0 p [3500, -)", "gpu-0 q [1500, -)")
	d.call(5000, of("2", "p"))
	d.expect(t, "one of two ends", "gpu-0 p [500, 3500)", "gpu-0 q [1500, 4500)", "gpu-0 p [3500, -)")
}

// An allocation whose facts are about to become known waits for up to two seconds. Its hold begins
// when it was first listed.
func TestPendingIsWithheld(t *testing.T) {
	pending := held("gpu-0", "p")
	pending.Pending = true
	waiting := func(d *datesTest) bool { return !d.view.Waiting[pending.Device].IsZero() }
	for name, answered := range map[string]bool{"answered": true, "never answered": false} {
		var d datesTest
		d.call(0)
		d.call(1000, pending)
		d.expect(t, name+": at first")
		if since := d.view.Waiting[pending.Device]; !since.Equal(at(500)) {
			t.Errorf("%s: it waits since %v", name, since.Sub(at(0)))
		}
		a := pending
		a.Pending = !answered
		d.call(2999, a)
		expect.That(t, waiting(&d) != answered, "%s: it waits: %v", name, waiting(&d))
		d.call(3000, a)
		d.expect(t, name+": after two seconds", "gpu-0 p [500, -)")
		d.call(4000, pending)
		d.expect(t, name+": once it was shown, it stays", "gpu-0 p [500, -)")
		expect.That(t, !waiting(&d), "%s: it waits for ever", name)
		d = datesTest{}
		d.call(0, pending)
		if since, waits := d.view.Waiting[pending.Device]; !waits || !since.IsZero() {
			t.Errorf("%s: since before the first answer it waits: %v, %v", name, waits, since)
		}
		if answered {
			d.call(1000)
			d.expect(t, "it went before it was known", "gpu-0 p [-, 500)")
		} else {
			d.call(2000, pending)
			d.expect(t, "it is not known what it is", "gpu-0 p [-, -)")
		}
	}
}

// The reason of a hold may change without a change of its times.
func TestReasonChangesNoTime(t *testing.T) {
	var d datesTest
	with := func(reason podresources.Reason, since int) Allocation {
		a := held("gpu-0", "p")
		a.Holders[0].Hold = &podresources.Hold{Reason: reason, Since: at(since)}
		return a
	}
	d.call(0)
	d.call(1000, with(podresources.ReasonWaiting, 900))
	before := d.view.Allocations[0].Holders[0].Hold
	d.call(2000, with(podresources.ReasonListed, 0))
	want := *before
	want.Reason, want.Since = podresources.ReasonListed, at(0)
	expect.Equal(t, "", want, *d.view.Allocations[0].Holders[0].Hold)
	expect.That(t, before.Reason == podresources.ReasonWaiting && before.Since.Equal(at(900)),
		"what was returned has changed: %+v", before)
}

// While nothing changes, a view has the same slices. Its time advances and never decreases.
func TestSameViewIsMadeOnce(t *testing.T) {
	var d datesTest
	allocations := []Allocation{held("gpu-0", "p"), held("gpu-1", "q")}
	d.call(0, allocations...)
	first := d.view
	d.call(1000, allocations...)
	if &d.view.Allocations[0] != &first.Allocations[0] || !d.view.At.Equal(at(1000)) {
		t.Errorf("the view is made again, as of %v", d.view.At.Sub(at(0)))
	}
	if view := d.Date(allocations, Signs{At: at(500)}, at(1500)); !view.At.Equal(at(1000)) {
		t.Errorf("the view is of %v", view.At.Sub(at(0)))
	}
	got := allocations[0].Holders[0].Hold
	expect.That(t, got == nil, "what was given has changed: %+v", got)
	d.signs.Changes = []Change{{At: at(1800), Gone: true, CDI: []string{"x"}}}
	d.call(2000, allocations...)
	expect.That(t, &d.view.Allocations[0] != &first.Allocations[0], "something went, and the view is not made again")
	d.signs.Changes = nil
	d.call(3000, allocations[:1]...)
	ended := &d.view.Ended[0]
	if d.call(4000, allocations[:1]...); &d.view.Ended[0] != ended {
		t.Error("nothing ended, and what has ended is made again")
	}
}

// A device is prepared when its CDI spec is created. Without a spec, it is prepared when the
// kubelet lists it, if that time is known within maxGuess. It is unprepared when the spec is
// removed after the end, even a while later.
func TestPrepared(t *testing.T) {
	const cdi = "example.com/gpu=gpu-0"
	spec := func(ms int, gone bool) Change { return Change{At: at(ms), Gone: gone, CDI: []string{cdi}} }
	for name, tc := range map[string]struct {
		changes              []Change
		listed               int  // when the kubelet's first answer after the wait names them
		waits                bool // earlier, objects report that the claim is allocated
		prepared, unprepared int  // in milliseconds; 0: unknown
	}{
		"by the spec": {changes: []Change{spec(2400, false)}, listed: 3000, waits: true, prepared: 2400},
		"by the spec, before an answer": {
			changes: []Change{spec(1900, false)}, listed: 3000, waits: true, prepared: 1900,
		},
		"by the answer":             {listed: 3000, waits: true, prepared: 3000},
		"by an answer that is late": {listed: 6000, waits: true},
		"the spec of another device": {
			changes: []Change{{At: at(2400), CDI: []string{"x/y=z"}}}, listed: 3000, waits: true, prepared: 3000,
		},
		"unprepared at the end": {
			changes: []Change{spec(2400, false), spec(7500, true)}, listed: 3000, prepared: 2400, unprepared: 7500,
		},
		"unprepared a while later": {
			changes: []Change{spec(2400, false), spec(9500, true)}, listed: 3000, prepared: 2400, unprepared: 9500,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := datesTest{all: tc.changes}
			a := uids(held("gpu-0", "p"))
			waiting := a
			waiting.State = podresources.StateAllocated
			a.CDI = []string{cdi}
			d.call(0)
			for ms := 1000; ms <= 2000; ms += 1000 {
				if tc.waits {
					d.call(ms, waiting)
				} else {
					d.call(ms)
				}
			}
			for _, ms := range []int{tc.listed, 6500, 7000} {
				d.call(ms, a)
			}
			expectTime(t, "prepared", d.view.Allocations[0].Holders[0].Hold.Prepared, tc.prepared)
			d.call(8000)
			d.call(10000)
			expectTime(t, "unprepared", d.view.Ended[0].Holders[0].Hold.Unprepared, tc.unprepared)
		})
	}
}

// expectTime compares a time with one in milliseconds; 0 is the zero time.
func expectTime(t *testing.T, what string, got time.Time, ms int) {
	t.Helper()
	want := time.Time{}
	if ms != 0 {
		want = at(ms)
	}
	if !got.Equal(want) {
		t.Errorf("%s at %v, want %v", what, got.Sub(at(0)), want.Sub(at(0)))
	}
}

// A pod exists since its first object or its cgroup, although it holds its devices later.
func TestWanted(t *testing.T) {
	for name, tc := range map[string]struct {
		changes []Change
		seen    int
		want    int
	}{
		"object":                   {seen: 1500, want: 1500},
		"cgroup":                   {changes: []Change{{At: at(1200), PodUID: "uid-p"}}, want: 1200},
		"object, and then cgroup":  {changes: []Change{{At: at(1700), PodUID: "uid-p"}}, seen: 1500, want: 1500},
		"the cgroup of another":    {changes: []Change{{At: at(1200), PodUID: "uid-q"}}},
		"the cgroup that has gone": {changes: []Change{{At: at(1200), Gone: true, PodUID: "uid-p"}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := datesTest{all: tc.changes}
			a := uids(held("gpu-0", "p"))
			if tc.seen != 0 {
				a.Holders[0].Hold = &podresources.Hold{Wanted: at(tc.seen)}
			}
			d.call(0)
			d.call(1000)
			for ms := 2000; ms <= 3000; ms += 1000 {
				d.call(ms, a)
				expectTime(t, "wanted", d.view.Allocations[0].Holders[0].Hold.Wanted, tc.want)
			}
		})
	}
}

// resumed returns the hold of a pod, with an allocation's device, that began in an earlier process.
func resumed(a podresources.Allocation, pod podresources.Pod, uid string) podresources.Allocation {
	a.Holders = []podresources.Holder{{Pod: pod, UID: uid, Hold: &podresources.Hold{From: at(-5000)}}}
	return a
}

// After a restart, a monitor with admin access owns nothing either, although the API server has not
// described its claim yet, or fails. When the API server describes the claim, that counts.
func TestAdminOutlivesRestart(t *testing.T) {
	gone := podresources.Pod{Name: "gone"}
	for _, pending := range []bool{true, false} {
		var d datesTest
		a := held("gpu-0", "monitor")
		holds := []podresources.Allocation{resumed(a, a.Holders[0].Pod, ""), resumed(a, gone, "uid-gone")}
		holds[0].Admin, holds[1].Admin = true, true
		d.Resume(holds, at(0))
		a.Pending = pending
		d.all = []Change{{At: at(500), Gone: true, PodUID: "uid-gone"}}
		d.call(1000, a)
		if got := d.view.Allocations; len(got) != 1 || !got[0].Admin {
			t.Errorf("pending %v: it holds %+v, want admin access", pending, got)
		}
		if got := d.view.Ended; len(got) != 1 || !got[0].Admin {
			t.Errorf("pending %v: %+v has ended, want admin access", pending, got)
		}
		a.Request = "gpus"
		d.call(2000, a)
		expect.That(t, !d.view.Allocations[0].Admin, "it has admin access, though its claim says otherwise")
	}
}

func TestChangeLog(t *testing.T) {
	cdi := []string{"v/c=1"}
	var l changeLog
	asked := at(2250)
	for i, step := range []struct {
		change Change
		added  bool
	}{
		{Change{At: at(0), PodUID: "a"}, true},
		{Change{At: at(900), PodUID: "a"}, false}, // the same change, seen twice
		{Change{At: at(2100), PodUID: "a"}, true},
		{Change{At: at(2200), PodUID: "a", Gone: true}, true},
		{Change{At: at(2240), PodUID: "a", Gone: true}, false},
		{Change{At: at(2260), PodUID: "a", Gone: true}, true}, // the kubelet may have listed it in between
		{Change{At: at(2300), PodUID: "a"}, true},             // created, removed, created
		{Change{At: at(2000), PodUID: "b"}, true},             // late
		{Change{At: at(2300), CDI: cdi}, true},
		{Change{At: at(2310), CDI: slices.Clone(cdi)}, false},
		{Change{At: at(2310), CDI: []string{"v/c=2"}}, true},
		{Change{At: at(2310), CDI: cdi, Gone: true}, true},
	} {
		expect.Is(t, l.add(step.change, asked), step.added, "step %d: added", i)
	}
	want := []Change{
		{At: at(2100), PodUID: "a"},
		{At: at(2200), PodUID: "a", Gone: true},
		{At: at(2260), PodUID: "a", Gone: true},
		{At: at(2300), PodUID: "a"},
		{At: at(2300), CDI: cdi},
		{At: at(2310), CDI: []string{"v/c=2"}},
		{At: at(2310), CDI: cdi, Gone: true},
	}
	expect.Equal(t, "", want, l.since(at(2000)))
	if got := l.since(at(2310)); len(got) != 0 {
		t.Errorf("after the last: %v", got)
	}
	expect.Is(t, len(l.since(time.Time{})), 9, "in all")
}

func TestChangeLogForgets(t *testing.T) {
	var l changeLog
	l.add(Change{At: at(0), PodUID: "a"}, time.Time{})
	l.add(Change{At: at(0).Add(changeMemory), PodUID: "b"}, time.Time{})
	expect.Is(t, len(l.since(time.Time{})), 2, "changes after ten minutes")
	l.add(Change{At: at(0).Add(changeMemory + 1), PodUID: "c"}, time.Time{})
	l.add(Change{At: at(0), PodUID: "d"}, time.Time{}) // too late
	got := l.since(time.Time{})
	expect.That(t, len(got) == 2 && got[0].PodUID == "b", "ten minutes later: %v", got)
	for i := range 2 * maxChanges {
		l.add(Change{At: at(600_000 + 10*i), PodUID: "x", CDI: []string{string(rune(i))}}, time.Time{})
	}
	expect.Is(t, len(l.since(time.Time{})), maxChanges, "changes")
}

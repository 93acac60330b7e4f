package holders_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// datedFrom is the time of the first answer of these tests.
var datedFrom = time.Unix(1_700_000_000, 0)

func after(ms int) time.Time { return datedFrom.Add(time.Duration(ms) * time.Millisecond) }

// answerOf returns an answer in which claim c0 and the given pods hold gpu-0.
func answerOf(pods ...string) []podresources.Allocation {
	a := podresources.Allocation{
		Claim: podresources.Claim{Namespace: "team", Name: "c0"}, CDI: []string{"example.com/gpu=c0"},
		Device: driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-0"},
	}
	for _, p := range pods {
		a.Holders = append(a.Holders, podresources.Holder{
			Pod: podresources.Pod{Namespace: "team", Name: p}, Container: "main", UID: "uid-" + p,
		})
	}
	if len(pods) == 0 {
		return nil
	}
	return []podresources.Allocation{a}
}

// shown returns a view as text: pods with the times of their holds after the first answer, and the
// times since which devices wait.
func shown(v podresources.View) (out []string) {
	ms := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return fmt.Sprint(t.Sub(datedFrom).Milliseconds())
	}
	for _, of := range [2][]podresources.Allocation{v.Allocations, v.Ended} {
		for _, a := range of {
			for _, h := range a.Holders {
				s := fmt.Sprintf("%s%s [%s,%s)", h.Name, a.ShareID, ms(h.Hold.From), ms(h.Hold.To))
				if !h.Hold.Left.IsZero() {
					s += " left " + ms(h.Hold.Left)
				}
				out = append(out, s)
			}
		}
	}
	for device, since := range v.Waiting {
		out = append(out, fmt.Sprintf("%s waits since %q", device.Device, ms(since)))
	}
	return out
}

// A change between two answers has the time of its sign. Without a sign it has the middle between
// the answers or, if these are far apart, the time of the later answer. The pod starts between the
// answers 1 and 2, and ends between 4 and 5.
func TestDates(t *testing.T) {
	pod := func(ms int, gone bool) podresources.Change {
		return podresources.Change{At: after(ms), Gone: gone, PodUID: "uid-p0"}
	}
	const second = time.Second
	for name, tc := range map[string]struct {
		changes  []podresources.Change
		gap      time.Duration // between the answers
		from, to int           // milliseconds
	}{
		"middles":  {nil, second, 1500, 4500},
		"pod":      {[]podresources.Change{pod(1200, false), pod(4900, true)}, second, 1200, 4900},
		"pod came": {[]podresources.Change{pod(1200, false)}, second, 1200, 4500},
		"pod went": {[]podresources.Change{pod(4900, true)}, second, 1500, 4900},
		"CDI": {
			[]podresources.Change{{At: after(1100), CDI: []string{"example.com/gpu=c0"}}}, second, 1100, 4500,
		},
		"the last sign of a coming": {[]podresources.Change{pod(1100, false), pod(1800, false)}, second, 1800, 4500},
		"the first sign of a going": {[]podresources.Change{pod(4200, true), pod(4800, true)}, second, 1500, 4200},
		"signs of others": {[]podresources.Change{
			{At: after(1100), PodUID: "uid-p1"}, {At: after(1200), CDI: []string{"example.com/gpu=c1"}},
		}, second, 1500, 4500},
		"signs of other times": {
			[]podresources.Change{pod(-1100, false), pod(2100, false), pod(3500, true)}, second, 1500, 4500,
		},
		"a sign before an answer":       {[]podresources.Change{pod(-900, false)}, second, 1000, 4500},
		"a sign at the earlier answer":  {[]podresources.Change{pod(1000, false)}, second, 1000, 4500},
		"a sign before and one between": {[]podresources.Change{pod(900, false), pod(1200, false)}, second, 1200, 4500},
		"a sign at the later answer":    {[]podresources.Change{pod(2000, false)}, second, 2000, 4500},
		"far apart: with the answers":   {nil, 4 * second, 8000, 20_000},
		"far apart: with the signs": {
			[]podresources.Change{pod(5500, false), pod(18_500, true)}, 4 * second, 5500, 18_500,
		},
		"just not too far: the middles": {nil, 3 * second, 4500, 13_500},
		"not prepared":                  {nil, second, 2000, 4500},
		"not prepared, with a sign":     {[]podresources.Change{pod(1200, false)}, second, 1200, 4500},
		"watched":                       {nil, second, 1500, 5000},
		"watched, with a sign":          {[]podresources.Change{pod(4200, true)}, second, 1500, 4200},
		"watched, with a sign before":   {[]podresources.Change{pod(3900, true)}, second, 1500, 4000},
	} {
		t.Run(name, func(t *testing.T) {
			var dates holders.Dates
			var view podresources.View
			for i := range 6 {
				now := datedFrom.Add(time.Duration(i) * tc.gap)
				var answer []podresources.Allocation
				if i >= 2 && i < 5 {
					answer = answerOf("p0")
					if name[:3] == "not" {
						answer[0].State = podresources.StateAllocated
					}
				}
				signs := holders.Signs{At: now, Changes: tc.changes, Watched: name[:3] == "wat"}
				view = dates.Date(answer, signs, now)
				if i >= 2 && i < 5 && !view.Allocations[0].Holders[0].Hold.From.Equal(after(tc.from)) {
					t.Errorf("answer %d: %v, want from %d", i, shown(view), tc.from)
				}
			}
			if diff := cmp.Diff([]string{fmt.Sprintf("p0 [%d,%d)", tc.from, tc.to)}, shown(cleared(view))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// cleared returns the view without the times at which processes ended.
func cleared(v podresources.View) podresources.View {
	for i := range v.Ended {
		for j := range v.Ended[i].Holders {
			hold := *v.Ended[i].Holders[j].Hold
			hold.Left = time.Time{}
			v.Ended[i].Holders[j].Hold = &hold
		}
	}
	return v
}

// A pod in the first answer held its devices before. An end is in the views for ten seconds. The
// end of processes does not end the hold. A hold continues when its share becomes known later. A
// hold whose facts are about to become known waits with its beginning, for at most two seconds.
func TestDatesOfStories(t *testing.T) {
	with := func(change func(a *podresources.Allocation), pods ...string) []podresources.Allocation {
		answer := answerOf(pods...)
		change(&answer[0])
		return answer
	}
	pending := func(a *podresources.Allocation) { a.Pending = true }
	share := func(a *podresources.Allocation) { a.ShareID = "#1" }
	type step struct {
		answer []podresources.Allocation
		want   []string
	}
	gone := podresources.Change{At: after(2700), Gone: true, PodUID: "uid-p0"}
	for name, tc := range map[string]struct {
		changes []podresources.Change
		steps   []step // one a second
	}{
		"the first answer": {nil, []step{
			{answerOf("p0"), []string{"p0 [,)"}}, {nil, []string{"p0 [,500)"}},
		}},
		"processes end": {[]podresources.Change{gone}, []step{
			{answerOf("p0"), []string{"p0 [,)"}},
			{answerOf("p0", "p1"), []string{"p0 [,)", "p1 [500,)"}},
			{answerOf("p0", "p1"), []string{"p0 [,)", "p1 [500,)"}},
			{answerOf("p0", "p1"), []string{"p0 [,) left 2700", "p1 [500,)"}},
			{answerOf("p1"), []string{"p1 [500,)", "p0 [,3500) left 2700"}},
		}},
		"a share": {nil, []step{
			{nil, nil}, {answerOf("p0"), []string{"p0 [500,)"}}, {with(share, "p0"), []string{"p0#1 [500,)"}},
		}},
		"it is known what it is": {nil, []step{
			{nil, nil},
			{with(pending, "p0"), []string{`gpu-0 waits since "500"`}},
			{with(pending, "p0"), []string{`gpu-0 waits since "500"`}},
			{with(share, "p0"), []string{"p0#1 [500,)"}},
		}},
		"it is not known what it is": {nil, []step{
			{with(pending, "p0"), []string{`gpu-0 waits since ""`}},
			{with(pending, "p0"), []string{`gpu-0 waits since ""`}},
			{with(pending, "p0"), []string{"p0 [,)"}},
		}},
		"it went before it was known": {nil, []step{
			{nil, nil}, {with(pending, "p0"), []string{`gpu-0 waits since "500"`}}, {nil, []string{"p0 [500,1500)"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var dates holders.Dates
			for i, s := range tc.steps {
				view := dates.Date(s.answer, holders.Signs{At: after(1000 * i), Changes: tc.changes}, after(1000*i))
				if diff := cmp.Diff(s.want, shown(view)); diff != "" {
					t.Errorf("step %d: -want +got:\n%s", i, diff)
				}
			}
		})
	}
}

// If pods are watched, a hold without a sign began when the object of its pod arrived. If that
// arrived during a request to the kubelet, the hold began at the start of the request, and not in
// the middle between two answers.
func TestHoldBeginsWithTheObjectOfItsPod(t *testing.T) {
	for came, want := range map[int]string{800: "p0 [800,)", 1001: "p0 [1000,)"} {
		var dates holders.Dates
		signs := func(ms int) holders.Signs { return holders.Signs{At: after(ms), Watched: true} }
		dates.Date(nil, signs(0), after(5))
		answer := answerOf("p0")
		answer[0].Holders[0].Hold = &podresources.Hold{Wanted: after(came)}
		if got := shown(dates.Date(answer, signs(1000), after(1005))); !slices.Equal(got, []string{want}) {
			t.Errorf("the object came at %d: %q, want %q", came, got, want)
		}
	}
}

// Ends are in the views for ten seconds. While nothing changes, the views have the same slices.
func TestDatesForgetEnds(t *testing.T) {
	var dates holders.Dates
	answer := answerOf("p0", "p1")
	dates.Date(answer, holders.Signs{At: after(0)}, after(0))
	answer = answerOf("p0")
	before := dates.Date(answer, holders.Signs{At: after(1000)}, after(1000))
	for second := 2; second <= 10; second++ {
		view := dates.Date(answer, holders.Signs{At: after(1000 * second)}, after(1000*second))
		if &view.Allocations[0] != &before.Allocations[0] || len(view.Ended) != 1 || &view.Ended[0] != &before.Ended[0] {
			t.Fatalf("second %d: %v, and before %v", second, shown(view), shown(before))
		}
		if !view.At.Equal(after(1000 * second)) {
			t.Errorf("second %d: the view is of %v", second, view.At)
		}
	}
	view := dates.Date(answer, holders.Signs{At: after(11_000)}, after(11_000))
	if got := shown(view); !slices.Equal(got, []string{"p0 [,)"}) {
		t.Errorf("after ten seconds: %v", got)
	}
}

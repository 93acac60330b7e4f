package holders

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// answerOf returns the answer of a node with these numbers of devices and pods, and the objects of
// the pods. All devices are held. Each pod has one container.
func answerOf(devices, pods int) (*Answer, []PodFacts) {
	a := &Answer{Asked: at(0), Kubelet: "1", Pods: map[Pod]struct{}{}}
	var facts []PodFacts
	for p := range pods {
		name := fmt.Sprintf("pod-%03d", p)
		a.Pods[podNamed(name)] = struct{}{}
		pod := running(name, "uid-"+name, 0)
		if p < devices {
			pod.Claims = []PodClaim{{Name: "gpu", Claim: fmt.Sprintf("claim-gpu-%02d", p)}}
			a.Allocations = append(a.Allocations, held(fmt.Sprintf("gpu-%02d", p), name))
		}
		facts = append(facts, pod)
	}
	return a, facts
}

// fullBook returns a book of a node of 64 devices and 500 pods, and its last answer.
func fullBook() (*Book, *Answer) {
	b := NewBook(grace, nil)
	answer, pods := answerOf(64, 500)
	b.PodsListed(pods, true, at(0))
	for i := range answer.Allocations {
		claim := answer.Allocations[i].Claim
		b.ClaimRead(claim, ClaimFacts{
			Read: at(1), Results: []ClaimResult{{Device: answer.Allocations[i].Device, Request: "r"}},
			Reserved: map[string]string{pods[i].UID: pods[i].Pod.Name},
		})
	}
	answer.Asked = at(2)
	b.Answered(answer)
	b.Holds(at(2), time.Time{})
	return b, answer
}

// sameHoldings reports whether both are the same slices.
func sameHoldings(a, b *Holdings) bool {
	return len(a.Allocations) == len(b.Allocations) && &a.Allocations[0] == &b.Allocations[0]
}

// As long as the answers are equal and no other evidence arrives, the holdings are the same slices:
// nothing is decided again. Any other evidence makes the book decide again.
func TestSameEvidenceIsDecidedOnce(t *testing.T) {
	b, answer := fullBook()
	first, signs := b.Holds(at(3), time.Time{})
	again := *answer
	again.Asked = at(1000)
	expect.That(t, b.Answered(&again), "the same answer is not believed")
	second, later := b.Holds(at(1001), time.Time{})
	expect.That(t, sameHoldings(&first, &second), "the same answer is decided again")
	if !signs.At.Equal(at(2)) || !later.At.Equal(at(1000)) {
		t.Errorf("it is known until %v, then %v", signs.At.Sub(at(0)), later.At.Sub(at(0)))
	}
	before := second
	for name, event := range map[string]func(){
		"a pod":   func() { b.PodChanged(running("new", "uid-new", 1), at(1002)) },
		"a claim": func() { b.ClaimRead(Claim{Namespace: "ns", Name: "new"}, ClaimFacts{Read: at(1002)}) },
		"a file":  func() { b.ClaimsListed(map[Claim]ClaimFacts{{Namespace: "ns", Name: "new"}: {}}, at(1002)) },
		"another answer": func() {
			b.Answered(&Answer{Asked: at(1003), Kubelet: "1", Pods: maps.Clone(answer.Pods), Allocations: answer.Allocations})
		},
		"no answer": func() { b.NotAnswered(nil, at(1004)) },
		"another kubelet": func() {
			restarted := again
			restarted.Kubelet = "2"
			b.Answered(&restarted)
		},
	} {
		event()
		now, _ := b.Holds(at(1005), time.Time{})
		expect.That(t, !sameHoldings(&now, &before), "%s: nothing is decided again", name)
		before = now
	}
}

// Evidence without news does not make the book decide again: repeated events, claims that are read
// again, and the states of cgroups while a pod ends.
func TestNoNewsIsDecidedOnce(t *testing.T) {
	b, answer := fullBook()
	_, pods := answerOf(64, 500)
	claim := answer.Allocations[0].Claim
	states := map[string]podresources.CgroupState{pods[1].UID: podresources.CgroupAlive}
	ending := pods[1]
	ending.Final = true
	nominated := running("waits", "uid-waits", 0)
	nominated.Nominated, nominated.Started = true, false
	ms := 2000
	for name, event := range map[string]func(ms int){
		"a pod":             func(ms int) { b.PodChanged(pods[0], at(ms)) },
		"a pod that ends":   func(ms int) { b.PodChanged(ending, at(ms)) },
		"a deletion":        func(ms int) { b.PodDeleted("uid-of-none", at(ms)) },
		"a status":          func(ms int) { b.PodRead(pods[0], at(ms)) },
		"a pod that waits":  func(ms int) { b.NominatedChanged(nominated, at(ms)) },
		"not nominated":     func(ms int) { b.NominatedGone("uid-of-nobody", at(ms)) },
		"a claim":           func(ms int) { facts := b.Claims()[claim]; facts.Read = at(ms); b.ClaimRead(claim, facts) },
		"a claim is gone":   func(ms int) { b.ClaimDeleted(answer.Allocations[2].Claim, at(ms)) },
		"a claim is needed": func(int) { b.ClaimForgotten(Claim{Namespace: "ns", Name: "of none"}) },
		"cgroups":           func(ms int) { b.PodChanged(ending, at(ms)); b.Cgroups(states, at(ms)) },
		"no answer":         func(ms int) { b.NotAnswered(states, at(ms)) },
		"an answer while a pod ends": func(ms int) {
			b.PodChanged(ending, at(1000))
			again := *answer
			again.Asked, again.Cgroups = at(ms), states
			b.Answered(&again)
		},
		"a cgroup comes": func(ms int) { b.Changed(Change{At: at(ms), PodUID: pods[0].UID}) },
	} {
		ms += 100
		event(ms)
		before, _ := b.Holds(at(ms+1), time.Time{})
		event(ms + 2)
		now, _ := b.Holds(at(ms+3), time.Time{})
		expect.That(t, sameHoldings(&now, &before), "%s: it is decided again", name)
	}
}

// When the kubelet has not answered for some time, this becomes the reason of the holds.
func TestReasonChangesWithTime(t *testing.T) {
	n := newNode(t)
	n.answer(0, held("gpu-0", "a"))
	n.fail(time.Second)
	n.expectReasons("it has failed once", map[string]podresources.Reason{"a": podresources.ReasonListed})
	n.now = n.now.Add(unansweredAfter)
	n.expectReasons("three seconds later", map[string]podresources.Reason{"a": podresources.ReasonNoAnswer})
	held, _ := n.Holds(n.now, time.Time{})
	if hold := held.Allocations[0].Holders[0].Hold; !hold.Since.Equal(at(1000)) {
		t.Errorf("it does not answer since %v", hold.Since.Sub(at(0)))
	}
}

// News of an end take 0.2 s to arrive. A view that is made in between does not reach beyond the
// end, and is not much older than that.
func TestNewsOnItsWay(t *testing.T) {
	n := newNode(t)
	n.Watching(n.now, n.now)
	n.now = n.now.Add(2 * catchUp)
	n.answer(0, held("gpu-0", "a"))
	ended := n.now.Add(time.Second)
	n.now = ended.Add(200*time.Millisecond - 1)
	must.That(t, n.Quiet(n.now), "the kubelet is asked")
	if _, signs := n.Holds(n.now, time.Time{}); signs.At.After(ended) || n.now.Sub(signs.At) > time.Second/2 {
		t.Errorf("it is known until %v after the end, of which there is no news yet", signs.At.Sub(ended))
	}
}

// While pods are watched, the kubelet is asked when a pod changes, and otherwise rarely. The
// holders are nevertheless known until shortly before the present.
func TestQuiet(t *testing.T) {
	n := newNode(t)
	asked := func(ticks int) (times int) {
		t.Helper()
		for range ticks {
			n.now = n.now.Add(time.Second)
			if !n.Quiet(n.now) {
				n.answer(0, held("gpu-0", "a"))
				times++
			}
			if _, signs := n.Holds(n.now, time.Time{}); n.now.Sub(signs.At) > watchLag || signs.At.After(n.now) {
				t.Fatalf("it is known until %v before now", n.now.Sub(signs.At))
			}
		}
		return times
	}
	is := func(what string, ticks, want int) {
		t.Helper()
		expect.Is(t, asked(ticks), want, "%s: questions in %d ticks", what, ticks)
	}
	is("without a watch", 20, 20)
	n.Watching(n.now, n.now)
	is("after the watch began", 4, 3)
	is("nothing happens", 60, 6)
	n.Changed(Change{At: n.now, PodUID: "x"})
	is("a cgroup came", 4, 2)
	n.PodChanged(running("b", "uid-b", 0), n.now)
	is("a pod changed", 4, 3)
	n.PodDeleted("uid-b", n.now)
	is("a pod was deleted", 4, 3)
	asked(10)
	n.fail(time.Second)
	expect.That(t, !n.Quiet(n.now), "the kubelet has not answered, and is not asked")
	n.restart()
	n.answer(time.Second)
	expect.That(t, !n.Quiet(n.now.Add(time.Second)), "the kubelet is in doubt, and is not asked")
	n.answer(time.Second, held("gpu-0", "a"))
	n.Watching(time.Time{}, n.now)
	is("the watch has ended", 10, 10)
}

// The time until which the holders are known never decreases, no matter which evidence arrives in
// which order.
func TestKnownTimeDoesNotGoBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		n.Watching(at(0), at(0))
		var before time.Time
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			moment := at(rapid.IntRange(0, 20_000).Draw(rt, "at"))
			n.now = driver.Later(n.now, moment)
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0:
				n.answerTo(moment, held("gpu-0", "a"))
			case 1:
				n.answerTo(moment)
			case 2:
				n.states["a"] = podresources.CgroupAlive
				if rapid.Bool().Draw(rt, "gone") {
					n.states["a"] = podresources.CgroupGone
				}
				n.NotAnswered(n.cgroups(n.unsure(nil, false)), moment)
			case 3:
				n.Quiet(moment)
			default:
				n.PodChanged(running("a", "a", 0), moment)
			}
			_, signs := n.Holds(n.now, time.Time{})
			must.That(rt, !signs.At.Before(before) && !signs.At.After(n.now),
				"it is known until %v, after %v, now is %v", signs.At, before, n.now)
			before = signs.At
		}
	})
}

// A book keeps a bounded number of all objects that users can create in any number.
func TestBookIsBounded(t *testing.T) {
	b := NewBook(grace, nil)
	for i := range maxPods + 10 {
		uid := fmt.Sprint("uid-", i)
		b.evidence.pods[uid] = &pod{PodFacts: PodFacts{UID: uid}, state: Deleted, since: at(i)}
	}
	b.PodDeleted("newest", at(maxPods+10))
	expect.Is(t, len(b.evidence.pods), maxPods, "pods that were deleted are remembered")
	expect.That(t, b.evidence.pods["uid-10"] == nil && b.evidence.pods["uid-11"] != nil, "not the oldest are forgotten")
	b.PodDeleted("last", at(3*maxPods).Add(2*keepDeleted))
	expect.Is(t, len(b.evidence.pods), 1, "pods that were deleted are remembered after a while")
	for i := range 2*maxPods + 10 {
		b.NominatedChanged(PodFacts{Pod: podNamed(fmt.Sprint(i)), UID: fmt.Sprint("n-", i), Nominated: true}, at(i))
	}
	expect.Is(t, len(b.evidence.pods), 2*maxPods, "pods")
}

// The cost of a tick with 64 devices and 500 pods: an answer, and the decision who holds what.
func BenchmarkTick(b *testing.B) {
	for name, change := range map[string]func(book *Book, answer *Answer, i int){
		"unchanged": func(*Book, *Answer, int) {},
		"pod": func(book *Book, _ *Answer, i int) {
			pod := running("pod-100", "uid-pod-100", 0)
			pod.Running = i % 2
			book.PodChanged(pod, at(i))
		},
		"answer": func(_ *Book, answer *Answer, _ int) { answer.Pods = maps.Clone(answer.Pods) },
	} {
		b.Run(name, func(b *testing.B) {
			book, answer := fullBook()
			b.ReportAllocs()
			i := 10
			for b.Loop() {
				i++
				next := *answer
				next.Asked = at(i)
				change(book, &next, i)
				book.Answered(&next)
				if held, _ := book.Holds(at(i), at(i-1)); len(held.Allocations) != 64 {
					b.Fatal(len(held.Allocations))
				}
			}
		})
	}
}

// The cost of the decision alone.
func BenchmarkHolds(b *testing.B) {
	book, _ := fullBook()
	b.ReportAllocs()
	for b.Loop() {
		if held := Holds(&book.evidence, at(10)); len(held.Allocations) != 64 {
			b.Fatal(len(held.Allocations))
		}
	}
}

// The cgroup of a pod is removed, and a later answer still lists the pod. The end of its hold is
// the time at which the kubelet deleted it, and not that of the next request.
func TestDeletedAfterAnAnswerThatHasThePod(t *testing.T) {
	answer, pods := answerOf(1, 2)
	uid := pods[0].UID
	b := NewBook(grace, nil)
	b.PodsListed(pods, true, at(0))
	b.Watching(at(0), at(0))
	var dates Dates
	var view podresources.View
	ask := func(ms int, allocations []Allocation, listed map[Pod]struct{}) {
		a := *answer
		a.Asked, a.Allocations, a.Pods = at(ms), allocations, listed
		b.Answered(&a)
		held, signs := b.Holds(at(ms), view.At)
		view = dates.Date(held.Allocations, signs, at(ms))
	}
	ask(1000, answer.Allocations, answer.Pods)
	b.Changed(Change{At: at(1500), Gone: true, PodUID: uid})
	ask(1600, answer.Allocations, answer.Pods)
	b.PodDeleted(uid, at(1700))
	without := maps.Clone(answer.Pods)
	delete(without, pods[0].Pod)
	ask(2000, nil, without)
	if len(view.Ended) != 1 || !view.Ended[0].Holders[0].Hold.To.Equal(at(1700)) {
		t.Errorf("got %v, want an end at 1700", intervals(view))
	}
}

// The hold of a pod that the kubelet lists before its object is known begins with its cgroup. It is
// shown when the watch has delivered its UID, or after two seconds without it.
func TestBeginOfPodWhoseUIDIsKnownLater(t *testing.T) {
	answer, pods := answerOf(2, 2)
	pod := pods[1]
	old := *answer
	old.Pods = maps.Clone(answer.Pods)
	delete(old.Pods, pod.Pod)
	old.Allocations = answer.Allocations[:1]
	for name, told := range map[string]bool{"told": true, "never told": false} {
		b := NewBook(grace, nil)
		b.PodsListed(pods[:1], true, at(0))
		b.Watching(at(0), at(0))
		var dates Dates
		var view podresources.View
		ask := func(ms int, a Answer) {
			a.Asked = at(ms)
			b.Answered(&a)
			held, signs := b.Holds(at(ms), view.At)
			view = dates.Date(held.Allocations, signs, at(ms))
		}
		ask(1000, old)
		b.Changed(Change{At: at(1900), PodUID: pod.UID})
		ask(2000, *answer)
		if len(view.Allocations) != 1 || len(view.Waiting) != 1 {
			t.Errorf("%s: before its UID is known: %v, %v waits", name, intervals(view), view.Waiting)
		}
		want := "gpu-01 pod-001 [1500, -)"
		if told {
			b.PodChanged(pod, at(2010))
			ask(2100, *answer)
			want = "gpu-01 pod-001 [1900, -)"
		} else {
			ask(4000, *answer)
		}
		got := intervals(view)
		expect.That(t, len(got) == 2 && got[1] == want, "%s: got %v, want %s", name, got, want)
	}
}

// If pods are watched and the creation of a pod's cgroup was not seen, its hold does not begin
// before its first object arrived.
func TestBeginOfPodWhoseCgroupIsNotSeen(t *testing.T) {
	answer, pods := answerOf(1, 1)
	b := NewBook(grace, nil)
	b.Watching(at(0), at(0))
	var dates Dates
	b.Answered(&Answer{Asked: at(1000), Kubelet: "1"})
	held, signs := b.Holds(at(1000), time.Time{})
	before := dates.Date(held.Allocations, signs, at(1000))
	b.PodChanged(pods[0], at(1800))
	answer.Asked = at(2000)
	b.Answered(answer)
	held, signs = b.Holds(at(2000), before.At)
	want := "gpu-00 pod-000 [1800, -)"
	got := intervals(dates.Date(held.Allocations, signs, at(2000)))
	expect.That(t, len(got) == 1 && got[0] == want, "got %v, want %s", got, want)
}

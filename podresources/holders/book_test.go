package holders

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
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

// fullBook returns a book of a node with these numbers of devices and pods, and its last answer.
func fullBook(devices, numPods int) (*Book, *Answer) {
	b := NewBook(grace, nil)
	answer, pods := answerOf(devices, numPods)
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

// Evidence without news does not make the book decide again: repeated events, claims that are read
// again, and the states of cgroups while a pod ends.
func TestNoNewsIsDecidedOnce(t *testing.T) {
	b, answer := fullBook(64, 500)
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

// The cost of a tick with 64 devices and 500 pods, and with 2048 and 8000: an answer, the decision
// who holds what, and its dates.
func BenchmarkTick(b *testing.B) {
	for name, change := range map[string]func(book *Book, answer *Answer, i int){
		"unchanged": func(*Book, *Answer, int) {},
		"pod": func(book *Book, _ *Answer, i int) {
			pod := running("pod-100", "uid-pod-100", 0)
			pod.Running = i % 2
			book.PodChanged(pod, at(i))
		},
		"answer": func(_ *Book, answer *Answer, _ int) { answer.Pods = maps.Clone(answer.Pods) },
		"starts": func(book *Book, answer *Answer, i int) {
			for j := range answer.Allocations {
				book.Changed(Change{At: at(i), Gone: i%2 == 0, PodUID: "uid-" + answer.Allocations[j].Holders[0].Name})
			}
			if i%2 == 0 {
				answer.Pods, answer.Allocations = map[Pod]struct{}{}, nil
			}
		},
	} {
		for devices, pods := range map[int]int{64: 500, 2048: 8000} {
			b.Run(fmt.Sprint(name, "/devices=", devices), func(b *testing.B) {
				book, answer := fullBook(devices, pods)
				var dates Dates
				b.ReportAllocs()
				i := 10
				for b.Loop() {
					i++
					next := *answer
					next.Asked = at(i)
					change(book, &next, i)
					book.Answered(&next)
					held, signs := book.Holds(at(i), at(i-1))
					dates.Date(held.Allocations, signs, at(i))
				}
			})
		}
	}
}

// The cgroup of a pod is removed, and a later answer still lists the pod. The end of its hold is
// the time at which the kubelet deleted it, and not that of the next request.
func TestDeletedAfterAnAnswerThatHasThePod(t *testing.T) {
	answer, pods := answerOf(1, 2)
	uid := pods[0].UID
	w := watchOf(pods)
	w.ask(1000, *answer)
	w.Changed(Change{At: at(1500), Gone: true, PodUID: uid})
	w.ask(1600, *answer)
	w.PodDeleted(uid, at(1700))
	without := maps.Clone(answer.Pods)
	delete(without, pods[0].Pod)
	w.ask(2000, Answer{Kubelet: "1", Pods: without})
	expect.Equal(t, "", []string{"gpu-00 pod-000 [-, 1700)"}, intervals(w.view))
}

// watch is a book whose pods are watched, and what its answers are dated as.
type watch struct {
	*Book
	dates Dates
	view  podresources.View
}

func watchOf(pods []PodFacts) *watch {
	w := &watch{Book: NewBook(grace, nil)}
	w.PodsListed(pods, true, at(0))
	w.Watching(at(0), at(0))
	return w
}

// ask makes the kubelet answer.
func (w *watch) ask(ms int, a Answer) {
	a.Asked = at(ms)
	w.Answered(&a)
	held, signs := w.Holds(at(ms), w.view.At)
	w.view = w.dates.Date(held.Allocations, signs, at(ms))
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
		w := watchOf(pods[:1])
		w.ask(1000, old)
		w.Changed(Change{At: at(1900), PodUID: pod.UID})
		w.ask(2000, *answer)
		expect.That(t, len(w.view.Allocations) == 1 && len(w.view.Waiting) == 1,
			"%s: before its UID is known: %v, %v waits", name, intervals(w.view), w.view.Waiting)
		want := "gpu-01 pod-001 [1500, -)"
		if told {
			w.PodChanged(pod, at(2010))
			w.ask(2100, *answer)
			want = "gpu-01 pod-001 [1900, -)"
		} else {
			w.ask(4000, *answer)
		}
		got := intervals(w.view)
		expect.That(t, len(got) == 2 && got[1] == want, "%s: got %v, want %s", name, got, want)
	}
}

// listing is a kubelet that answers with pods or with an error.
type listing struct {
	pods     []*v1.PodResources
	err      error
	instance podresources.Instance
	asked    func() // called during a request; nil: nothing happens
}

func (l *listing) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	if l.asked != nil {
		l.asked()
	}
	return &v1.ListPodResourcesResponse{PodResources: l.pods}, l.err
}

func (l *listing) Instance() podresources.Instance { return l.instance }

// holding returns a pod that holds gpu-0 through the claim that all of these pods share.
func holding(name string) *v1.PodResources {
	return test.Pod("ns", name, test.Container("main",
		test.Claim("ns", "claim", test.Device("gpu.example.com", "node1", "gpu-0"))))
}

// askerTest is an asker of a node whose clock and cgroups the test sets.
type askerTest struct {
	Asker
	listing listing
	now     time.Time
	states  map[string]podresources.CgroupState
}

func newAskerTest(pods ...string) *askerTest {
	o := &askerTest{now: at(0), states: map[string]podresources.CgroupState{}, listing: listing{instance: "1"}}
	for _, pod := range pods {
		o.listing.pods = append(o.listing.pods, holding(pod))
	}
	o.Asker = Asker{
		Lister: &o.listing, Limiter: &podresources.Limiter{}, Book: NewBook(grace, nil),
		UID: func(pod Pod, _ time.Time) string { return pod.Name + "-uid" },
		Cgroups: func(uids []string) map[string]podresources.CgroupState {
			out := map[string]podresources.CgroupState{}
			for _, uid := range uids {
				out[uid] = o.states[uid]
			}
			return out
		},
		Now: func() time.Time { return o.now },
	}
	return o
}

// observe sends a request a second later. It returns the number of containers that hold devices,
// and the time until which this is known.
func (o *askerTest) observe(t *testing.T) (got podresources.Observation, holders int, known time.Time, err error) {
	o.now = o.now.Add(time.Second)
	got, err = o.Observe(t.Context())
	held, signs := o.Book.Holds(o.now, time.Time{})
	return got, countHolders(held.Allocations), signs.At, err
}

func TestAskerKeepsHoldersWhileTheKubeletIsAway(t *testing.T) {
	o := newAskerTest("a", "b")
	first, holders, known, err := o.observe(t)
	must.That(t, err == nil && holders == 2 && known.Equal(o.now) && first.Asked && len(first.Listed) == 1,
		"got %+v, %d holders as of %v, %v, want two as of now", first, holders, known, err)
	before := o.now
	o.listing.err = errors.New("away")
	if got, holders, known, err := o.observe(t); err == nil || holders != 2 || !known.Equal(before) || !got.Asked {
		t.Errorf("got %+v, %d holders as of %v, %v, want an error and the two as of before", got, holders, known, err)
	}
	// When one of two pods that share an allocation ends, this is known immediately.
	o.states["a-uid"] = podresources.CgroupGone
	if got, holders, known, err := o.observe(t); err == nil || holders != 1 || !known.Equal(o.now) {
		t.Errorf("got %+v, %d holders as of %v, %v, want an error and one as of now", got, holders, known, err)
	}
}

// A kubelet that restarts during a request may have answered before or after the restart: the
// absence of a pod is believed if it lists other pods.
func TestKubeletRestartsDuringAQuestion(t *testing.T) {
	o := newAskerTest("a", "b")
	if _, _, _, err := o.observe(t); err != nil {
		t.Fatal(err)
	}
	o.listing.asked = func() { o.listing.instance += "'" }
	o.listing.pods = nil
	if _, holders, _, err := o.observe(t); driver.ReasonOf(err) != driver.ReasonEmptyDisbelieved || holders != 2 {
		t.Errorf("an empty answer: %d holders, %v, want the two", holders, err)
	}
	o.listing.pods = []*v1.PodResources{holding("b")}
	if _, holders, _, err := o.observe(t); err != nil || holders != 1 {
		t.Errorf("an answer with another pod: %d holders, %v, want that one", holders, err)
	}
}

// The kubelet is not asked at every tick, but immediately when a sign arrives, and once again
// afterwards, since the first answer may be too early.
func TestAskerSparesTheKubelet(t *testing.T) {
	o := newAskerTest("a")
	asked := func(ticks int) (n int) {
		for range ticks {
			o.now = o.now.Add(20 * time.Millisecond)
			got, err := o.Observe(t.Context())
			must.Do(t, err)
			if got.Asked {
				n++
			} else if !got.Retry.After(o.now) {
				t.Errorf("not asked, and to be asked again at %v, which is past", got.Retry)
			}
			held, _ := o.Book.Holds(o.now, time.Time{})
			must.That(t, countHolders(held.Allocations) == 1, "got %+v, want the holder", held)
		}
		return n
	}
	if got := asked(10); got != 1 {
		t.Errorf("the kubelet was asked %d times in 200 ms, want 1", got)
	}
	o.Book.Changed(podresources.Change{At: o.now, PodUID: "b"})
	expect.That(t, asked(1) == 1, "the kubelet is not asked when something has come")
	if got := asked(40); got != 1 {
		t.Errorf("the kubelet was asked %d times more in 800 ms, want 1", got)
	}
}

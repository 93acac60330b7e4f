package podresources

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// second returns a moment, some seconds after the beginning.
func second(n int) time.Time { return time.Unix(1_700_000_000+int64(n), 0) }

func TestPodSet(t *testing.T) {
	var s PodSet
	a, b := Pod{"ns", "a"}, Pod{"ns", "b"}
	set := func(pod Pod, uid string, n int) { s.Set(PodFacts{Pod: pod, UID: uid}, second(n)) }
	want := func(what string, pods ...PodFacts) {
		t.Helper()
		if diff := cmp.Diff(byUID(pods...), s.All()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", what, diff)
		}
	}
	set(a, "1", 0)
	first := s.All()
	set(b, "2", 1)
	s.Remove("of none")
	want("two pods", PodFacts{Pod: a, UID: "1", Seen: second(0)}, PodFacts{Pod: b, UID: "2", Seen: second(1)})
	if s.UID(b) != "2" || s.UID(Pod{"ns", "c"}) != "" {
		t.Errorf("b is %q, c is %q", s.UID(b), s.UID(Pod{"ns", "c"}))
	}
	s.Remove("1")
	gone := PodFacts{Pod: a, UID: "1", Seen: second(0), Gone: true}
	want("one is gone", gone, PodFacts{Pod: b, UID: "2", Seen: second(1)})
	if diff := cmp.Diff(byUID(PodFacts{Pod: a, UID: "1", Seen: second(0)}), first); diff != "" {
		t.Errorf("what was handed out changed:\n%s", diff)
	}
	s.Replace([]PodFacts{{Pod: b, UID: "3"}}, second(2))
	want("replaced", gone, PodFacts{Pod: b, UID: "3", Seen: second(2)})
	s.Replace([]PodFacts{{Pod: a, UID: "4"}, {Pod: b, UID: "3"}}, second(3))
	want("replaced again", gone, PodFacts{Pod: b, UID: "3", Seen: second(2)}, PodFacts{Pod: a, UID: "4", Seen: second(3)})
	if s.UID(a) != "4" {
		t.Errorf("a is %q", s.UID(a))
	}
}

// What the kubelet listed before a pod was gone gives the pod nothing back, and a pod that it does
// not list any more is forgotten.
func TestPodIsGoneBeforeTheNextAnswer(t *testing.T) {
	var s PodSet
	a := Pod{"ns", "a"}
	listed := []Allocation{{Holders: []Holder{{Pod: a, Container: "main"}}}}
	holders := func() int { return countHolders(Facts{Pods: s.All()}.Resolve(listed).Allocations) }
	s.Set(PodFacts{Pod: a, UID: "1"}, second(0))
	if holders() != 1 {
		t.Error("a pod that runs holds nothing")
	}
	s.Set(PodFacts{Pod: a, UID: "1", Ended: true}, second(1))
	s.Remove("1")
	s.Forget(listed)
	if holders() != 0 {
		t.Error("a pod that ended holds again when it is gone")
	}
	s.Forget(nil)
	if len(s.All()) != 0 {
		t.Errorf("pods %v", s.All())
	}
	s.Set(PodFacts{Pod: a, UID: "2"}, second(2))
	s.Remove("2")
	s.Set(PodFacts{Pod: a, UID: "3"}, second(3))
	s.Forget(nil)
	if holders() != 1 {
		t.Error("a pod that was recreated under the name holds nothing")
	}
}

// A pod is deleted by force, and the kubelet reports its deletion only after that of the pod that
// replaced it. It holds nothing meanwhile, whether the kubelet's last list is of the second pod or
// of a third one: the API server has no object of the first one any more.
func TestReplacedPodHoldsNothing(t *testing.T) {
	name, claim := Pod{"ns", "set-0"}, Claim{"ns", "of-first"}
	first := PodFacts{
		Pod: name, UID: "1", Created: second(0), Started: true, Running: 1,
		Claims: []PodClaim{{Name: "c", Claim: claim.Name}},
	}
	ended := first
	ended.Ending, ended.Running = true, 0
	const listed, notListed = true, false
	both := func(s *PodSet) {
		s.replacedBy("2", 1)
		s.Set(ended, second(2))
	}
	for what, tc := range map[string]struct {
		do    func(s *PodSet)
		first bool // it is listed
		want  int
	}{
		"it runs":             {func(*PodSet) {}, listed, 1},
		"it has ended":        {func(s *PodSet) { s.Set(ended, second(2)) }, notListed, 0},
		"and is listed":       {func(s *PodSet) { s.Set(ended, second(2)) }, listed, 1},
		"the second is there": {both, listed, 0},
		"created as it ended": {func(s *PodSet) { s.Set(ended, second(2)); s.replacedBy("2", 0) }, listed, 0},
		"the second is gone":  {func(s *PodSet) { both(s); s.Remove("2") }, listed, 0},
		"and forgotten":       {func(s *PodSet) { both(s); s.Remove("2"); s.Forget(nil) }, listed, 0},
		"gone before the first": {func(s *PodSet) {
			s.replacedBy("2", 1)
			s.Remove("2")
			s.Set(ended, second(2))
		}, listed, 0},
		"the watch began anew meanwhile": {func(s *PodSet) {
			s.Replace([]PodFacts{{Pod: name, UID: "2", Created: second(1)}}, second(2))
			s.Set(ended, second(3))
			s.Remove("2")
		}, listed, 0},
		"the second's clock was set back": {func(s *PodSet) {
			s.replacedBy("2", -1)
			s.Set(ended, second(2))
			s.Remove("1")
		}, listed, 0},
	} {
		var s PodSet
		s.Set(first, second(0))
		tc.do(&s)
		facts := Facts{
			Pods: s.All(), Listed: map[Pod]struct{}{},
			Claims: map[Claim]ClaimFacts{claim: {
				Results: []ClaimResult{{Device: deviceNamed("a")}}, Reserved: map[string]string{"1": name.Name}, Read: second(0),
			}},
		}
		if tc.first {
			facts.Listed[name] = struct{}{}
		}
		if got := countHolders(facts.Resolve(nil).Allocations); got != tc.want {
			t.Errorf("%s: %d holders, want %d: %+v", what, got, tc.want, s.All())
		}
		if uid := s.UID(name); uid == "1" && s.All()["2"].UID != "" {
			t.Errorf("%s: the pod of the name is the first", what)
		}
	}
}

// replacedBy adds a pod of the name of another, created at a second.
func (s *PodSet) replacedBy(uid string, created int) {
	s.Set(PodFacts{Pod: Pod{"ns", "set-0"}, UID: uid, Created: second(created), Started: true, Running: 1}, second(1))
}

// A static pod that is made anew of the same manifest has the UID of the one before it, and holds
// what the kubelet lists; so does one whose mirror pod was deleted.
func TestStaticPodComesBack(t *testing.T) {
	var s PodSet
	a := Pod{"kube-system", "a"}
	listed := []Allocation{{Holders: []Holder{{Pod: a, UID: "1", Container: "main"}}}}
	holders := func() int { return countHolders(Facts{Pods: s.All()}.Resolve(listed).Allocations) }
	s.Set(PodFacts{Pod: a, UID: "1", Static: true, Ending: true}, second(0))
	s.Remove("1")
	if holders() != 1 {
		t.Error("a static pod without its mirror pod holds nothing")
	}
	s.Set(PodFacts{Pod: a, UID: "1", Static: true}, second(1))
	if facts, _ := s.Get("1"); facts.Gone || holders() != 1 {
		t.Errorf("the static pod that came back holds %d devices: %+v", holders(), facts)
	}
}

// However the events of pods of one name are mixed, each pod's own in their order, the pod of the
// name is the one that was created last, and it is gone only by its own deletion.
func TestNewestPodStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := Pod{"ns", "a"}
		lives := rapid.IntRange(1, 4).Draw(t, "lives")
		left := make([][]PodFacts, lives)
		for i := range left {
			uid := string(rune('a' + (i*5+3)%7)) // the order of UIDs is not that of creation
			pod := PodFacts{Pod: name, UID: uid, Created: second(i)}
			ending := pod
			ending.Ending = true
			left[i] = []PodFacts{pod, ending, {UID: uid, Gone: true}}
		}
		last := left[lives-1][0].UID
		left[lives-1] = left[lives-1][:1]
		var s PodSet
		started := false
		for n := 0; ; n++ {
			var rest []int
			for i := range left {
				if len(left[i]) > 0 {
					rest = append(rest, i)
				}
			}
			if len(rest) == 0 {
				break
			}
			i := rapid.SampledFrom(rest).Draw(t, "of")
			event := left[i][0]
			left[i] = left[i][1:]
			if event.Gone {
				s.Remove(event.UID)
			} else {
				s.Set(event, second(n))
			}
			started = started || event.UID == last
			if !started {
				continue
			}
			facts, _ := s.Get(s.UID(name))
			if facts.UID != last || facts.Ending || facts.Gone {
				t.Fatalf("the pod is %+v, want %s", facts, last)
			}
			held := Facts{Pods: s.All()}.Resolve([]Allocation{{Holders: []Holder{{
				Pod: name, Container: "c",
				UID: last,
			}}}}).Allocations
			if countHolders(held) != 1 {
				t.Fatalf("it holds %+v", held)
			}
		}
	})
}

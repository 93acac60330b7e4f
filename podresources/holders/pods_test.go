package holders

import (
	"fmt"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func podNamed(name string) Pod { return Pod{Namespace: "ns", Name: name} }

// running returns a pod that runs, with a name and a UID, created at a second.
func running(name, uid string, created int) PodFacts {
	return PodFacts{Pod: podNamed(name), UID: uid, Created: second(created), Local: true, Started: true, Running: 1}
}

// ended returns the kubelet's last status of a pod.
func ended(p PodFacts) PodFacts {
	p.Final, p.Running = true, 0
	return p
}

// endings returns the UIDs of the pods whose end was seen, in order.
func endings(b *Book) (out []string) {
	_, signs := b.Holds(second(1000), time.Time{})
	for _, c := range signs.Changes {
		if c.Gone {
			out = append(out, c.PodUID)
		}
	}
	return out
}

func TestPodsOfABook(t *testing.T) {
	n := newNode(t)
	want := func(what, a, b string, pods int) {
		t.Helper()
		if gotA, gotB := n.UID(podNamed("a")), n.UID(podNamed("b")); gotA != a || gotB != b || n.NumPods() != pods {
			t.Errorf("%s: a is %q, b is %q, and there are %d pods", what, gotA, gotB, n.NumPods())
		}
	}
	n.PodChanged(running("a", "1", 0), second(0))
	n.PodChanged(running("b", "2", 0), second(1))
	n.PodDeleted("of none", second(1))
	want("two pods", "1", "2", 2)
	n.PodDeleted("1", second(2))
	want("one is gone", "1", "2", 1)
	n.PodsListed([]PodFacts{running("b", "3", 0)}, true, second(3))
	want("listed without one", "1", "3", 1)
	n.PodsListed([]PodFacts{running("a", "4", 0), running("b", "3", 0)}, true, second(4))
	want("listed with another", "4", "3", 2)
}

// A deleted pod does not hold devices again because of late evidence: its last notification, or an
// answer or a list that was requested before (issue 28, fault 1). Only a complete list that was
// requested afterwards brings it back.
func TestDeletedPodStaysDeleted(t *testing.T) {
	pod := running("a", "1", 0)
	for name, late := range map[string]func(n *node){
		"a notification":              func(n *node) { n.PodChanged(pod, second(3)) },
		"a list of the moment itself": func(n *node) { n.PodsListed([]PodFacts{pod}, true, second(2)) },
		"the claim is read": func(n *node) {
			n.ClaimRead(Claim{Namespace: "ns", Name: "claim-gpu-0"}, ClaimFacts{
				Read: second(3), Reserved: map[string]string{"1": "a"}, Results: []ClaimResult{{Device: deviceNamed("gpu-0")}},
			})
		},
		"deleted before it was known": func(n *node) {
			n.PodDeleted("2", second(3))
			n.PodChanged(running("a", "2", 1), second(4))
		},
		"the kubelet lists no devices": func(n *node) {
			n.others = []string{"exporter", "a"}
			n.answerTo(second(3))
			n.PodChanged(pod, second(4))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.uids = map[string]string{"a": "1"}
			pod.Claims = named("c=claim-gpu-0")
			n.PodChanged(pod, second(0))
			n.ClaimRead(Claim{Namespace: "ns", Name: "claim-gpu-0"}, ClaimFacts{
				Read: second(0), Reserved: map[string]string{"1": "a"}, Results: []ClaimResult{{Device: deviceNamed("gpu-0")}},
			})
			n.answerTo(second(1), held("gpu-0", "a"))
			n.expect("it runs", false, holdings{"gpu-0": {"a"}})
			n.PodDeleted("1", second(2))
			late(n)
			n.expect("it was deleted", n.doubts, holdings{})
			n.answerTo(second(1), held("gpu-0", "a")) // requested before, and late
			n.expect("a late answer has it", false, holdings{})
			n.PodsListed([]PodFacts{pod}, true, second(700))
			if name != "deleted before it was known" {
				n.expect("a later list has it", false, holdings{"gpu-0": {"a"}})
			}
			n.PodDeleted("1", second(701))
			n.expect("deleted once more", false, holdings{})
		})
	}
}

// A pod that is created under the name of a pod that is gone is the newest one of the name, even if
// the API server's clock, which determines creation times, was set back in between.
func TestPodOfTheFuture(t *testing.T) {
	n := newNode(t)
	n.PodChanged(running("a", "old", 600), second(0))
	n.PodChanged(running("a", "new", 0), second(1))
	n.PodDeleted("old", second(2))
	expect.Is(t, n.UID(podNamed("a")), "new", "the pod")
	n.answer(3*time.Second, held("gpu-0", "a"))
	n.expect("the new pod", false, holdings{"gpu-0": {"a"}})
}

// A pod is created, runs, ends and is deleted: each change gives a hint, and so does a change of
// its holds. The end is recorded once.
func TestPodsLifeIsHintedAt(t *testing.T) {
	n := newNode(t)
	steps := func(what string, want int, do func()) {
		t.Helper()
		before := n.hints
		if do(); n.hints-before != want {
			t.Errorf("%s: %d hints, want %d", what, n.hints-before, want)
		}
	}
	pod := running("b", "2", 0)
	waits := pod
	waits.Started, waits.Running = false, 0
	labels := pod
	labels.Meta = &podresources.PodMeta{Labels: []string{"label_app", "x"}}
	steps("it comes", 1, func() { n.PodChanged(waits, second(1)) })
	steps("nothing that matters", 0, func() { n.PodChanged(waits, second(2)) })
	steps("it runs", 1, func() { n.PodChanged(pod, second(3)) })
	steps("its labels", 1, func() { n.PodChanged(labels, second(4)) })
	steps("it ends", 1, func() { n.PodChanged(ended(pod), second(5)) })
	steps("it goes", 1, func() { n.PodDeleted("2", second(6)) })
	steps("a late notification", 0, func() { n.PodChanged(pod, second(7)) })
	expect.Equal(t, "the ends", []string{"2"}, endings(n.Book))
}

// The start of a termination is not the end: the kubelet's own status is Failed while containers
// still run.
func TestEndIsNotedWithTheLastContainer(t *testing.T) {
	n := newNode(t)
	pod := running("a", "1", 0)
	n.PodChanged(pod, second(0))
	failing := pod
	failing.Final = true
	n.PodChanged(failing, second(1))
	got := endings(n.Book)
	expect.That(t, got == nil, "an end is noted while a container runs: %v", got)
	n.PodChanged(ended(pod), second(2))
	expect.Equal(t, "", []string{"1"}, endings(n.Book))
	if p := n.evidence.pods["1"]; p.state != Ending || !p.since.Equal(second(1)) || !p.Started {
		t.Errorf("it is %v since %v", p.state, p.since.Sub(at(0)))
	}
}

// The names of claims in the API server's status are kept when the kubelet's own status, which
// omits them, arrives again. A claim that is not in the API server's status is not a claim of the
// pod.
func TestNamesStayKnown(t *testing.T) {
	local := running("a", "1", 0)
	local.Claims = []PodClaim{{Name: "gpus"}, {Name: "none"}}
	served := local
	served.Local, served.Claims, served.ExtendedClaim = false, named("gpus=a-gpus-x"), "a-extended"
	for name, tell := range map[string]func(b *Book){
		"by a read":   func(b *Book) { b.PodChanged(local, second(0)); b.PodRead(served, second(1)) },
		"by an event": func(b *Book) { b.PodChanged(served, second(0)) },
	} {
		b := NewBook(grace, nil)
		b.PodRead(served, second(0)) // of an unknown pod
		expect.That(t, b.NumPods() == 0, "%s: a pod that no source of pods has", name)
		tell(b)
		b.PodChanged(local, second(2))
		held, _ := b.Holds(second(2), time.Time{})
		expect.That(t, len(held.Wanted.Pods) == 0 && len(held.Wanted.Claims) == 2, "%s: wanted are %+v", name, held.Wanted)
	}
}

// podTest is a pod with the UID 1 and the name a. The steps of a test determine its life. Each step
// takes a second.
type podTest struct {
	*node
	facts PodFacts
}

func (p *podTest) tick() time.Time {
	p.now = p.now.Add(time.Second)
	return p.now
}

// change passes the present object of the pod.
func (p *podTest) change(with func(f *PodFacts)) {
	with(&p.facts)
	p.PodChanged(p.facts, p.tick())
}

// Steps of a pod's life. Each gives one piece of evidence.
var (
	isNominated = func(p *podTest) {
		p.facts.Nominated = true
		p.NominatedChanged(p.facts, p.tick())
	}
	isBound    = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated = false }) }
	starts     = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated, f.Started, f.Running = false, true, 1 }) }
	exits      = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated, f.Final, f.Running = false, true, 0 }) }
	terminates = func(p *podTest) { p.change(func(f *PodFacts) { f.Nominated, f.Final = false, true }) }
	finishes   = func(p *podTest) {
		p.change(func(f *PodFacts) { f.Nominated, f.Local, f.Final, f.Running = false, false, true, 0 })
	}
	isDeleted   = func(p *podTest) { p.PodDeleted("1", p.tick()) }
	isInList    = func(p *podTest) { p.PodsListed([]PodFacts{p.facts}, p.facts.Local, p.tick()) }
	isNotInList = func(p *podTest) {
		other := running("b", "2", 0)
		other.Local = false
		p.PodsListed([]PodFacts{other}, false, p.tick())
	}
	isListed   = func(p *podTest) { p.answer(time.Second, held("gpu-0", "a")) }
	isUnlisted = func(p *podTest) { p.answer(time.Second) }
	failed     = func(p *podTest) { p.fail(time.Second) }
	restarts   = func(p *podTest) { // the new kubelet lists a pod of the API server after a while
		p.restart()
		p.others = []string{"exporter"}
		p.PodChanged(running("exporter", "3", 1), p.tick())
		p.answer(time.Second)
		p.tick()
	}
	isReplaced = func(p *podTest) {
		p.PodChanged(running("a", "2", 1), p.tick())
	}
	cgroupGoes = func(p *podTest) {
		p.states["1"] = podresources.CgroupGone
		p.quiet(time.Second)
	}
)

// Every transition of the table that changes a pod's state occurs with the evidence that the table
// names. All other evidence changes nothing.
func TestTransitions(t *testing.T) {
	type steps []func(p *podTest)
	all := transitions()
	seen := map[string]bool{}
	visit := func(f fact, from State) {
		seen[fmt.Sprint(f, " ", from)] = true
	}
	for name, tc := range map[string]struct {
		steps steps
		last  fact  // the fact of the last step
		from  State // before the last step
		want  State
	}{
		"nominated":                         {steps{isNominated}, nominated, Unknown, Waiting},
		"bound":                             {steps{isBound}, bound, Unknown, Bound},
		"bound, after it was nominated":     {steps{isNominated, isBound}, bound, Waiting, Bound},
		"started":                           {steps{starts}, started, Unknown, Running},
		"nominated, and started":            {steps{isNominated, starts}, started, Waiting, Running},
		"bound, and started":                {steps{isBound, starts}, started, Bound, Running},
		"ended when it was seen first":      {steps{exits}, localFinal, Unknown, Ending},
		"nominated, and rejected":           {steps{isNominated, exits}, localFinal, Waiting, Ending},
		"never started":                     {steps{isBound, exits}, localFinal, Bound, Ending},
		"ended":                             {steps{starts, exits}, localFinal, Running, Ending},
		"finished when it was seen first":   {steps{finishes}, finished, Unknown, Ended},
		"nominated, and evicted":            {steps{isNominated, finishes}, finished, Waiting, Ended},
		"bound, and evicted":                {steps{isBound, finishes}, finished, Bound, Ended},
		"finished":                          {steps{starts, finishes}, finished, Running, Ended},
		"ended, and finished":               {steps{starts, exits, finishes}, finished, Ending, Ended},
		"deleted before it was seen":        {steps{isDeleted}, deleted, Unknown, Deleted},
		"deleted while nominated":           {steps{isNominated, isDeleted}, deleted, Waiting, Deleted},
		"deleted while bound":               {steps{isBound, isDeleted}, deleted, Bound, Deleted},
		"deleted while it runs":             {steps{starts, isDeleted}, deleted, Running, Deleted},
		"missing in the API server's list":  {steps{starts, isNotInList}, deleted, Running, Deleted},
		"deleted while it ends":             {steps{starts, exits, isDeleted}, deleted, Ending, Deleted},
		"deleted at last":                   {steps{starts, finishes, isDeleted}, deleted, Ended, Deleted},
		"in a later list":                   {steps{starts, isDeleted, isInList}, relisted, Deleted, Running},
		"bound, and unlisted":               {steps{isBound, isListed, isUnlisted}, unlisted, Bound, Ended},
		"unlisted":                          {steps{starts, isListed, isUnlisted}, unlisted, Running, Ended},
		"ended, and unlisted":               {steps{starts, isListed, exits, isUnlisted}, unlisted, Ending, Ended},
		"never listed, ended, and unlisted": {steps{starts, exits, isUnlisted}, unlisted, Ending, Ended},
		"unlisted by another, listed": {
			steps{starts, isListed, restarts, isUnlisted, isListed}, listed, Ended, Running,
		},
		"ended, and its cgroup goes":            {steps{starts, exits, cgroupGoes}, cgroupGone, Ending, Ended},
		"ends, and its cgroup goes":             {steps{starts, terminates, cgroupGoes}, cgroupGone, Ending, Ended},
		"ended, and replaced":                   {steps{starts, exits, isReplaced}, replaced, Ending, Ended},
		"replaced, and ended":                   {steps{starts, isReplaced, exits}, replaced, Ending, Ended},
		"replaced, and ends":                    {steps{starts, isReplaced, terminates}, localFinal, Running, Ending},
		"not listed yet":                        {steps{starts, isUnlisted}, unlisted, Running, Running},
		"nominated, and not listed":             {steps{isNominated, isUnlisted}, unlisted, Waiting, Waiting},
		"containers run on, and it is unlisted": {steps{starts, terminates, isUnlisted}, unlisted, Ending, Ending},
		"the kubelet does not answer":           {steps{starts, isListed, failed}, started, Running, Running},
		"replaced while it runs":                {steps{starts, isReplaced}, replaced, Running, Running},
		"finished, and listed":                  {steps{starts, finishes, isListed}, listed, Ended, Ended},
		"deleted, and listed":                   {steps{starts, isDeleted, isListed}, listed, Deleted, Deleted},
		"deleted, and a late notification":      {steps{starts, isDeleted, exits}, localFinal, Deleted, Deleted},
		"ended, and the API server is late":     {steps{starts, exits, starts, exits}, localFinal, Ending, Ending},
		"unlisted, and a late notification":     {steps{starts, isListed, isUnlisted, starts}, started, Ended, Ended},
		"not in the kubelet's list, but in its answer": {
			steps{starts, isListed, func(p *podTest) { p.PodsListed(nil, true, p.tick()) }}, started, Running, Running,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &podTest{node: newNode(t), facts: PodFacts{Pod: podNamed("a"), UID: "1", Local: true, Created: second(0)}}
			p.uids = map[string]string{"a": "1"}
			state := func() State {
				if pod := p.evidence.pods["1"]; pod != nil {
					return pod.state
				}
				return Unknown
			}
			for i, step := range tc.steps {
				if got := state(); i == len(tc.steps)-1 && got != tc.from && tc.last != replaced {
					t.Errorf("it is %v before, want %v", got, tc.from)
				}
				step(p)
			}
			expect.Is(t, state(), tc.want, "it")
			if pod := p.evidence.pods["1"]; tc.want != tc.from && tc.last != relisted && tc.last != listed && pod.by != tc.last {
				t.Errorf("it is so by fact %d, want %d", pod.by, tc.last)
			}
			if tc.want != tc.from {
				visit(tc.last, tc.from)
			}
			if over := len(p.held()) == 0; tc.want.over() && !over && p.UID(podNamed("a")) == "1" {
				t.Errorf("a pod that is %v holds %v", tc.want, p.held())
			}
		})
	}
	for f := range numFacts {
		for from := range numStates {
			if all[f][from] != from && !seen[fmt.Sprint(f, " ", from)] {
				t.Errorf("no evidence of fact %d makes a pod that is %v one that is %v", f, from, all[f][from])
			}
		}
	}
}

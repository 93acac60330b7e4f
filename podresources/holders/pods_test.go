package holders

import (
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
	steps("its labels", 0, func() { n.PodChanged(labels, second(4)) })
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

package holders

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// claimed returns the API server's facts about a claim of one device, as of a second.
func claimed(device string, read int, pods ...string) (Claim, ClaimFacts) {
	facts := ClaimFacts{
		Read: second(read), Reserved: map[string]string{},
		Results: []ClaimResult{{Device: deviceNamed(device), Request: "r"}},
	}
	for _, p := range pods {
		facts.Reserved["uid-"+p] = p
	}
	return Claim{Namespace: "ns", Name: "claim-" + device}, facts
}

// serverNode returns a node whose pod a uses the claim of gpu-0 by the API server. Then the API
// server is away: no further evidence comes from it. There is no Pods API.
func serverNode(t *testing.T) *node {
	n := newNode(t)
	pod := running("a", "uid-a", 0)
	pod.Local, pod.Claims = false, named("gpu=claim-gpu-0")
	n.PodsListed([]PodFacts{pod}, false, second(0))
	n.ClaimRead(claimed("gpu-0", 0, "a"))
	return n
}

// The pod is kept as long as its cgroup has processes, and as long as the answer is in doubt. It
// has ended with the first believed answer that does not list it, although the claim was reserved
// for it when it was last read (issue 28, fault 3).
func TestPodRunsWhileTheServerIsAway(t *testing.T) {
	n := serverNode(t)
	n.answer(time.Second, held("gpu-0", "a"))
	n.states["uid-a"] = podresources.CgroupAlive
	n.answer(time.Second)
	n.expectReasons("it has processes", map[string]podresources.Reason{"a": podresources.ReasonProcesses})
	n.states["uid-a"] = podresources.CgroupUnknown
	n.answer(time.Second)
	n.expect("it has none", false, holdings{})
	n.ClaimRead(claimed("gpu-0", 5, "a"))
	n.expect("the claim is read, late", false, holdings{})
	n.answer(time.Second, held("gpu-0", "a"))
	n.expect("it is listed again, and so it runs", false, holdings{"gpu-0": {"a"}})
	n.restart()
	n.answer(time.Second)
	n.expect("the kubelet has restarted", true, holdings{"gpu-0": {"a"}})
	n.expectReasons("the kubelet has restarted", map[string]podresources.Reason{"a": podresources.ReasonRestarted})
}

// A claim that is removed from the inventory file is no longer reserved. This is remembered as long
// as the end of a pod may depend on it (issue 28, fault 5c).
func TestClaimLeavesTheFile(t *testing.T) {
	n := newNode(t)
	pod := running("a", "uid-a", 0)
	pod.Claims = named("gpu=claim-gpu-0")
	n.PodChanged(pod, second(0))
	claim, facts := claimed("gpu-0", 0, "a")
	n.ClaimsListed(map[Claim]ClaimFacts{claim: facts}, second(0))
	n.answerTo(second(1), held("gpu-0", "a"))
	n.PodChanged(ended(pod), second(2))
	n.expect("it ends", false, holdings{"gpu-0": {"a"}})
	for s := 3; s < 600; s += 100 {
		n.ClaimsListed(nil, second(s))
		n.answerTo(second(s), held("gpu-0", "a"))
		n.expect("its claim is gone", false, holdings{})
	}
	if got := n.Claims()[claim]; !got.Deleted || !got.Read.Equal(second(3)) {
		t.Errorf("the claim is %+v", got)
	}
	n.ClaimsListed(nil, second(3).Add(keepDeleted+1))
	_, known := n.Claims()[claim]
	expect.That(t, !known, "a claim that left the file is kept for ever")
	n.ClaimsListed(map[Claim]ClaimFacts{claim: facts}, second(2000))
	expect.That(t, !n.Claims()[claim].Deleted, "a claim that is in the file again is deleted")
}

// Earlier facts about a claim do not replace later ones, no matter in which order they arrive. The
// API server takes precedence over the file.
func TestClaimsAreAsOfTheirReading(t *testing.T) {
	n := newNode(t)
	claim, old := claimed("gpu-0", 1, "a")
	_, young := claimed("gpu-0", 3)
	n.ClaimsListed(map[Claim]ClaimFacts{claim: old}, second(9))
	n.ClaimRead(claim, young)
	n.ClaimRead(claim, old)
	n.ClaimDeleted(claim, second(2))
	if got := n.Claims()[claim]; got.Deleted || len(got.Reserved) > 0 {
		t.Errorf("the claim is %+v", got)
	}
	n.ClaimDeleted(claim, second(4))
	if got := n.Claims()[claim]; !got.Deleted || len(got.Results) != 1 {
		t.Errorf("the deleted claim is %+v", got)
	}
	n.ClaimForgotten(claim)
	if got := n.Claims()[claim]; got.Deleted || len(got.Reserved) != 1 {
		t.Errorf("the claim that is in the file alone is %+v", got)
	}
}

// A pod that waits to be bound holds the devices that are reserved for it, until it has not been
// nominated for a while. A pod that is nominated again continues to wait.
func TestNominatedPods(t *testing.T) {
	n := newNode(t)
	pod := PodFacts{
		Pod: podNamed("a"), UID: "uid-a", Nominated: true, Claims: named("gpu=claim-gpu-0"),
	}
	n.NominatedListed([]PodFacts{pod}, second(0))
	n.ClaimRead(claimed("gpu-0", 1, "a"))
	n.answerTo(second(1))
	want := holdings{"gpu-0": {"a"}}
	n.expect("nominated", false, want)
	n.expectReasons("nominated", map[string]podresources.Reason{"a": podresources.ReasonNominated})
	n.NominatedGone("uid-a", second(2))
	n.now = second(2).Add(keepNominated - 1)
	n.expect("not any more", false, want)
	n.NominatedChanged(pod, n.now)
	n.now = second(2).Add(2 * keepNominated)
	n.expect("nominated again", false, want)
	n.NominatedListed(nil, n.now)
	n.now = n.now.Add(keepNominated - 1)
	n.expect("not in a list", false, want)
	n.now = n.now.Add(1)
	n.expect("not in a list for a while", false, holdings{})
	n.NominatedChanged(pod, n.now)
	n.NominatedGone("uid-a", n.now)
	pod.Nominated = false
	n.PodChanged(pod, n.now)
	n.now = n.now.Add(time.Hour)
	n.expect("bound", false, want)
	n.expectReasons("bound", map[string]podresources.Reason{"a": podresources.ReasonWaiting})
}

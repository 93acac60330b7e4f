package holders

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Each of these tests reproduces a failure that TestModel found. Numbers are seconds.

// story passes evidence to a book and checks who holds devices then. Its methods return it.
type story struct {
	*Book
	t       testing.TB
	kubelet podresources.Instance
	now     int
}

func newStory(t testing.TB) *story {
	return &story{Book: NewBook(time.Minute, nil), t: t, kubelet: "1"}
}

// of makes answers those of another kubelet from now on.
func (s *story) of(kubelet podresources.Instance) *story {
	s.kubelet = kubelet
	return s
}

// changed passes the objects of pods.
func (s *story) changed(now int, pods ...PodFacts) *story {
	s.now = now
	for _, p := range pods {
		s.PodChanged(p, second(now))
	}
	return s
}

func (s *story) deleted(now int, uid string) *story {
	s.now = now
	s.PodDeleted(uid, second(now))
	return s
}

// listed passes a list of pods: of the kubelet, or of the API server.
func (s *story) listed(now int, local bool, pods ...PodFacts) *story {
	s.now = now
	s.PodsListed(pods, local, second(now))
	return s
}

// reserves passes a claim that has a device and is reserved for a pod.
func (s *story) reserves(read int, claim, device, uid string) *story {
	s.ClaimRead(Claim{Namespace: "ns", Name: claim}, ClaimFacts{
		UID: "u", Reserved: map[string]string{uid: "a"}, Read: second(read),
		Results: []ClaimResult{{Device: deviceNamed(device)}},
	})
	return s
}

// answers passes an answer that the kubelet was asked for at a time. In it, pods of these names
// hold devices of claim c. It also lists the exporter's own pod.
func (s *story) answers(asked int, names ...string) *story {
	return s.answered(s.answer(asked, names...))
}

func (s *story) answered(a *Answer) *story {
	s.now = max(s.now, int(a.Asked.Sub(second(0)).Seconds()))
	s.Answered(a)
	return s
}

func (s *story) answer(asked int, names ...string) *Answer {
	own := Pod{Namespace: "monitoring", Name: "exporter"}
	a := &Answer{Asked: second(asked), Kubelet: s.kubelet, Pods: map[Pod]struct{}{own: {}}}
	for _, name := range names {
		a.Pods[podNamed(name)] = struct{}{}
		a.Allocations = append(a.Allocations, held("gpu-"+name, name))
		a.Allocations[len(a.Allocations)-1].Claim.Name = "c"
	}
	return a
}

// lacks passes an answer without those pods, while the cgroup of one of them is gone ("": of none).
func (s *story) lacks(asked int, gone string) *story {
	a := s.answer(asked)
	if gone != "" {
		a.Cgroups = map[string]podresources.CgroupState{gone: podresources.CgroupGone}
	}
	return s.answered(a)
}

// empty passes an answer without any pod.
func (s *story) empty(asked int) *story {
	a := s.answer(asked)
	a.Pods = nil
	return s.answered(a)
}

// hold compares the UIDs of the holders, by all evidence.
func (s *story) hold(want ...string) *story {
	held, _ := s.Holds(second(s.now), time.Time{})
	var got []string
	for _, a := range held.Allocations {
		for _, h := range a.Holders {
			got = append(got, h.UID)
		}
	}
	expect.That(s.t, slices.Equal(got, want), "after %d s %q hold, not %q", s.now, got, want)
	return s
}

// is compares the state of a pod.
func (s *story) is(uid string, want State) *story {
	expect.Is(s.t, s.States()[uid].State, want, "after %d s the pod %q", s.now, uid)
	return s
}

// staticUID is the UID of a static pod.
const staticUID = "0123456789abcdef0123456789abcdef"

// podOf returns a pod of the kubelet that runs.
func podOf(name, uid string) PodFacts {
	return PodFacts{Pod: podNamed(name), UID: uid, Local: true, Started: true, Running: 1}
}

// usesClaim makes the pod use a claim.
func usesClaim(p PodFacts, claim string) PodFacts {
	p.Claims = named("mine=" + claim)
	return p
}

// ends returns the last status of a pod whose containers still run.
func ends(p PodFacts) PodFacts {
	p.Final = true
	return p
}

// waits returns the pod before its containers have started.
func waits(p PodFacts) PodFacts {
	p.Started, p.Running = false, 0
	return p
}

// served returns the pod as the API server has it.
func served(p PodFacts) PodFacts {
	p.Local = false
	return p
}

// createdAt returns the pod with the time of its creation.
func createdAt(p PodFacts, n int) PodFacts {
	p.Created = second(n)
	return p
}

// static returns the pod as a static one.
func static(p PodFacts) PodFacts {
	p.Static = true
	return p
}

// The kubelet lists a pod under the name of a deleted pod before its Pods API has reported the new
// one: the listed pod holds, and not as the deleted one. An answer that was requested earlier
// proves nothing.
func TestPodOfTheNameOfADeletedOne(t *testing.T) {
	newStory(t).changed(1, podOf("a", "old")).answers(2, "a").hold("old").deleted(4, "old").hold().
		answers(3, "a").hold().answers(5, "a").hold("").changed(6, podOf("a", "new")).hold("new")
}

// A pod that has ended stays ended when the kubelet has restarted and no longer knows it, and the
// API server, which was away, still reports it as running. The next pod of the name is another one,
// even before its object is known. The ended one is forgotten after some time. Found by the
// scenario Restarts/ServerAway.
func TestEndedPodThatTheServerHas(t *testing.T) {
	old, other := usesClaim(podOf("a", "old"), "c"), podOf("exporter", "other")
	s := newStory(t).reserves(1, "c", "gpu-a", "old").changed(1, old).answers(2, "a").hold("old").
		changed(3, ended(old)).answers(4).hold().
		listed(5, true, other).listed(50, false, served(old)).reserves(50, "c", "gpu-a", "old").hold().
		listed(52, true, other).answers(53, "a").hold("")
	known := s.NumPods()
	got := s.listed(52+15*60, true, other).NumPods()
	expect.That(t, got < known, "%d pods are known, %d were", got, known)
}

// A pod that had finished when it was deleted does not come back with the list of a restarted
// kubelet that has it as the API server had it: running. A pod that had not finished comes back.
func TestFinishedPodIsNotRelisted(t *testing.T) {
	old := usesClaim(podOf("a", "old"), "c")
	for _, finished := range []bool{true, false} {
		s := newStory(t).reserves(1, "c", "gpu-a", "old").changed(1, old).answers(2, "a").hold("old")
		want := []string{"old"}
		if finished {
			s.changed(3, ended(old))
			want = nil
		}
		s.answers(4).deleted(5, "old").hold().listed(20, true, old, podOf("exporter", "other")).hold(want...)
	}
}

// The only claim that the kubelet lists for a pod has the pod's only unknown name.
func TestNameOfTheOnlyClaim(t *testing.T) {
	for claims, want := range map[string]string{"mine=": "mine", "known=c2 mine=": "mine", "other= mine=": ""} {
		got := world{}.list("c", "a", "p/main").pod("p", PodFacts{Claims: named(strings.Fields(claims)...)}).holdings()
		expect.Is(t, got.Allocations[0].Holders[0].ClaimName, want, "%s: its name", claims)
	}
}

// A static pod comes back with its UID after a late event and the removal of its cgroup had ended
// it. So does one whose deletion is the first news of it.
func TestStaticPodComesBackAfterItsCgroup(t *testing.T) {
	pod := static(podOf("a", staticUID))
	newStory(t).changed(1, pod).answers(2, "a").deleted(3, staticUID).changed(3, ended(pod)).lacks(4, staticUID).hold().
		changed(5, pod).answers(6, "a").hold(staticUID)
	newStory(t).deleted(1, staticUID).changed(2, pod).answers(3, "a").hold(staticUID)
}

// A hold that comes back does not begin before its previous end, even if an earlier sign exists and
// its UID is not known yet.
func TestHoldsOfAPodFollowEachOther(t *testing.T) {
	for _, back := range []string{"uid-a", ""} {
		a := uids(held("gpu-a", "a"))
		a.CDI = []string{"v/gpu-a"}
		written := Change{At: second(3), CDI: a.CDI}
		removed := Change{At: second(4), Gone: true, PodUID: "uid-a"}
		var d datesTest
		d.call(1000)
		d.call(2000, a)
		d.view = d.Date(nil, Signs{At: second(2), Changes: []Change{removed}}, second(4))
		d.expect(t, "it ends", "gpu-a a [1500, 4000)")
		again := held("gpu-a", "a")
		again.Holders[0].UID, again.CDI = back, a.CDI
		d.view = d.Date([]Allocation{again}, Signs{At: second(5), Changes: []Change{written, removed}}, second(5))
		d.expect(t, "it is back", "gpu-a a [1500, 4000)", "gpu-a a [4000, -)")
	}
}

// An answer that was requested before a pod was deleted does not list the next pod of its name. An
// equal one does, if it was requested after that pod was created.
func TestOldAnswerIsNotOfTheNextPod(t *testing.T) {
	old, next := podOf("a", "old"), podOf("a", "new")
	newStory(t).changed(1, old).answers(2, "a").deleted(4, "old").changed(5, next).answers(3, "a").hold().
		answers(6, "a").hold("new")
	s := newStory(t).changed(1, old)
	answer := s.answer(3, "a")
	again := *answer
	again.Asked = second(6)
	s.deleted(4, "old").changed(5, next).answered(answer).hold().answered(&again).hold("new")
}

// A pod that was listed before its object arrived is the pod whose object arrives first, and not
// the next one of its name. Answers that were requested before the kubelet knew the next pod do not
// end it.
func TestListedPodIsTheOneWhoseObjectComesFirst(t *testing.T) {
	newStory(t).answers(1, "a").changed(2, podOf("a", "old")).deleted(3, "old").
		changed(4, waits(podOf("a", "new"))).hold().answers(5).is("new", Bound).answers(6, "a").hold("new")
}

// After a change, the kubelet is asked until an answer arrives that was requested after the change.
func TestQuietAfterAnAnswerThatWasAskedForLater(t *testing.T) {
	s := newStory(t)
	s.Watching(second(1), second(1))
	expect.That(t, !s.answers(5, "a").changed(6, podOf("a", "a")).Quiet(second(10)),
		"the last answer was asked for before the change")
	expect.That(t, s.answers(10, "a").Quiet(second(11)), "it is asked again")
}

// A pod was deleted while the kubelet restarted. The new kubelet never knew it, and lists the next
// pod of its name: no event reports the end.
func TestPodThatWasReplacedDuringARestart(t *testing.T) {
	newStory(t).changed(1, usesClaim(podOf("a", "old"), "other")).reserves(1, "other", "gpu-other", "old").answers(2, "a").
		of("2").answers(4).changed(6, createdAt(podOf("a", "new"), 5)).answers(7, "a").hold("new")
}

// A pod was ending, while its containers ran, when the watch of the kubelet's pods broke. It has
// ended when neither the kubelet's next list nor its next answer contains it.
func TestPodThatEndedBetweenTwoWatches(t *testing.T) {
	pod := podOf("a", "uid")
	newStory(t).changed(1, pod).answers(2, "a").changed(3, ends(pod)).listed(5, true, podOf("exporter", "exporter")).
		answers(6).is("uid", Ended)
}

// A pod that waits to be bound is not the pod of its name that the kubelet lists.
func TestNominatedPodOfAListedName(t *testing.T) {
	next := waits(createdAt(served(podOf("a", "new")), 2))
	next.Nominated = true
	s := newStory(t).changed(1, podOf("a", "old"))
	s.NominatedChanged(next, second(2))
	s.answers(3, "a").hold("old").deleted(4, "old").answers(5, "a").hold("new")
}

// The API server has the next pod of a name, which never starts. Then the API server is away. The
// pod has ended when the kubelet has not listed the name for a while.
func TestPodThatEndsBeforeItsStartIsKnown(t *testing.T) {
	newStory(t).changed(1, served(podOf("a", "old"))).deleted(2, "old").
		changed(3, waits(createdAt(served(podOf("a", "new")), 3))).answers(4, "a").answers(5).is("new", Bound).
		answers(8).is("new", Ended)
}

// The list of a restarted kubelet is incomplete. A pod that is known only by its object holds its
// devices until the kubelet has had time to list it, or for the grace period.
func TestPodThatARestartedKubeletDoesNotKnowYet(t *testing.T) {
	for name, c := range map[string]struct {
		ready bool // it lists a pod of the API server
		over  int  // when the pod has ended
	}{
		"it lists others": {true, 8},
		"it lists none":   {false, 65},
	} {
		t.Run(name, func(t *testing.T) {
			other := podOf("exporter", "exporter")
			other.Pod.Namespace = "monitoring"
			s := newStory(t).listed(1, true, usesClaim(podOf("a", "uid"), "other")).reserves(1, "other", "gpu-other", "uid").
				answers(2).listed(4, true, other).of("2")
			answers := func(asked int) *story {
				a := s.answer(asked)
				a.Arrived = a.Asked.Add(time.Second)
				if !c.ready {
					a.Pods = nil
				}
				return s.answered(a)
			}
			answers(5)
			answers(c.over - 1).hold("uid")
			answers(c.over).hold()
		})
	}
}

// An answer that was requested before the next pod of a name was seen lists the previous one,
// although the news of the deletion arrives later.
func TestOldAnswerIsOfThePodBefore(t *testing.T) {
	newStory(t).changed(1, podOf("a", "old")).answers(2, "a").changed(4, createdAt(podOf("a", "new"), 4)).
		answers(3, "a").hold("old").deleted(5, "old").answers(6, "a").hold("new")
}

// The last pod of a node ends while the kubelet restarts. The new kubelet reports the end and lists
// no pod at all. This is believed about pods that the new kubelet itself has reported, and not
// about those that only the previous one has.
func TestLastPodEndsForARestartedKubelet(t *testing.T) {
	pod := podOf("a", "uid")
	before := func() *story { return newStory(t).changed(1, pod).answers(2, "a").of("2") }
	before().empty(4).changed(5, ended(pod)).empty(5).empty(6).hold()
	s := before().changed(3, ended(pod))
	s.Watching(second(3), second(3)) // the one that has restarted, before it answers
	s.empty(4).empty(5).empty(6).hold()
	before().changed(3, ended(pod)).empty(4).empty(5).empty(6).hold("uid")
}

// A pod has ended, and the kubelet lists the next one of its name. The news of the deletion of the
// first arrives after that.
func TestDeletionComesAfterTheNextPod(t *testing.T) {
	newStory(t).changed(1, podOf("a", "old")).answers(2, "a").answers(3).answers(4, "a").hold("").
		deleted(5, "old").hold("")
}

// The watch of the kubelet's pods breaks, the last pods of the node end, and the next watch lists
// none. An answer without any pod confirms that, if it is from the kubelet that had listed them.
func TestLastPodEndsWhileTheWatchIsBroken(t *testing.T) {
	for name, c := range map[string]struct {
		kubelet podresources.Instance // the kubelet that answers then
		list    int                   // when the next watch asks for its list
		want    []string
	}{
		"the same kubelet":                       {kubelet: "1", list: 4},
		"the list is older than the last answer": {kubelet: "1", list: 1, want: []string{"uid"}},
		"another kubelet":                        {kubelet: "2", list: 4, want: []string{"uid"}},
	} {
		t.Run(name, func(t *testing.T) {
			newStory(t).changed(1, podOf("a", "uid")).answers(2, "a").listed(c.list, true).of(c.kubelet).
				empty(5).hold(c.want...).empty(6).hold(c.want...).empty(7).hold(c.want...)
		})
	}
}

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
	got := n.Claims()[claim]
	expect.That(t, got.Deleted && got.Read.Equal(second(3)), "the claim is %+v", got)
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

package holders_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// Each of these tests reproduces a failure that TestModel found.

// seconds is a time of these tests.
func seconds(s int) time.Time { return time.Unix(1_700_000_000+int64(s), 0) }

// gives returns an answer that was requested after this number of seconds. In it, pods of these
// names hold a device of claim c. It also lists the exporter's own pod.
func gives(asked int, kubelet podresources.Instance, names ...string) *holders.Answer {
	a := &holders.Answer{Asked: seconds(asked), Kubelet: kubelet, Pods: map[podresources.Pod]struct{}{
		{Namespace: "monitoring", Name: "exporter"}: {},
	}}
	for _, name := range names {
		pod := podresources.Pod{Namespace: "ns", Name: name}
		a.Pods[pod] = struct{}{}
		a.Allocations = append(a.Allocations, podresources.Allocation{
			Claim:   podresources.Claim{Namespace: "ns", Name: "c"},
			Device:  driver.ID{Driver: "v", Pool: "p", Device: "gpu-" + name},
			Holders: []podresources.Holder{{Pod: pod, Container: "main"}},
		})
	}
	return a
}

func localPod(name, uid string) podresources.PodFacts {
	return podresources.PodFacts{
		Pod: podresources.Pod{Namespace: "ns", Name: name}, UID: uid, Local: true, Started: true, Running: 1,
	}
}

// uidsOf returns the UIDs of the holders, by all evidence.
func uidsOf(b *holders.Book, now int) []string {
	held, _ := b.Holds(seconds(now), time.Time{})
	var out []string
	for _, a := range held.Allocations {
		for _, h := range a.Holders {
			out = append(out, h.UID)
		}
	}
	return out
}

func wantUIDs(t *testing.T, b *holders.Book, now int, want ...string) {
	t.Helper()
	got := uidsOf(b, now)
	if len(got) != len(want) {
		t.Fatalf("after %d s %q hold, not %q", now, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("after %d s %q hold, not %q", now, got, want)
		}
	}
}

// The kubelet lists a pod under the name of a deleted pod before its Pods API has reported the new
// one: the listed pod holds, and not as the deleted one. An answer that was requested earlier
// proves nothing.
func TestPodOfTheNameOfADeletedOne(t *testing.T) {
	const kubelet = "kubelet"
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	b.Answered(gives(2, kubelet, "a"))
	wantUIDs(t, b, 2, "old")
	b.PodDeleted("old", seconds(4))
	wantUIDs(t, b, 4)
	b.Answered(gives(3, kubelet, "a"))
	wantUIDs(t, b, 4)
	b.Answered(gives(5, kubelet, "a"))
	wantUIDs(t, b, 5, "")
	b.PodChanged(localPod("a", "new"), seconds(6))
	wantUIDs(t, b, 6, "new")
}

// The same after a pod that had ended and was no longer listed, and whose deletion was not
// reported.
func TestPodOfTheNameOfOneThatIsOver(t *testing.T) {
	const kubelet = "kubelet"
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	b.Answered(gives(2, kubelet, "a"))
	over := localPod("a", "old")
	over.Final, over.Running = true, 0
	b.PodChanged(over, seconds(3))
	wantUIDs(t, b, 3, "old")
	b.Answered(gives(4, kubelet))
	wantUIDs(t, b, 4)
	b.Answered(gives(5, kubelet, "a"))
	wantUIDs(t, b, 5, "")
}

// The same after a pod that the kubelet ended. By its last status, a container still ran. Then its
// cgroup was removed.
func TestPodOfTheNameOfOneWhoseCgroupIsGone(t *testing.T) {
	const kubelet = "kubelet"
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	b.Answered(gives(2, kubelet, "a"))
	ends := localPod("a", "old")
	ends.Final = true
	b.PodChanged(ends, seconds(3))
	gone := gives(4, kubelet, "a")
	gone.Cgroups = map[string]podresources.CgroupState{"old": podresources.CgroupGone}
	b.Answered(gone)
	wantUIDs(t, b, 4)
	b.Answered(gives(5, kubelet, "a"))
	wantUIDs(t, b, 5, "")
}

// A pod that has ended stays ended when the kubelet has restarted and no longer knows it, and the
// API server, which was away, still reports it as running. Found by the scenario
// Restarts/ServerAway.
func TestEndedPodThatTheServerHas(t *testing.T) {
	const kubelet = "kubelet"
	b := holders.NewBook(time.Minute, nil)
	claim := podresources.Claim{Namespace: "ns", Name: "c"}
	facts := podresources.ClaimFacts{
		UID: "u", Reserved: map[string]string{"old": "a"}, Read: seconds(1),
		Results: []podresources.ClaimResult{{Device: driver.ID{Driver: "v", Pool: "p", Device: "gpu-a"}}},
	}
	running := localPod("a", "old")
	running.Claims = []podresources.PodClaim{{Name: "mine", Claim: "c"}}
	b.ClaimRead(claim, facts)
	b.PodChanged(running, seconds(1))
	b.Answered(gives(2, kubelet, "a"))
	wantUIDs(t, b, 2, "old")
	over := running
	over.Final, over.Running = true, 0
	b.PodChanged(over, seconds(3))
	b.Answered(gives(4, kubelet))
	wantUIDs(t, b, 4)
	b.PodsListed([]podresources.PodFacts{localPod("exporter", "other")}, true, seconds(5))
	stale := running
	stale.Local = false
	b.PodsListed([]podresources.PodFacts{stale}, false, seconds(50))
	facts.Read = seconds(50)
	b.ClaimRead(claim, facts)
	wantUIDs(t, b, 51)
	// The next pod of the name is another one, even before its object is known.
	b.PodsListed([]podresources.PodFacts{localPod("exporter", "other")}, true, seconds(52))
	b.Answered(gives(53, kubelet, "a"))
	wantUIDs(t, b, 53, "")
	// It is forgotten after some time.
	known := b.NumPods()
	b.PodsListed([]podresources.PodFacts{localPod("exporter", "other")}, true, seconds(52+15*60))
	if got := b.NumPods(); got >= known {
		t.Errorf("%d pods are known, %d were", got, known)
	}
}

// A pod that had finished when it was deleted does not come back with the list of a restarted
// kubelet that has it as the API server had it: running. A pod that had not finished comes back.
func TestFinishedPodIsNotRelisted(t *testing.T) {
	const kubelet = "kubelet"
	for name, finished := range map[string]bool{"finished": true, "not finished": false} {
		t.Run(name, func(t *testing.T) {
			b := holders.NewBook(time.Minute, nil)
			claim := podresources.Claim{Namespace: "ns", Name: "c"}
			b.ClaimRead(claim, podresources.ClaimFacts{
				UID: "u", Reserved: map[string]string{"old": "a"}, Read: seconds(1),
				Results: []podresources.ClaimResult{{Device: driver.ID{Driver: "v", Pool: "p", Device: "gpu-a"}}},
			})
			running := localPod("a", "old")
			running.Claims = []podresources.PodClaim{{Name: "mine", Claim: "c"}}
			b.PodChanged(running, seconds(1))
			b.Answered(gives(2, kubelet, "a"))
			wantUIDs(t, b, 2, "old")
			if finished {
				over := running
				over.Final, over.Running = true, 0
				b.PodChanged(over, seconds(3))
			}
			b.Answered(gives(4, kubelet))
			b.PodDeleted("old", seconds(5))
			wantUIDs(t, b, 5)
			b.PodsListed([]podresources.PodFacts{running, localPod("exporter", "other")}, true, seconds(20))
			if finished {
				wantUIDs(t, b, 20)
			} else {
				wantUIDs(t, b, 20, "old")
			}
		})
	}
}

// A claim that was read before its pod was deleted is still reserved for that pod. The next pod of
// the name does not get the deleted UID from it.
func TestOldReservationNamesNoDeletedPod(t *testing.T) {
	const kubelet = "kubelet"
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	b.Answered(gives(2, kubelet, "a"))
	b.ClaimRead(podresources.Claim{Namespace: "ns", Name: "c"}, podresources.ClaimFacts{
		Reserved: map[string]string{"old": "a"}, Read: seconds(2),
		Results: []podresources.ClaimResult{{Device: driver.ID{Driver: "v", Pool: "p", Device: "gpu-a"}}},
	})
	b.PodDeleted("old", seconds(3))
	b.Answered(gives(4, kubelet, "a"))
	wantUIDs(t, b, 4, "")
}

// A static pod comes back with its UID after a late event and the removal of its cgroup had ended
// it.
func TestStaticPodComesBackAfterItsCgroup(t *testing.T) {
	const uid = "0123456789abcdef0123456789abcdef"
	const kubelet = "kubelet"
	b := holders.NewBook(time.Minute, nil)
	static := localPod("a", uid)
	static.Static = true
	b.PodChanged(static, seconds(1))
	b.Answered(gives(2, kubelet, "a"))
	b.PodDeleted(uid, seconds(3))
	over := static
	over.Final, over.Running = true, 0
	b.PodChanged(over, seconds(3)) // late
	gone := gives(4, kubelet)
	gone.Cgroups = map[string]podresources.CgroupState{uid: podresources.CgroupGone}
	b.Answered(gone)
	wantUIDs(t, b, 4)
	b.PodChanged(static, seconds(5))
	b.Answered(gives(6, kubelet, "a"))
	wantUIDs(t, b, 6, uid)
}

// A pod ended while the kubelet did not answer. When the kubelet then gives the same answer as
// before, the name holds again: another pod may have it.
func TestSameAnswerAfterAPodHadEnded(t *testing.T) {
	const kubelet = "kubelet"
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	answer := gives(2, kubelet, "a")
	b.Answered(answer)
	b.NotAnswered(map[string]podresources.CgroupState{"old": podresources.CgroupGone}, seconds(3))
	wantUIDs(t, b, 3)
	b.PodDeleted("old", seconds(4))
	b.PodChanged(localPod("a", "new"), seconds(4))
	again := *answer
	again.Asked = seconds(5)
	b.Answered(&again)
	wantUIDs(t, b, 5, "new")
}

// Reading equal claims from the file again is not reported as news. News would cause a request to
// the kubelet.
func TestSameFileIsNoNews(t *testing.T) {
	news := 0
	b := holders.NewBook(time.Minute, func() { news++ })
	claims := map[podresources.Claim]podresources.ClaimFacts{{Namespace: "ns", Name: "c"}: {}}
	for range 3 {
		b.ClaimsListed(claims, seconds(1))
	}
	if news != 1 {
		t.Fatalf("told of news %d times", news)
	}
	b.ClaimsListed(claims, seconds(2))
	if news != 2 {
		t.Fatalf("told of news %d times", news)
	}
}

// The hold of a pod that the API reports while the kubelet does not answer began when its object
// arrived, not at the kubelet's last answer.
func TestHoldBeginsWithItsPodAtTheEarliest(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	var dates holders.Dates
	view := func(now int) podresources.View {
		held, signs := b.Holds(seconds(now), seconds(now-1))
		return dates.Date(held.Allocations, signs, seconds(now))
	}
	b.Answered(gives(1, "kubelet"))
	view(1)
	pod := localPod("a", "uid")
	pod.Started, pod.Running = false, 0
	pod.Claims = []podresources.PodClaim{{Name: "local", Claim: "c"}}
	b.PodChanged(pod, seconds(20))
	b.ClaimRead(podresources.Claim{Namespace: "ns", Name: "c"}, podresources.ClaimFacts{
		Reserved: map[string]string{"uid": "a"}, Read: seconds(21),
		Results: []podresources.ClaimResult{{Device: driver.ID{Driver: "v", Pool: "p", Device: "gpu-a"}}},
	})
	got := view(21).Allocations
	if len(got) != 1 || !got[0].Holders[0].Hold.From.Equal(seconds(20)) {
		t.Fatalf("%+v", got)
	}
}

// A hold that comes back does not begin before its previous end, even if an earlier sign exists and
// its UID is not known yet.
func TestHoldsOfAPodFollowEachOther(t *testing.T) {
	t.Run("of a UID", func(t *testing.T) { holdsFollowEachOther(t, "uid") })
	t.Run("of a name", func(t *testing.T) { holdsFollowEachOther(t, "") })
}

func holdsFollowEachOther(t *testing.T, back string) {
	var dates holders.Dates
	held := gives(0, "kubelet", "a").Allocations
	held[0].Holders[0].UID, held[0].CDI = "uid", []string{"v/gpu-a"}
	written := podresources.Change{At: seconds(3), CDI: held[0].CDI}
	removed := podresources.Change{At: seconds(4), Gone: true, PodUID: "uid"}
	dates.Date(nil, holders.Signs{At: seconds(1)}, seconds(1))
	dates.Date(held, holders.Signs{At: seconds(2)}, seconds(2))
	view := dates.Date(nil, holders.Signs{At: seconds(2), Changes: []podresources.Change{removed}}, seconds(4))
	if len(view.Ended) != 1 || !view.Ended[0].Holders[0].Hold.To.Equal(seconds(4)) {
		t.Fatalf("%+v", view.Ended)
	}
	again := gives(0, "kubelet", "a").Allocations
	again[0].Holders[0].UID, again[0].CDI = back, held[0].CDI
	view = dates.Date(again, holders.Signs{At: seconds(5), Changes: []podresources.Change{written, removed}}, seconds(5))
	if from := view.Allocations[0].Holders[0].Hold.From; !from.Equal(seconds(4)) {
		t.Fatalf("it ended after 4 s, and began at %v", from)
	}
}

// A pod has ended if its cgroup is gone, or if the kubelet that had listed it no longer does: a pod
// with its name is another one. After a restart of the kubelet it may be the same pod.
func TestPodThatEndedDoesNotComeBackByItsName(t *testing.T) {
	for name, c := range map[string]struct {
		before, lacks, after podresources.Instance
		cgroup               podresources.CgroupState
		want                 string
	}{
		"the same kubelet":                   {before: "1", lacks: "1", after: "1"},
		"cgroup gone":                        {before: "1", lacks: "2", after: "2", cgroup: podresources.CgroupGone},
		"a kubelet that did not know it yet": {before: "1", lacks: "2", after: "2", want: "old"},
	} {
		t.Run(name, func(t *testing.T) {
			b := holders.NewBook(time.Second, nil)
			pod := localPod("a", "old")
			pod.Local = false
			b.PodChanged(pod, seconds(1))
			b.Answered(gives(2, c.before, "a"))
			wantUIDs(t, b, 2, "old")
			for asked := 3; asked < 6; asked++ {
				lacks := gives(asked, c.lacks)
				if c.cgroup != 0 {
					lacks.Cgroups = map[string]podresources.CgroupState{"old": c.cgroup}
				}
				b.Answered(lacks)
			}
			wantUIDs(t, b, 5)
			b.Answered(gives(7, c.after, "a"))
			wantUIDs(t, b, 7, c.want)
		})
	}
}

// An answer that was requested before a pod was deleted does not list the next pod of its name.
func TestOldAnswerIsNotOfTheNextPod(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	b.Answered(gives(2, "kubelet", "a"))
	b.PodDeleted("old", seconds(4))
	b.PodChanged(localPod("a", "new"), seconds(5))
	b.Answered(gives(3, "kubelet", "a"))
	wantUIDs(t, b, 5)
	b.Answered(gives(6, "kubelet", "a"))
	wantUIDs(t, b, 6, "new")
}

// An equal answer lists the next pod of the name if it was requested after that pod was created.
func TestSameAnswerIsOfTheNextPod(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	answer := gives(3, "kubelet", "a")
	b.PodDeleted("old", seconds(4))
	b.PodChanged(localPod("a", "new"), seconds(5))
	b.Answered(answer)
	wantUIDs(t, b, 5)
	again := *answer
	again.Asked = seconds(6)
	b.Answered(&again)
	wantUIDs(t, b, 6, "new")
}

// A pod that was listed before its object arrived is the pod whose object arrives first, and not
// the next one of its name. Answers that were requested before the kubelet knew the next pod do not
// end it.
func TestListedPodIsTheOneWhoseObjectComesFirst(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	b.Answered(gives(1, "kubelet", "a"))
	b.PodChanged(localPod("a", "old"), seconds(2))
	b.PodDeleted("old", seconds(3))
	next := localPod("a", "new")
	next.Started, next.Running = false, 0
	b.PodChanged(next, seconds(4))
	wantUIDs(t, b, 4)
	b.Answered(gives(5, "kubelet"))
	if state := b.States()["new"].State; state != holders.Bound {
		t.Fatalf("the next pod is %v", state)
	}
	b.Answered(gives(6, "kubelet", "a"))
	wantUIDs(t, b, 6, "new")
}

// After a change, the kubelet is asked until an answer arrives that was requested after the change.
func TestQuietAfterAnAnswerThatWasAskedForLater(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	b.Watching(seconds(1), seconds(1))
	b.Answered(gives(5, "kubelet", "a"))
	b.PodChanged(localPod("a", "a"), seconds(6))
	if b.Quiet(seconds(10)) {
		t.Fatal("the last answer was asked for before the change")
	}
	b.Answered(gives(10, "kubelet", "a"))
	if !b.Quiet(seconds(11)) {
		t.Fatal("it is asked again")
	}
}

// A static pod whose deletion is the first news of it comes back with its UID.
func TestUnknownStaticPodIsDeleted(t *testing.T) {
	const uid = "0123456789abcdef0123456789abcdef"
	b := holders.NewBook(time.Minute, nil)
	b.PodDeleted(uid, seconds(1))
	static := localPod("a", uid)
	static.Static = true
	b.PodChanged(static, seconds(2))
	b.Answered(gives(3, "kubelet", "a"))
	wantUIDs(t, b, 3, uid)
}

// A pod was deleted while the kubelet restarted. The new kubelet never knew it, and lists the next
// pod of its name: no event reports the end.
func TestPodThatWasReplacedDuringARestart(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	old := localPod("a", "old")
	old.Claims = []podresources.PodClaim{{Name: "local", Claim: "other"}}
	b.PodChanged(old, seconds(1))
	b.ClaimRead(podresources.Claim{Namespace: "ns", Name: "other"}, podresources.ClaimFacts{
		Reserved: map[string]string{"old": "a"}, Read: seconds(1),
		Results: []podresources.ClaimResult{{Device: driver.ID{Driver: "v", Pool: "p", Device: "gpu-other"}}},
	})
	b.Answered(gives(2, "1", "a"))
	b.Answered(gives(4, "2"))
	next := localPod("a", "new")
	next.Created = seconds(5)
	b.PodChanged(next, seconds(6))
	b.Answered(gives(7, "2", "a"))
	wantUIDs(t, b, 7, "new")
}

// The API server has the next pod of a name before the kubelet has dropped the previous one. When
// the kubelet no longer lists the name, this does not end the next pod.
func TestServerIsAheadOfTheKubelet(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	pod := localPod("a", "old")
	pod.Local = false
	b.PodChanged(pod, seconds(1))
	b.Answered(gives(2, "kubelet", "a"))
	b.PodDeleted("old", seconds(3))
	pod.UID, pod.Created, pod.Started, pod.Running = "new", seconds(4), false, 0
	b.PodChanged(pod, seconds(4))
	b.Answered(gives(5, "kubelet", "a"))
	b.Answered(gives(6, "kubelet"))
	if state := b.States()["new"].State; state != holders.Bound {
		t.Fatalf("it is %v", state)
	}
	b.Answered(gives(7, "kubelet", "a"))
	wantUIDs(t, b, 7, "new")
}

// A pod was ending when the watch of the kubelet's pods broke. It has ended when neither the
// kubelet's next list nor its next answer contains it.
func TestPodThatEndedBetweenTwoWatches(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	pod := localPod("a", "uid")
	b.PodChanged(pod, seconds(1))
	b.Answered(gives(2, "kubelet", "a"))
	pod.Final = true // its containers still run
	b.PodChanged(pod, seconds(3))
	b.PodsListed([]podresources.PodFacts{localPod("exporter", "exporter")}, true, seconds(5))
	b.Answered(gives(6, "kubelet"))
	if state := b.States()["uid"].State; state != holders.Ended {
		t.Fatalf("it is %v", state)
	}
}

// An answer that was requested before the pod's object arrived does not disprove that object.
func TestOlderAnswerEndsNoPod(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	first := gives(1, "kubelet", "a")
	first.UIDs = map[podresources.Pod]string{{Namespace: "ns", Name: "a"}: "uid"} // by its log folder
	b.Answered(first)
	b.PodChanged(localPod("a", "uid"), seconds(5))
	b.Answered(gives(4, "kubelet"))
	if state := b.States()["uid"].State; state != holders.Running {
		t.Fatalf("it is %v", state)
	}
}

// A pod that waits to be bound is not the pod of its name that the kubelet lists.
func TestNominatedPodOfAListedName(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	next := localPod("a", "new")
	next.Local, next.Started, next.Running, next.Nominated, next.Created = false, false, 0, true, seconds(2)
	b.NominatedChanged(next, seconds(2))
	b.Answered(gives(3, "kubelet", "a"))
	wantUIDs(t, b, 3, "old")
	b.PodDeleted("old", seconds(4))
	b.Answered(gives(5, "kubelet", "a"))
	wantUIDs(t, b, 5, "new")
}

// The API server has the next pod of a name, which never starts. Then the API server is away. The
// pod has ended when the kubelet has not listed the name for a while.
func TestPodThatEndsBeforeItsStartIsKnown(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	pod := localPod("a", "old")
	pod.Local = false
	b.PodChanged(pod, seconds(1))
	b.PodDeleted("old", seconds(2))
	pod.UID, pod.Created, pod.Started, pod.Running = "new", seconds(3), false, 0
	b.PodChanged(pod, seconds(3))
	b.Answered(gives(4, "kubelet", "a"))
	b.Answered(gives(5, "kubelet"))
	if state := b.States()["new"].State; state != holders.Bound {
		t.Fatalf("it is %v", state)
	}
	b.Answered(gives(8, "kubelet"))
	if state := b.States()["new"].State; state != holders.Ended {
		t.Fatalf("later it is %v", state)
	}
}

// The list of a restarted kubelet is incomplete. A pod that is known only by its object holds its
// devices until the kubelet has had time to list it, or for the grace period.
func TestPodThatARestartedKubeletDoesNotKnowYet(t *testing.T) {
	for name, c := range map[string]struct {
		ready bool // it lists a pod of the API server
		asked int  // when the pod has ended
	}{
		"it lists others": {true, 8},
		"it lists none":   {false, 65},
	} {
		t.Run(name, func(t *testing.T) {
			b := holders.NewBook(time.Minute, nil)
			pod := localPod("a", "uid")
			pod.Claims = []podresources.PodClaim{{Name: "local", Claim: "other"}}
			b.PodsListed([]podresources.PodFacts{pod}, true, seconds(1))
			b.ClaimRead(podresources.Claim{Namespace: "ns", Name: "other"}, podresources.ClaimFacts{
				Reserved: map[string]string{"uid": "a"}, Read: seconds(1),
				Results: []podresources.ClaimResult{{Device: driver.ID{Driver: "v", Pool: "p", Device: "gpu-other"}}},
			})
			b.Answered(gives(2, "1"))
			other := localPod("exporter", "exporter")
			other.Pod.Namespace = "monitoring"
			b.PodsListed([]podresources.PodFacts{other}, true, seconds(4))
			answer := func(asked int) {
				a := gives(asked, "2")
				a.Arrived = a.Asked.Add(time.Second)
				if !c.ready {
					a.Pods = nil
				}
				b.Answered(a)
			}
			answer(5)
			answer(c.asked - 1)
			wantUIDs(t, b, c.asked-1, "uid")
			answer(c.asked)
			wantUIDs(t, b, c.asked)
		})
	}
}

// A restarted kubelet may list only one pod of the API server in its first answer. The absence of
// the others is believed from answers that are requested two seconds later.
func TestRestartedKubeletIsGivenTimeFromItsFirstAnswer(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "uid"), seconds(1))
	b.Answered(gives(2, "1", "a"))
	first := gives(5, "2", "b")
	first.Arrived = seconds(7)
	b.Answered(first)
	b.Answered(gives(8, "2", "b"))
	wantUIDs(t, b, 8, "uid", "")
	b.Answered(gives(9, "2", "b"))
	wantUIDs(t, b, 9, "")
}

// The grace period starts again when the kubelet restarts again.
func TestKubeletRestartsTwice(t *testing.T) {
	b := holders.NewBook(10*time.Second, nil)
	b.PodChanged(localPod("a", "uid"), seconds(1))
	b.Answered(gives(2, "1", "a"))
	b.Answered(gives(3, "2"))
	b.Answered(gives(12, "3"))
	b.Answered(gives(21, "3"))
	wantUIDs(t, b, 21, "uid")
	b.Answered(gives(22, "3"))
	wantUIDs(t, b, 22)
}

// An answer that was requested before the next pod of a name was seen lists the previous one,
// although the news of the deletion arrives later.
func TestOldAnswerIsOfThePodBefore(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	old, next := localPod("a", "old"), localPod("a", "new")
	next.Created = seconds(4)
	b.PodChanged(old, seconds(1))
	b.Answered(gives(2, "kubelet", "a"))
	b.PodChanged(next, seconds(4))
	b.Answered(gives(3, "kubelet", "a"))
	wantUIDs(t, b, 4, "old")
	b.PodDeleted("old", seconds(5))
	b.Answered(gives(6, "kubelet", "a"))
	wantUIDs(t, b, 6, "new")
}

// The last pod of a node ends while the kubelet restarts. The new kubelet reports the end and lists
// no pod at all. This is believed about pods that the new kubelet itself has reported, and not
// about those that only the previous one has.
func TestLastPodEndsForARestartedKubelet(t *testing.T) {
	for name, c := range map[string]struct {
		said    int  // when a kubelet reports that the pod has ended
		watched bool // the time since which its pods are watched
		want    []string
	}{
		"the one that has restarted":                    {said: 5},
		"the one that has restarted, before it answers": {said: 3, watched: true},
		"the one before":                                {said: 3, want: []string{"uid"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := holders.NewBook(time.Minute, nil)
			over := localPod("a", "uid")
			b.PodChanged(over, seconds(1))
			b.Answered(gives(2, "1", "a"))
			over.Final, over.Running = true, 0
			for asked := 3; asked < 7; asked++ {
				if asked == c.said {
					b.PodChanged(over, seconds(asked))
				}
				if asked == c.said && c.watched {
					b.Watching(seconds(asked), seconds(asked))
				}
				none := gives(asked, "2")
				none.Pods = nil
				if asked > 3 {
					b.Answered(none)
				}
			}
			wantUIDs(t, b, 7, c.want...)
		})
	}
}

// An answer that was requested before the next pod of a name was seen lists the devices of that
// pod. It keeps them when the kubelet no longer answers and the cgroup of the previous pod is
// removed.
func TestNextPodHoldsWhileTheKubeletIsAway(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	next := localPod("a", "new")
	next.Created, next.Claims = seconds(4), []podresources.PodClaim{{Name: "local", Claim: "c"}}
	b.PodChanged(localPod("a", "old"), seconds(1))
	b.PodDeleted("old", seconds(4))
	b.PodChanged(next, seconds(5))
	b.Answered(gives(3, "kubelet", "a"))
	wantUIDs(t, b, 6, "new")
	b.NotAnswered(map[string]podresources.CgroupState{"old": podresources.CgroupGone}, seconds(7))
	wantUIDs(t, b, 8, "new")
}

// A pod has ended, and the kubelet lists the next one of its name. The news of the deletion of the
// first arrives after that.
func TestDeletionComesAfterTheNextPod(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	b.PodChanged(localPod("a", "old"), seconds(1))
	b.Answered(gives(2, "kubelet", "a"))
	b.Answered(gives(3, "kubelet"))
	b.Answered(gives(4, "kubelet", "a"))
	wantUIDs(t, b, 4, "")
	b.PodDeleted("old", seconds(5))
	wantUIDs(t, b, 5, "")
}

// The watch of the kubelet's pods breaks, the last pods of the node end, and the next watch lists
// none. An answer without any pod confirms that, if it is from the kubelet that had listed them.
func TestLastPodEndsWhileTheWatchIsBroken(t *testing.T) {
	for name, c := range map[string]struct {
		kubelet podresources.Instance // the kubelet that answers then
		list    int                   // when the next watch asks for its list
		want    []string
	}{
		"the same kubelet":                       {kubelet: "kubelet", list: 4},
		"the list is older than the last answer": {kubelet: "kubelet", list: 1, want: []string{"uid"}},
		"another kubelet":                        {kubelet: "2", list: 4, want: []string{"uid"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := holders.NewBook(time.Minute, nil)
			b.PodChanged(localPod("a", "uid"), seconds(1))
			b.Answered(gives(2, "kubelet", "a"))
			b.PodsListed(nil, true, seconds(c.list))
			for asked := 5; asked < 8; asked++ {
				none := gives(asked, c.kubelet)
				none.Pods = nil
				b.Answered(none)
				wantUIDs(t, b, asked, c.want...)
			}
		})
	}
}

// The last pods of the node are deleted while the watch of the API server is broken. The API
// server's next list, without any pod, proves it even before the kubelet's answers do. The
// kubelet's own list does not prove it.
func TestListWithoutAnyPod(t *testing.T) {
	for name, c := range map[string]struct {
		local bool
		want  []string
	}{
		"of the API server": {local: false},
		"of the kubelet":    {local: true, want: []string{"uid"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := holders.NewBook(time.Minute, nil)
			pod := localPod("a", "uid")
			pod.Local = c.local
			b.PodChanged(pod, seconds(1))
			b.Answered(gives(2, "kubelet", "a"))
			b.PodsListed(nil, c.local, seconds(3))
			wantUIDs(t, b, 3, c.want...)
			b.Answered(gives(4, "kubelet", "a"))
			wantUIDs(t, b, 4, c.want...)
			none := gives(5, "kubelet")
			none.Pods = nil
			b.Answered(none)
			wantUIDs(t, b, 5, c.want...)
		})
	}
}

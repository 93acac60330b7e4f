package holders_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// These tests are what TestModel found, by hand.

// seconds is a time of these tests.
func seconds(s int) time.Time { return time.Unix(1_700_000_000+int64(s), 0) }

// gives is an answer that was asked for after so many seconds, in which pods of these names have a
// device of claim c. It lists the exporter's own pod too.
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

// uidsOf returns the UIDs of the holders by all evidence.
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

// The kubelet lists a pod of the name of one that it had deleted, before its Pods API has said
// which: it holds, and not as the deleted one. An answer that was asked for before proves nothing.
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

// The same after a pod that was over and was not listed any more, of which no deletion has come.
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

// The same after a pod that the kubelet ended, by its last word while a container ran, and whose
// cgroup was then removed.
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

// A pod that has ended stays ended when the kubelet has forgotten it, as one that has restarted
// has, and the API server, which was away, still has it as a running one: found by the scenario
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
	// The next pod of the name is another one, also before an object of it is known.
	b.PodsListed([]podresources.PodFacts{localPod("exporter", "other")}, true, seconds(52))
	b.Answered(gives(53, kubelet, "a"))
	wantUIDs(t, b, 53, "")
	// It is not remembered for ever.
	known := b.NumPods()
	b.PodsListed([]podresources.PodFacts{localPod("exporter", "other")}, true, seconds(52+15*60))
	if got := b.NumPods(); got >= known {
		t.Errorf("%d pods are known, %d were", got, known)
	}
}

// A pod that had finished when it was deleted does not come back with the list of a kubelet that
// has restarted, and has it as the API server had: running. One that had not finished does.
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

// A claim that was read before its pod was deleted is still reserved for that: it does not give the
// deleted UID to the next pod of the name.
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

// A static pod comes back with its UID, after a late event and its cgroup's end had ended it.
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

// A pod that ended while the kubelet did not answer is held again when the kubelet gives the same
// answer as before: another pod may have its name.
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

// The same claims of the file again are no news: an exporter that is told of news asks again.
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

// A pod of which the API tells while the kubelet does not answer began when its object came, not at
// the kubelet's last answer.
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

// A hold that comes back does not begin before it ended, though a sign says so, and though its UID
// is not known yet.
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

// A pod has ended whose cgroup is gone, or that the kubelet does not list any more which had listed
// it: another one of its name is not that pod. After a restart it may be.
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

// An answer that was asked for before a pod was deleted is not of the next pod of its name.
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

// The same answer again is of the next pod of the name, when it was asked for after that came.
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

// A pod that was listed before its object came is the one whose object comes first, not the next
// one of its name: that is not ended by answers that were asked for before the kubelet knew it.
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

// The kubelet is asked again after a change until an answer comes that was asked for after it.
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

// A static pod of which the first news is its deletion comes back with its UID.
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

// A pod was deleted while the kubelet restarted, which never knew it, and lists the next one of its
// name: no event says that it ended.
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

// The API server has the next pod of a name before the kubelet has dropped the one before:
// that the kubelet lists the name no more does not end the next one.
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

// A pod that was ending when the watch of the kubelet's pods ended has ended when neither the
// kubelet's next list nor its next answer has it.
func TestPodThatEndedBetweenTwoWatches(t *testing.T) {
	b := holders.NewBook(time.Minute, nil)
	pod := localPod("a", "uid")
	b.PodChanged(pod, seconds(1))
	b.Answered(gives(2, "kubelet", "a"))
	pod.Final = true // its containers run on
	b.PodChanged(pod, seconds(3))
	b.PodsListed([]podresources.PodFacts{localPod("exporter", "exporter")}, true, seconds(5))
	b.Answered(gives(6, "kubelet"))
	if state := b.States()["uid"].State; state != holders.Ended {
		t.Fatalf("it is %v", state)
	}
}

// An answer that was asked for before the pod's object came proves nothing against what that says.
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

// A pod that waits to be bound is not the one of its name that the kubelet lists.
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

// The API server has the next pod of a name, which never starts, and then goes away: it has
// ended when the kubelet has not listed the name for a while.
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

// The list of a kubelet that has restarted lacks pods: one that only its object names holds what
// it held until the kubelet has had time to list it, or for the grace.
func TestPodThatARestartedKubeletDoesNotKnowYet(t *testing.T) {
	for name, c := range map[string]struct {
		ready bool // it lists a pod of the API server
		asked int  // when the pod is over
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

// A kubelet that has restarted may list one pod of the API server when its first answer arrives:
// the others are lacked for good by what is asked for two seconds after that.
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

// The grace begins anew when the kubelet restarts again.
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

// An answer that was asked for before the next pod of a name was seen is of the one before, though
// the news of its deletion comes later.
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

// The last pod of a node ends while the kubelet restarts, which says so and lists no pod at all:
// that is believed of what it has said itself, not of what the one before has.
func TestLastPodEndsForARestartedKubelet(t *testing.T) {
	for name, c := range map[string]struct {
		said    int  // when a kubelet says that the pod has ended
		watched bool // its pods are watched since then
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

// An answer that was asked for before the next pod of a name was seen lists what that one holds: it
// holds that on when the kubelet does not answer any more, and the cgroup of the pod before goes.
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

// A pod has ended, the kubelet lists the next one of its name, and the news of the deletion of the
// first comes after that.
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
// none: an answer without any pod agrees with that, if it is of the kubelet that had listed them.
func TestLastPodEndsWhileTheWatchIsBroken(t *testing.T) {
	for name, c := range map[string]struct {
		kubelet podresources.Instance // which answers then
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

// The last pods of the node are deleted while the watch of the API server is broken: its next list,
// without any pod, says so, also before the kubelet's answers do. The kubelet's own list does not.
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

package holders

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Each reason of the closed list results from its evidence.
func TestReasons(t *testing.T) {
	uses := PodFacts{Claims: named("gpu=c")}
	started, nominated := uses, uses
	started.Started, nominated.Nominated = true, true
	read := ClaimFacts{Read: second(20)}
	listed := world{}.list("c", "a", "p/main")
	reserved := world{}.claim("c", read, []string{"r:a"}, "p")
	other := func(isListed bool) func() Holdings { // the kubelet lists b, and the claim is allocated a
		return func() Holdings {
			out := reserved.list("c", "b", "p/main").pod("p", started).holdings()
			out.Allocations = slices.DeleteFunc(out.Allocations, func(a Allocation) bool {
				return (a.Device == deviceNamed("b")) != isListed
			})
			return out
		}
	}
	kept := func(what func(n *node)) func() Holdings {
		return func() Holdings {
			n := serverNode(t)
			n.answer(time.Second, held("gpu-0", "a"))
			what(n)
			out, _ := n.Holds(n.now, time.Time{})
			return out
		}
	}
	want := map[podresources.Reason]func() Holdings{
		podresources.ReasonListed:    listed.holdings,
		podresources.ReasonReserved:  reserved.pod("p", started).holdings,
		podresources.ReasonOther:     other(true),
		podresources.ReasonUnused:    other(false),
		podresources.ReasonWaiting:   reserved.pod("p", uses).holdings,
		podresources.ReasonNominated: reserved.served("p", nominated).holdings,
		podresources.ReasonEnding:    listed.pod("p", started).ending(25, 0).holdings,
		podresources.ReasonClaimGone: reserved.pod("p", started).then(func(b *Book) {
			b.ClaimDeleted(Claim{Namespace: "ns", Name: "c"}, second(25))
		}).holdings,
		podresources.ReasonProcesses: kept(func(n *node) {
			n.states["uid-a"] = podresources.CgroupAlive
			n.answer(time.Second)
		}),
		podresources.ReasonNoAnswer: kept(func(n *node) {
			n.fail(time.Second)
			n.fail(unansweredAfter)
		}),
		podresources.ReasonRestarted: kept(func(n *node) {
			n.restart()
			n.answer(time.Second)
		}),
	}
	expect.Equal(t, "reasons", slices.Sorted(slices.Values(podresources.Reasons())), slices.Sorted(maps.Keys(want)))
	for reason, holdings := range want {
		var got []podresources.Reason
		for _, a := range holdings().Allocations {
			for _, h := range a.Holders {
				if h.Hold == nil {
					h.Hold = &podresources.Hold{Reason: podresources.ReasonListed}
				}
				got = append(got, h.Hold.Reason)
			}
		}
		expect.Equal(t, string(reason), []podresources.Reason{reason}, got)
	}
}

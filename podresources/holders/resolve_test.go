package holders

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// uses describes the containers of a pod: "container" names no claim, "container:claim" a whole
// claim by the pod's name for it, "container:claim:request" a request.
func uses(containers ...string) []PodContainer {
	var out []PodContainer
	for _, c := range containers {
		name, claim, named := strings.Cut(c, ":")
		if !named {
			continue
		}
		claim, request, _ := strings.Cut(claim, ":")
		out = append(out, PodContainer{Name: name, Uses: []ClaimUse{{Name: claim, Request: request}}})
	}
	return out
}

// named returns the claims of a pod: "NAME=CLAIM", without a claim that is made from a template.
func named(claims ...string) []PodClaim {
	var out []PodClaim
	for _, c := range claims {
		name, claim, _ := strings.Cut(c, "=")
		out = append(out, PodClaim{Name: name, Claim: claim})
	}
	return out
}

func TestResolve(t *testing.T) {
	read := ClaimFacts{Read: second(20)}
	stale := ClaimFacts{Read: second(5)}
	deleted := ClaimFacts{Read: second(20), Deleted: true}
	made := func(podName string) ClaimFacts { return ClaimFacts{Read: second(20), PodClaimName: podName} }
	device := []string{"r:a"}
	started := func(claims []PodClaim, containers ...string) PodFacts {
		return PodFacts{Started: true, Running: 1, Claims: claims, Containers: uses(containers...)}
	}
	var node world
	for name, tc := range map[string]struct {
		world
		listed     []string // pods that the kubelet lists without devices
		exited     string   // the pod whose cgroup is gone
		want       []string
		conflicts  []string
		unresolved map[string]int
		wants      []string // claims, and pods as pod/NAME
	}{
		"another device than that of the claim, which is reserved for a pod that is not known": {
			world: node.list("c", "b", "p/main").claim("c", read, device, "p"),
			want:  []string{"c a p/"}, conflicts: []string{"device c b p, not a"},
			wants: []string{"c"},
		},
		"one of two devices is another, and the pod is not known": {
			world: node.list("c", "b", "p/main").list("c", "r", "p/main").claim("c", read, []string{"r:a", "r:r"}, "p"),
			want:  []string{"c a p/", "c r p/main"}, conflicts: []string{"device c b p, not a"},
			wants: []string{"c"},
		},
		"a claim that was deleted while its pod waits for the driver": {
			world: node.claim("c", deleted, device, "p").
				pod("p", PodFacts{Claims: named("mine=c"), Containers: uses("main:mine")}),
			wants: []string{"c"},
		},
		"a claim that was deleted, and the kubelet lists it": {
			world: node.list("c", "a", "p/main").claim("c", deleted, device, "p").
				pod("p", started(named("mine=c"), "main:mine")),
			want: []string{"c a p/main"}, conflicts: []string{"reservation c a p"}, wants: []string{"c"},
		},
		"a claim made from a template was deleted": {
			world: node.claim("c-1", ClaimFacts{Read: second(20), PodClaimName: "mine", Deleted: true}, device, "p").
				claim("c-2", made("mine"), []string{"r:b"}, "p").pod("p", started(named("mine="))),
			want: []string{"c-2 b p/"}, wants: []string{"c-2"},
		},
		"one of two drivers is away": {
			world: node.list("c", "a", "p/main").claim("c", read, []string{"r:a", "s:b"}, "p").
				pod("p", PodFacts{Claims: named("mine=c"), Containers: uses("main:mine")}),
			want: []string{"c a p/main", "c b p/ allocated"}, wants: []string{"c"},
		},
		"a claim that is reserved for a group": {
			world: node.claim("c", ClaimFacts{Read: second(20), ReservedOther: true}, device).pod("p", started(named("mine=c"))),
			want:  []string{"c a p/"}, wants: []string{"c"},
		},
		"a claim that was read before the pod was there": {
			world: node.claim("c", stale, device, "q").pod("p", started(named("mine=c"))), wants: []string{"c"},
			unresolved: map[string]int{UnresolvedClaim: 1},
		},
		"nobody knows the claim, but it is listed for another pod": {
			world: node.list("c", "a", "q/main").pod("p", started(named("mine=c"))),
			want:  []string{"c a p/", "c a q/main"}, wants: []string{"c"},
		},
		"and the pod waits": {
			world: node.list("c", "a", "q/main").pod("p", PodFacts{Claims: named("mine=c")}),
			want:  []string{"c a q/main"}, wants: []string{"c"}, unresolved: map[string]int{UnresolvedClaim: 1},
		},
		"nobody knows the name": {
			world: node.pod("p", started(named("mine="))), wants: []string{"pod/p"},
			unresolved: map[string]int{UnresolvedName: 1},
		},
		"the API server told that there is none": {
			world: node.served("p", PodFacts{Started: true}),
		},
		"the claim's annotation has the name": {
			world: node.claim("c", made("mine"), device, "p").pod("p", started(named("other=x", "mine="))),
			want:  []string{"c a p/"}, wants: []string{"c", "x"}, unresolved: map[string]int{UnresolvedClaim: 1},
		},
		"of two claims of a template the kubelet lists one": {
			world: node.list("c", "a", "p/main").claim("c", made("mine"), device, "p").pod("p",
				started(named("mine=", "nic="), "main:mine")),
			want: []string{"c a p/main"}, wants: []string{"c", "pod/p"}, unresolved: map[string]int{UnresolvedName: 1},
		},
		"the kubelet lists the only one": {
			world: node.list("c", "a", "p/main").pod("p", started(named("mine="), "main:mine")),
			want:  []string{"c a p/main"}, wants: []string{"c"},
		},
		"a kubelet that lists devices without their shares": {
			world: node.list("c", "a", "p/main", "q/main").claim("c", read, []string{"x:a#1", "y:a#2"}, "p", "q").
				pod("p", started(named("mine=c"), "main:mine:x")).pod("q", started(named("other=c"), "main:other:y")),
			want: []string{"c a#1 p/main", "c a#2 q/main"}, wants: []string{"c"},
		},
		"requests of a claim that nobody knows": {
			world: node.list("c", "a", "p/main", "q/main").list("c", "b", "p/main", "q/main").
				pod("p", started(named("mine=c"), "main:mine:x")).pod("q", started(named("other=c"), "main:other")),
			want:  []string{"c a p/main", "c a q/main", "c b p/main", "c b q/main"},
			wants: []string{"c"}, unresolved: map[string]int{UnresolvedRequest: 1},
		},
		"a subrequest": {
			world: node.list("c", "a", "p/x", "p/y").claim("c", read, []string{"r/small:a"}, "p").
				pod("p", started(named("mine=c"), "x:mine:r", "y:mine:s")),
			want: []string{"c a p/x"}, wants: []string{"c"},
		},
		"a pod that ends, whose claim was read before that and not reserved for it": {
			world: node.list("c", "a", "p/main").claim("c", read, device, "q").
				pod("p", started(named("mine=c"))).ending(25, 0),
			want: []string{"c a p/main"}, wants: []string{"c"},
		},
		"extended resources, told": {
			world: node.list("e", "a", "p/x", "p/y").list("e", "b", "p/x", "p/y").claim("e", ClaimFacts{Extended: true},
				[]string{"0:a", "1:b"}, "p").
				served("p", PodFacts{Started: true, Extended: true, ExtendedClaim: "e", ExtendedUses: []PodContainer{
					{Name: "x", Uses: []ClaimUse{{Request: "0"}}}, {Name: "y", Uses: []ClaimUse{{Request: "1"}}},
				}}),
			want: []string{"e a p/x", "e b p/y"}, wants: []string{"e"},
		},
		"extended resources, not told": {
			world: node.list("e", "a", "p/x", "p/y").list("e", "b", "p/x", "p/y").pod("p",
				PodFacts{Started: true, Extended: true}),
			want:  []string{"e a p/x", "e a p/y", "e b p/x", "e b p/y"},
			wants: []string{"e", "pod/p"}, unresolved: map[string]int{UnresolvedRequest: 1},
		},
		"extended resources of an init container": {
			world: node.claim("e", ClaimFacts{Extended: true}, []string{"0:a"}, "p").pod("p",
				PodFacts{Started: true, Extended: true}),
			want: []string{"e a p/"}, wants: []string{"e", "pod/p"},
		},
		"extended resources of a device plugin": {
			world: world{listed: []Allocation{{
				Claim: Claim{Namespace: "ns"}, Device: driver.ID{Driver: "vendor.test/gpu", Device: "1"},
				Holders: []Holder{{Pod: Pod{Namespace: "ns", Name: "p"}, Container: "main", UID: "uid-p"}},
			}}}.pod("p", PodFacts{Started: true, Extended: true}),
			want: []string{" 1 p/main"},
		},
		"another device than the allocation's": {
			world: node.list("c", "b", "p/main").list("d", "b", "q/main").claim("c", read, device, "p").claim("d", read,
				[]string{"r:b"}, "q").
				pod("p", started(named("mine=c"), "main:mine")).pod("q", started(named("mine=d"), "main:mine")),
			want: []string{"c a p/ allocated", "c b p/main", "d b q/main"}, wants: []string{"c", "d"},
			conflicts: []string{"device c b p, not a"},
		},
		"another device than the allocation's, and the pod has not started": {
			world: node.list("c", "b", "p/main").claim("c", read, device, "p").
				pod("p", PodFacts{Claims: named("mine=c"), Containers: uses("main:mine")}),
			want: []string{"c a p/ allocated"}, wants: []string{"c"}, conflicts: []string{"device c b p, not a"},
		},
		"another device than the allocation's, and the pod started after the answer": {
			world: node.list("c", "b", "p/main").claim("c", read, device, "p").
				pod("p", PodFacts{Claims: named("mine=c"), Containers: uses("main:mine")}).
				then(func(b *Book) {
					facts := started(named("mine=c"), "main:mine")
					facts.Pod, facts.UID, facts.Local = Pod{Namespace: "ns", Name: "p"}, "uid-p", true
					b.PodChanged(facts, second(32))
				}),
			want: []string{"c a p/"}, wants: []string{"c"}, conflicts: []string{"device c b p, not a"},
		},
		"a claim that is not reserved for the pod that is listed": {
			world: node.list("c", "a", "p/main").claim("c", read, device, "q").pod("p", started(named("mine=c"), "main:mine")),
			want:  []string{"c a p/main"}, wants: []string{"c"}, conflicts: []string{"reservation c a p"},
		},
		"a pod that ends holds its claims while it is listed": {
			world:  node.claim("c", read, device, "p").pod("p", started(named("mine=c"))).ending(30, 0),
			listed: []string{"p"}, want: []string{"c a p/"}, wants: []string{"c"},
		},
		"but not when neither is so": {
			world: node.claim("c", read, device, "p").pod("p", started(named("mine=c"))).ending(30, 0),
		},
		"nor when its cgroup is gone": {
			world: node.list("c", "a", "p/main").claim("c", read, device, "p").
				pod("p", started(named("mine=c"))).ending(30, 0),
			listed: []string{"p"}, exited: "uid-p", wants: []string{"c"},
		},
		"nor when the claim is no longer reserved for it": {
			world: node.list("c", "a", "p/main").claim("c", read, device).
				pod("p", started(named("mine=c"))).ending(15, 0),
			listed: []string{"p"}, wants: []string{"c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := tc.world
			node.also, node.gone = tc.listed, map[string]podresources.CgroupState{tc.exited: podresources.CgroupGone}
			before := fmt.Sprintf("%+v", node.listed)
			got := node.holdings()
			expect.Equal(t, "holds", tc.want, holds(got.Allocations))
			var conflicts, wants []string
			for _, c := range got.Conflicts {
				text := fmt.Sprint(c.Kind, " ", c.Claim.Name, " ", c.Device.Device, " ", c.Pod.Name)
				if c.Allocated != (driver.ID{}) {
					text += ", not " + c.Allocated.Device
				}
				conflicts = append(conflicts, text)
			}
			expect.Equal(t, "conflicts", tc.conflicts, conflicts)
			if len(tc.unresolved)+len(got.Unresolved) > 0 {
				expect.Equal(t, "unresolved", tc.unresolved, got.Unresolved)
			}
			for c := range got.Wanted.Claims {
				wants = append(wants, c.Name)
			}
			for _, p := range got.Wanted.Pods {
				wants = append(wants, "pod/"+p.Name)
			}
			slices.Sort(wants)
			expect.Equal(t, "wants", tc.wants, wants)
			if after := fmt.Sprintf("%+v", node.listed); after != before {
				t.Errorf("the input changed:\n%s\n%s", before, after)
			}
		})
	}
}

// A pod whose claim has admin access to another device than the kubelet lists has admin access to
// both.
func TestConflictWithAdminAccess(t *testing.T) {
	admin := ClaimFacts{Read: second(20), Results: []ClaimResult{{Device: deviceNamed("a"), Request: "r", Admin: true}}}
	got := world{}.list("c", "b", "p/main").claim("c", admin, nil, "p").
		pod("p", PodFacts{Started: true, Claims: named("mine=c")}).holdings()
	for _, a := range got.Allocations {
		expect.That(t, a.Admin, "%s: no admin access", a.Device.Device)
	}
	expect.Is(t, len(got.Allocations), 2, "devices")
}

// A pod whose containers have not started is requested immediately if the kubelet will never list
// one of its claims, and otherwise after a while.
func TestWhenPodsAreLookedUp(t *testing.T) {
	names := func(claims ...string) (uses []ClaimUse) {
		for _, claim := range claims {
			uses = append(uses, ClaimUse{Name: claim})
		}
		return uses
	}
	both, later := named("a=", "b="), second(15)
	for name, tc := range map[string]struct {
		claims     []PodClaim
		main, init []ClaimUse
		started    bool
		want       time.Time
	}{
		"a container names both":      {claims: both, main: names("a", "b"), want: later},
		"it has started":              {claims: both, main: names("a", "b"), started: true},
		"an init container names one": {claims: both, main: names("a"), init: names("b")},
		"no container names one":      {claims: both, main: names("a")},
		"one has a name":              {claims: named("a=", "b=c"), main: names("a"), want: later},
	} {
		got := world{}.pod("p", PodFacts{Claims: tc.claims, Started: tc.started, Containers: []PodContainer{
			{Name: "init", Uses: tc.init}, {Name: "main", Uses: tc.main, Listed: true},
		}}).holdings().Wanted.Pods
		expect.That(t, len(got) == 1 && got[0].NotBefore.Equal(tc.want), "%s: %v, want one not before %v", name, got, tc.want)
	}
}

// recording returns a recorded file.
func recording(t *testing.T, name string) []byte {
	return must.Get(os.ReadFile(filepath.Join("..", "testdata", name)))(t)
}

// If no other evidence has the UID of a pod, it is that of the claim's reservation. The input does
// not change.
func TestReservedTellsUIDs(t *testing.T) {
	claim := Claim{Namespace: "ns", Name: "c"}
	holders := []Holder{
		{Pod: Pod{Namespace: "ns", Name: "known"}},
		{Pod: Pod{Namespace: "ns", Name: "object"}},
		{Pod: Pod{Namespace: "ns", Name: "reserved"}},
		{Pod: Pod{Namespace: "ns", Name: "unknown"}},
	}
	node := world{
		listed: []Allocation{{Claim: claim, Holders: holders}},
		claims: map[Claim]ClaimFacts{claim: {Reserved: map[string]string{"8": "known", "9": "object", "3": "reserved"}}},
		uids:   map[Pod]string{{Namespace: "ns", Name: "known"}: "1"},
	}
	uids := func(node world) (out []string) {
		for _, h := range node.holdings().Allocations[0].Holders {
			out = append(out, h.UID)
		}
		return out
	}
	expect.Equal(t, "without pods", []string{"1", "9", "3", ""}, uids(node))
	node.pods = []PodFacts{{Pod: Pod{Namespace: "ns", Name: "object"}, UID: "2"}}
	expect.Equal(t, "", []string{"1", "2", "3", ""}, uids(node))
	expect.That(t, holders[2].UID == "", "the input has changed")
}

// A claim that is reserved for other pods than those that hold it may be an earlier claim of the
// name: its UID is omitted.
func TestUIDOfListedClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		reserved []string
		facts    ClaimFacts
		uids     map[Pod]string // nil: those by the names
		want     string
	}{
		"for one of both":     {reserved: []string{"p"}, want: "u"},
		"for others":          {reserved: []string{"before"}, want: ""},
		"deleted, for others": {reserved: []string{"before"}, facts: ClaimFacts{Deleted: true}, want: ""},
		"for nobody":          {want: "u"},
		"for a pod group":     {reserved: []string{"before"}, facts: ClaimFacts{ReservedOther: true}, want: "u"},
		"unknown pods":        {reserved: []string{"before"}, uids: map[Pod]string{}, want: "u"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.UID = "u"
			node := world{uids: tc.uids}.list("c", "a", "p/main", "q/main")
			node = node.claim("c", tc.facts, []string{"r:a"}, tc.reserved...)
			if got := node.holdings().Allocations[0]; got.ClaimUID != tc.want || got.Request != "r" {
				t.Errorf("the claim is %q, request %q; want %q", got.ClaimUID, got.Request, tc.want)
			}
		})
	}
}

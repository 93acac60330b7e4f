package holders

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// drawnNode is a node of random pods and claims: the true holders, and the kubelet's list.
type drawnNode struct {
	world
	truth []string // "claim device pod"
}

// drawNode draws a node on which all pods run: claims with up to two requests, pods with up to two
// claims, and init and other containers that name the claims in every way.
func drawNode(t *rapid.T) drawnNode {
	var n drawnNode
	pods, claims := rapid.IntRange(1, 4).Draw(t, "pods"), rapid.IntRange(1, 3).Draw(t, "claims")
	qualified := map[string][]string{} // pods by "claim device request"
	type podUse struct{ init, main []ClaimUse }
	requests := make([]int, claims)
	usedBy := make([][]string, claims)
	podUses := map[string]podUse{} // by pod and claim
	podClaims := make([][]PodClaim, pods)
	for c := range claims {
		requests[c] = rapid.IntRange(1, 2).Draw(t, "requests")
		for p := range pods {
			if !rapid.Bool().Draw(t, "uses") {
				continue
			}
			name := fmt.Sprint("pod", p)
			usedBy[c] = append(usedBy[c], name)
			claim := PodClaim{Name: fmt.Sprint("local", c), Claim: fmt.Sprint("claim", c)}
			podClaims[p] = append(podClaims[p], claim)
			use := func(what string) []ClaimUse {
				switch rapid.IntRange(0, 3).Draw(t, what) {
				case 0:
					return nil
				case 1:
					return []ClaimUse{{Name: claim.Name}}
				case 2:
					return []ClaimUse{{Name: claim.Name, Request: "r0"}}
				default:
					return []ClaimUse{{Name: claim.Name, Request: fmt.Sprint("r", requests[c]-1)}}
				}
			}
			podUses[name+claim.Claim] = podUse{use("init"), use("main")}
		}
	}
	for c := range claims {
		var results []string
		for r := range requests[c] {
			results = append(results, fmt.Sprintf("r%d:dev%d-%d", r, c, r))
		}
		name := fmt.Sprint("claim", c)
		n.world = n.claim(name, ClaimFacts{Read: second(20)}, results, usedBy[c]...)
		for r := range requests[c] {
			device := fmt.Sprintf("dev%d-%d", c, r)
			var containers []string
			for _, pod := range usedBy[c] {
				u := podUses[pod+name]
				if len(u.main) > 0 {
					containers = append(containers, pod+"/main")
				}
				row := name + " " + device
				names := slices.Concat(u.init, u.main)
				if len(names) == 0 ||
					slices.ContainsFunc(names, func(u ClaimUse) bool { return u.Request == "" || u.Request == fmt.Sprint("r", r) }) {
					qualified[row] = append(qualified[row], pod)
				}
			}
			if len(containers) > 0 {
				n.world = n.list(name, device, containers...)
			}
		}
	}
	for p := range pods {
		name := fmt.Sprint("pod", p)
		facts := PodFacts{Started: true, Running: 1, Claims: podClaims[p]}
		main, init := PodContainer{Name: "main"}, PodContainer{Name: "init"}
		for _, c := range podClaims[p] {
			u := podUses[name+c.Claim]
			main.Uses, init.Uses = append(main.Uses, u.main...), append(init.Uses, u.init...)
		}
		facts.Containers = []PodContainer{init, main}
		n.world = n.served(name, facts)
	}
	for row, pods := range qualified {
		for _, pod := range pods {
			n.truth = append(n.truth, row+" "+pod)
		}
	}
	slices.Sort(n.truth)
	return n
}

// podsOf returns the holders as texts, without containers.
func podsOf(allocations []Allocation) []string {
	var out []string
	for _, row := range holds(allocations) {
		row, _, _ = strings.Cut(row, "/")
		out = append(out, row)
	}
	return slices.Compact(out)
}

// Each claim that is allocated and reserved for a pod that has started has a row, and each row has
// such a claim, no matter which of them the kubelet lists.
func TestNobodyIsOverlooked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		got := n.holdings()
		if diff := cmp.Diff(n.truth, podsOf(got.Allocations)); diff != "" {
			t.Fatalf("-truth +got:\n%s", diff)
		}
		must.That(t, len(got.Conflicts) == 0 && len(got.Unresolved) == 0,
			"conflicts %v, unresolved %v", got.Conflicts, got.Unresolved)
		n.listed = slices.Clone(n.listed)
		slices.Reverse(n.listed)
		if diff := cmp.Diff(got, n.holdings()); diff != "" {
			t.Fatalf("the order of the input matters:\n%s", diff)
		}
	})
}

func TestHealth(t *testing.T) {
	claimed := func(device string, cdi ...string) Allocation {
		return Allocation{Claim: Claim{Namespace: "ns", Name: "c"}, Device: deviceNamed(device), CDI: cdi}
	}
	plugin := Allocation{Claim: Claim{Namespace: "ns"}, Device: driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-1"}}
	good, bad, unknown := driver.HealthGood, driver.HealthBad, driver.HealthUnknown
	says := func(resource, id string, h driver.HealthStatus) DeviceHealth {
		return DeviceHealth{Resource: resource, ID: id, Health: h}
	}
	for name, tc := range map[string]struct {
		of, other Allocation
		says      []DeviceHealth // each in the status of another pod
		final     bool           // these pods have ended
		deleted   string         // one of them: a, b, ...
		want      driver.HealthStatus
	}{
		"nothing is said":         {of: claimed("a", "x")},
		"by CDI name":             {of: claimed("a", "x", "y"), says: []DeviceHealth{says("claim:c", "x", good)}, want: good},
		"by the first name only":  {of: claimed("a", "x", "y"), says: []DeviceHealth{says("claim:c", "y", good)}},
		"of a request":            {of: claimed("a", "x"), says: []DeviceHealth{says("claim:c/r", "x", bad)}, want: bad},
		"without a CDI name":      {of: claimed("a"), says: []DeviceHealth{says("claim:c", "d/p/a", good)}, want: good},
		"of a pod that has ended": {of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", bad)}, final: true},
		"of a pod that is gone":   {of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", bad)}, deleted: "a"},
		"the worst of two pods": {
			of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", bad), says("claim:c", "x", unknown)}, want: bad,
		},
		"unknown, and healthy": {
			of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", good), says("claim:d", "x", unknown)},
			want: unknown,
		},
		"a name of two devices": {
			of: claimed("a", "x"), other: claimed("b", "x"), says: []DeviceHealth{says("claim:c", "x", good)},
		},
		"two claims on a device": {
			of: claimed("a", "x"), other: claimed("a", "y"), says: []DeviceHealth{says("claim:c", "y", bad)}, want: bad,
		},
		"of a device plugin":    {of: plugin, says: []DeviceHealth{says("nvidia.com/gpu", "GPU-1", bad)}, want: bad},
		"of another resource":   {of: plugin, says: []DeviceHealth{says("amd.com/gpu", "GPU-1", bad)}},
		"a plugin's, not a CDI": {of: claimed("a", "x"), says: []DeviceHealth{says("nvidia.com/gpu", "x", bad)}},
	} {
		t.Run(name, func(t *testing.T) {
			var node world
			for i, h := range tc.says {
				pod := PodFacts{UID: string(rune('a' + i)), Final: tc.final, Health: []DeviceHealth{h}}
				pod.Pod = podNamed(pod.UID)
				node.pods = append(node.pods, pod)
			}
			if tc.deleted != "" {
				node = node.then(func(b *Book) { b.PodDeleted(tc.deleted, second(20)) })
			}
			tc.of.Holders = []Holder{{Pod: podNamed("holder")}}
			tc.other.Holders = tc.of.Holders
			node.listed = []Allocation{tc.of, tc.other}
			for _, a := range node.holdings().Allocations {
				expect.That(t, a.Device != tc.of.Device || a.Health == tc.want, "got %q, want %q", a.Health, tc.want)
			}
		})
	}
}

// A pod whose container ends repeatedly, and a pod that is being deleted, hold their devices as
// long as the kubelet lists them, no matter which status the Pods API or the API server has. A pod
// with a claim that cannot be prepared is listed, and holds nothing, not even the devices of its
// other claim. Devices of device plugins are held like others.
func TestRecordedLives(t *testing.T) {
	answer := must.Get(test.ParseList(recording(t, "recordings/lives/list.json")))(t)
	allocations, rejected := podresources.Bounds{}.Parse(answer)
	expect.That(t, len(rejected) == 0, "rejected: %v", rejected)
	var objects corev1.PodList
	must.Do(t, yaml.Unmarshal(recording(t, "recordings/lives/pods.yaml"), &objects))
	var local corev1.PodList
	for line := range bytes.Lines(recording(t, "recordings/lives/events.jsonl")) {
		var event struct{ Pod corev1.Pod }
		must.Do(t, json.Unmarshal(line, &event))
		local.Items = append(local.Items, event.Pod)
	}
	want := map[string][]string{
		"crasher": {"gpu.example.com/node1/gpu-0"},
		"leaving": {"gpu.example.com/node1/gpu-1"},
		"slice-a": {"nvidia.com/gpu.shared//GPU-ffffffff-0000-4000-8000-000000000000::0"},
		"slice-b": {"nvidia.com/gpu.shared//GPU-ffffffff-0000-4000-8000-000000000000::1"},
		"whole": {
			"nvidia.com/gpu//GPU-dddddddd-0000-4000-8000-000000000000",
			"nvidia.com/gpu//GPU-eeeeeeee-0000-4000-8000-000000000000",
		},
	}
	for from, pods := range map[string]corev1.PodList{"the kubelet": local, "the API server": objects} {
		node := world{listed: allocations}
		for i := range pods.Items {
			if _, facts, ok := podresources.NewPodFacts(&pods.Items[i], &podresources.Selection{}); ok {
				facts.Local = from == "the kubelet"
				node.pods = append(node.pods, facts)
			}
		}
		expect.That(t, len(node.pods) != 0, "no pods from %s", from)
		got := map[string][]string{}
		for _, a := range node.holdings().Allocations {
			expect.Is(t, a.Health, driver.HealthGood, "%v", a.Device)
			for _, h := range a.Holders {
				got[h.Name] = append(got[h.Name], a.Device.String())
			}
		}
		expect.Equal(t, "with pods from "+from, want, got)
	}
	for _, pod := range answer.PodResources {
		if pod.Name == "waiting" {
			return
		}
	}
	t.Error("the pod that waits is not listed")
}

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

package holders

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

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

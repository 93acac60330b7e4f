package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// resolve returns who holds what by all that is known. It reports what remains unknown, and what
// the kubelet and the API server disagree about.
func (n *Node) resolve(view *podresources.View, now time.Time) []podresources.Allocation {
	facts := n.facts(view)
	facts.Exited = n.exited(&facts)
	resolved := n.resolver.Resolve(facts, n.withClaimUIDs(view.Allocations))
	n.metrics.UnresolvedPods(counts(podresources.UnresolvedReasons(), resolved.Unresolved))
	kinds := map[string]int{}
	for _, c := range resolved.Conflicts {
		kinds[c.Kind]++
	}
	n.metrics.Conflicts(counts(podresources.ConflictKinds(), kinds))
	for _, c := range n.conflicts.news(resolved.Conflicts, now) {
		n.log.Warn("kubelet and API server disagree about who holds a device", "kind", c.Kind,
			"namespace", c.Claim.Namespace, "claim", c.Claim.Name, "pod", c.Pod.Name, "uid", c.UID, "kubelet_device", c.Device)
	}
	return n.withPending(&facts, resolved.Allocations)
}

// withPending returns the allocations with those of claims marked that the API server is about to
// describe, or that the inventory file, which has claims, does not have yet. The argument is not
// changed.
func (n *Node) withPending(facts *podresources.Facts, allocations []podresources.Allocation) []podresources.Allocation {
	pending := func(podresources.Claim) bool { return len(facts.Claims) > 0 }
	if n.kube != nil {
		pending = n.kube.Pending
	}
	shared := true
	for i := range allocations {
		a := &allocations[i]
		if claim := facts.Claims[a.Claim]; a.ByPlugin() || claim.Covers(a) || !pending(a.Claim) {
			continue
		}
		if shared {
			allocations, shared = slices.Clone(allocations), false
		}
		allocations[i].Pending = true
	}
	return allocations
}

// counts returns the counts with a zero for each key that has none.
func counts(keys []string, of map[string]int) map[string]int {
	out := make(map[string]int, len(keys))
	for _, key := range keys {
		out[key] = of[key]
	}
	return out
}

// facts returns what is known of the claims, by the file and the API server, whose facts take
// precedence, and of the pods, those that wait to be bound to the node included.
func (n *Node) facts(view *podresources.View) podresources.Facts {
	facts := podresources.Facts{Pods: n.pods.All(), Listed: view.Listed}
	if file := n.claims.Load(); file != nil {
		facts.Claims = *file
	}
	if n.kube == nil {
		return facts
	}
	facts.Pods = n.kube.WithNominated(facts.Pods)
	known := n.kube.Claims()
	if len(facts.Claims) == 0 {
		facts.Claims = known
		return facts
	}
	facts.Claims = maps.Clone(facts.Claims)
	maps.Copy(facts.Claims, known)
	return facts
}

// exited returns the pods that the kubelet lists, that are ending and whose cgroups are gone.
func (n *Node) exited(facts *podresources.Facts) map[string]bool {
	var ending []string
	for uid := range facts.Pods {
		pod := facts.Pods[uid]
		if _, listed := facts.Listed[pod.Pod]; listed && pod.Ending {
			ending = append(ending, uid)
		}
	}
	if len(ending) == 0 {
		return nil
	}
	gone, err := n.gone.Do(context.Background(), driver.ReadWait, func(context.Context) (map[string]bool, error) {
		gone := map[string]bool{}
		for _, uid := range ending {
			if n.podState(uid) == podresources.StateGone {
				gone[uid] = true
			}
		}
		return gone, nil
	})
	if err != nil {
		return nil // it hangs, which was reported
	}
	return gone
}

// settleConflict is how long a conflict must last before it is logged: kubelet and API server learn
// of changes at different times.
const settleConflict = 2 * time.Second

// conflicts has the present conflicts.
type conflicts map[podresources.Conflict]conflict

type conflict struct {
	since  time.Time
	logged bool
}

// news sets the present conflicts, and returns those that have lasted for a while and were not
// returned before.
func (c *conflicts) news(now []podresources.Conflict, at time.Time) []podresources.Conflict {
	var out []podresources.Conflict
	next := make(conflicts, len(now))
	for _, found := range now {
		state, known := (*c)[found]
		if !known {
			state.since = at
		}
		if !state.logged && at.Sub(state.since) >= settleConflict {
			state.logged = true
			out = append(out, found)
		}
		next[found] = state
	}
	*c = next
	return out
}

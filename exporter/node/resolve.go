package node

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// report reports the number of pods whose devices are unknown, and contradictions between the
// kubelet and the API server.
func (n *Node) report(held *holders.Holdings, now time.Time) {
	n.metrics.UnresolvedPods(counts(holders.UnresolvedReasons(), held.Unresolved))
	kinds := map[string]int{}
	for _, c := range held.Conflicts {
		kinds[c.Kind]++
	}
	n.metrics.Conflicts(counts(holders.ConflictKinds(), kinds))
	n.metrics.Contradicted(held.Conflicts)
	for _, c := range n.conflicts.News(held.Conflicts, now) {
		n.log.Warn("kubelet and API server disagree about who holds a device", "kind", c.Kind,
			"namespace", c.Claim.Namespace, "claim", c.Claim.Name, "pod", c.Pod.Name, "uid", c.UID, "kubelet_device", c.Device,
			"allocated_device", c.Allocated)
	}
}

// withPending marks allocations of claims that the API server is about to describe, or that an
// inventory file with claims does not have yet. A claim without the UID of the known one of its
// name may be another one. The argument is not changed.
func (n *Node) withPending(allocations []podresources.Allocation) []podresources.Allocation {
	pending := func(podresources.Claim) bool { return n.claims }
	if n.kube != nil {
		pending = n.kube.Pending
	}
	claims, shared := n.book.Claims(), true
	for i := range allocations {
		a := &allocations[i]
		if claim := claims[a.Claim]; a.ByPlugin() || !pending(a.Claim) || claim.Covers(a) && a.ClaimUID == claim.UID {
			continue
		}
		if shared {
			allocations, shared = slices.Clone(allocations), false
		}
		allocations[i].Pending = true
	}
	return allocations
}

// counts returns the counts, with 0 for keys that have none.
func counts(keys []string, of map[string]int) map[string]int {
	out := make(map[string]int, len(keys))
	for _, key := range keys {
		out[key] = of[key]
	}
	return out
}

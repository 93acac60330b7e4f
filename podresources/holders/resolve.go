package holders

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Reasons why the devices of a pod with claims are unknown.
const (
	// UnresolvedName: the claim was made from a template, and its name is unknown.
	UnresolvedName = "claim_name_unknown"
	// UnresolvedClaim: the claim's allocation is unknown, and the kubelet does not list the claim.
	UnresolvedClaim = "claim_unknown"
	// UnresolvedRequest: the pod's containers use single requests of a claim, and the devices of each
	// request are unknown. The pod is assumed to hold all of the claim's devices.
	UnresolvedRequest = "request_unknown"
)

// UnresolvedReasons returns the reasons.
func UnresolvedReasons() []string {
	return []string{UnresolvedName, UnresolvedClaim, UnresolvedRequest}
}

// Holdings is who holds what by all evidence. Each holder has a Hold with a Reason.
type Holdings struct {
	Allocations []podresources.Allocation
	Conflicts   []Conflict     // sorted, each once
	Unresolved  map[string]int // number of pods by reason
	Wanted      Wanted         // what to read from the API server
}

// Holds returns who holds what by the evidence at a time. It is a pure function.
//
// PodResources lists what containers were given. It does not list plain init containers, nor claims
// of spec.resourceClaims that no container names (k8s.io/kubernetes
// pkg/kubelet/apis/podresources/server_v1.go), so objects of pods and claims complete it:
//
//   - A pod that is not over (see [State]) holds the allocation of a claim that is reserved for it.
//     If the kubelet lists no container, the container is empty.
//   - A pod that is ending holds what the kubelet lists, until the claim is no longer reserved for
//     it.
//   - A pod holds the devices of a request if one of its containers, init containers included,
//     names the whole claim or that request, or if none of its containers names the claim. A
//     request that no pod names has no holder.
//   - If the kubelet lists a device that is not in the claim's allocation, the allocation is used
//     if the claim is reserved for the pod.
//   - UIDs, requests, tolerations, device classes, admin access, consumed capacity, the device's
//     status from its driver and its health from pods are added.
func Holds(e *Evidence, now time.Time) Holdings {
	r := resolver{
		Evidence: e, now: now, uses: map[podresources.Claim]*claimUse{}, copies: map[string]*pod{},
		lists: map[string][]podresources.Claim{}, unresolved: map[unresolved]bool{},
	}
	rows := e.listedRows()
	for i := range rows {
		r.noteListed(&rows[i])
	}
	var said []podresources.DeviceHealth
	for _, p := range e.pods {
		if !p.state.over() {
			said = append(said, p.Health...)
			r.usePod(p)
		}
	}
	health := podresources.Health(slices.Values(said), rows)
	for i := range rows {
		r.list(rows[i], health)
	}
	for claim, c := range r.uses {
		r.complete(claim, c)
	}
	return r.finish()
}

// resolver determines who holds what, in steps: noteListed and usePod find which claims the pods
// use (resolve_claims.go) and what to read from the API server (resolve_wanted.go), list and
// complete make the rows and their holders (resolve_rows.go, resolve_conflicts.go), and finish
// determines which pods were given which request (resolve_requests.go).
type resolver struct {
	*Evidence
	now time.Time

	uses   map[podresources.Claim]*claimUse // of claims that pods use or the kubelet lists
	copies map[string]*pod                  // pods with the determined names of claims, by UID
	lists  map[string][]podresources.Claim  // which the kubelet lists, by UID of the pod
	made   map[string][]podresources.Claim  // claims made for pods, by UID of the pod; nil: to be computed

	rows       []podresources.Allocation
	conflicts  []Conflict
	unresolved map[unresolved]bool
	wantedPods []WantedPod
}

// claimUse is a claim, and what the kubelet and the pods' objects say about its use.
type claimUse struct {
	podresources.ClaimFacts
	known bool  // else there are no facts
	given bool  // the kubelet lists it for a pod whose UID is known
	uses  []use // by objects of pods
	rows  []int // positions of its rows

	pods      []string    // which use it, for [WantedClaim]
	listed    []driver.ID // devices that the kubelet lists
	disagrees bool        // they disagree with the facts
}

// unresolved is a pod whose devices are unknown for a reason.
type unresolved struct{ reason, uid string }

// claim returns the claim with that name.
func (r *resolver) claim(name podresources.Claim) *claimUse {
	c := r.uses[name]
	if c == nil {
		c = &claimUse{}
		c.ClaimFacts, c.known = r.allFacts()[name]
		r.uses[name] = c
	}
	return c
}

// pod returns the pod of a holder, nil if it is unknown.
func (r *resolver) pod(h *podresources.Holder) *pod { return r.podOf(r.holderUID(h)) }

// podOf returns the pod with that UID, nil if it is unknown.
func (r *resolver) podOf(uid string) *pod { return cmp.Or(r.copies[uid], r.pods[uid]) }

// holderUID returns the UID of a holder or, if that is unknown, of the newest pod with its name,
// unless the listed pod must be a newer one.
func (r *resolver) holderUID(h *podresources.Holder) string {
	if h.UID != "" {
		return h.UID
	}
	if uid := r.uidOf(h.Pod); !r.pods[uid].recreated(r.asked) {
		return uid
	}
	return ""
}

// noteListed records that the kubelet lists an allocation.
func (r *resolver) noteListed(a *podresources.Allocation) {
	c := r.claim(a.Claim)
	for i := range a.Holders {
		h := &a.Holders[i]
		if uid := r.holderUID(h); uid != "" {
			c.given = true
			if !slices.Contains(r.lists[uid], a.Claim) {
				r.lists[uid] = append(r.lists[uid], a.Claim)
			}
		}
		if len(c.listed) == 0 {
			c.pods = append(c.pods, h.Name+"/"+h.UID)
		}
	}
	c.listed = append(c.listed, a.Device)
	c.disagrees = c.disagrees || c.known && !c.Covers(a)
}

// finish determines which pods were given which request, and returns the result.
func (r *resolver) finish() Holdings {
	out := Holdings{Allocations: make([]podresources.Allocation, 0, len(r.rows)), Unresolved: map[string]int{}}
	for i := range r.rows {
		a := &r.rows[i]
		if !a.ByPlugin() {
			r.give(a)
		}
		if len(a.Holders) > 0 {
			podresources.SortHolders(a)
			out.Allocations = append(out.Allocations, *a)
		}
	}
	slices.SortStableFunc(out.Allocations, podresources.Allocation.Compare)
	slices.SortFunc(r.conflicts, Conflict.Compare)
	out.Conflicts = slices.Compact(r.conflicts)
	for of := range r.unresolved {
		out.Unresolved[of.reason]++
	}
	out.Wanted = r.wanted()
	return out
}

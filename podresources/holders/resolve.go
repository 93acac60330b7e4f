package holders

import (
	"cmp"
	"slices"
	"strings"
	"time"

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
		Evidence: e, now: now, claims: e.allFacts(), copies: map[string]*pod{},
		listedClaims: map[string][]podresources.Claim{}, plugin: map[string]bool{},
		used: map[podresources.Claim][]use{}, named: map[podUse]string{}, position: map[rowKey]int{},
		ofClaim: map[podresources.Claim][]int{}, unresolved: map[string]map[string]bool{},
		others: map[podUse]bool{}, users: map[podresources.Claim]*users{}, pods: map[string]WantedPod{},
	}
	if len(e.pods) == 0 && len(r.claims) == 0 && e.failing.IsZero() && !e.filled {
		return Holdings{Allocations: e.allocations, Wanted: r.wanted()} // there is no other evidence
	}
	for i := range e.allocations {
		r.noteListed(&e.allocations[i])
	}
	for _, claims := range r.listedClaims {
		slices.SortFunc(claims, podresources.Claim.Compare)
	}
	for _, uid := range r.sortedPods() {
		r.usePod(uid)
	}
	health := podresources.Health(r.health, e.allocations)
	for i := range e.allocations {
		r.list(e.allocations[i], health)
	}
	r.complete()
	return r.finish()
}

// resolver determines who holds what, in steps: noteListed and usePod find which claims the pods
// use (resolve_claims.go) and what to read from the API server (resolve_wanted.go), list and
// complete make the rows and their holders (resolve_rows.go, resolve_conflicts.go), and finish
// determines which pods were given which request (resolve_requests.go).
type resolver struct {
	*Evidence
	now    time.Time
	claims map[podresources.Claim]podresources.ClaimFacts
	copies map[string]*pod // by UID, with the determined names of claims

	listedClaims map[string][]podresources.Claim // claims that the kubelet lists, by UID of the pod
	plugin       map[string]bool                 // UIDs of pods with devices of device plugins
	used         map[podresources.Claim][]use    // uses of each claim, by objects of pods
	named        map[podUse]string               // the pods' own names for the claims that they use
	made         map[string][]podresources.Claim // claims made for pods, by UID of the pod; nil: to be computed

	rows       []podresources.Allocation
	position   map[rowKey]int               // in rows
	ofClaim    map[podresources.Claim][]int // positions of the claims' rows
	conflicts  []Conflict
	others     map[podUse]bool            // uses of claims whose pods were given other devices than the allocated ones
	unresolved map[string]map[string]bool // UIDs of pods by reason

	users map[podresources.Claim]*users // of the wanted claims
	pods  map[string]WantedPod          // by UID
}

// health yields the health of devices, from the statuses of pods that are not over.
func (r *resolver) health(yield func(podresources.DeviceHealth) bool) {
	for _, p := range r.Evidence.pods {
		if p.state.over() {
			continue
		}
		for _, h := range p.Health {
			if !yield(h) {
				return
			}
		}
	}
}

// pod returns the pod of a holder, nil if it is unknown.
func (r *resolver) pod(h *podresources.Holder) *pod { return r.podOf(r.holderUID(h)) }

// holderUID returns the UID of a holder or, if that is unknown, of the newest pod with its name,
// unless the listed pod must be a newer one.
func (r *resolver) holderUID(h *podresources.Holder) string {
	if h.UID != "" {
		return h.UID
	}
	if uid := r.uidOf(h.Pod); !r.Evidence.pods[uid].recreated(r.asked) {
		return uid
	}
	return ""
}

// podOf returns the pod with that UID, nil if it is unknown.
func (r *resolver) podOf(uid string) *pod {
	if p := r.copies[uid]; p != nil {
		return p
	}
	known := r.Evidence.pods[uid]
	if known == nil {
		return nil
	}
	p := *known
	r.copies[uid] = &p
	return &p
}

// isOver reports whether the pod with that UID is known to hold nothing any more.
func (r *resolver) isOver(uid string) bool {
	p := r.Evidence.pods[uid]
	return p != nil && p.state.over()
}

// noteListed records which claims the kubelet lists for which pods.
func (r *resolver) noteListed(a *podresources.Allocation) {
	for i := range a.Holders {
		switch uid := r.holderUID(&a.Holders[i]); {
		case uid == "":
		case a.ByPlugin():
			r.plugin[uid] = true
		case !slices.Contains(r.listedClaims[uid], a.Claim):
			r.listedClaims[uid] = append(r.listedClaims[uid], a.Claim)
		}
	}
}

// sortedPods returns the UIDs of the pods that have claims, sorted by name.
func (r *resolver) sortedPods() []string {
	var uids []string
	pods := r.Evidence.pods
	for uid, p := range pods {
		if !p.state.over() && (len(p.Claims) > 0 || p.Extended || p.ExtendedClaim != "") {
			uids = append(uids, uid)
		}
	}
	slices.SortFunc(uids, func(a, b string) int {
		return cmp.Or(pods[a].Pod.Compare(pods[b].Pod), strings.Compare(a, b))
	})
	return uids
}

// noteUnresolved records why the devices of a pod are unknown.
func (r *resolver) noteUnresolved(reason, uid string) {
	if r.unresolved[reason] == nil {
		r.unresolved[reason] = map[string]bool{}
	}
	r.unresolved[reason][uid] = true
}

// finish determines which pods were given which request, and returns the result.
func (r *resolver) finish() Holdings {
	devices := map[podresources.Claim]int{}
	for i := range r.rows {
		devices[r.rows[i].Claim]++
	}
	out := Holdings{Allocations: make([]podresources.Allocation, 0, len(r.rows)), Unresolved: map[string]int{}}
	for i := range r.rows {
		a := &r.rows[i]
		if !a.ByPlugin() {
			a.Holders = r.given(a, devices[a.Claim])
		}
		if len(a.Holders) > 0 {
			podresources.SortHolders(a)
			out.Allocations = append(out.Allocations, *a)
		}
	}
	slices.SortStableFunc(out.Allocations, podresources.Allocation.Compare)
	slices.SortFunc(r.conflicts, Conflict.Compare)
	out.Conflicts = slices.Compact(r.conflicts)
	for reason, pods := range r.unresolved {
		out.Unresolved[reason] = len(pods)
	}
	out.Wanted = r.wanted()
	return out
}

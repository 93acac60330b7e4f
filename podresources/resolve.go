package podresources

import (
	"cmp"
	"slices"
	"strings"
)

// Reasons for which it is not known what a pod with claims holds.
const (
	// UnresolvedName: the claim was made from a template, and no source has its name.
	UnresolvedName = "claim_name_unknown"
	// UnresolvedClaim: no source has the claim's allocation, and the kubelet does not list the
	// claim.
	UnresolvedClaim = "claim_unknown"
	// UnresolvedRequest: the pod's containers use single requests of a claim, and it is not known
	// which devices were allocated for which request: the pod is taken to hold them all.
	UnresolvedRequest = "request_unknown"
)

// UnresolvedReasons returns the reasons.
func UnresolvedReasons() []string {
	return []string{UnresolvedName, UnresolvedClaim, UnresolvedRequest}
}

// Resolution is who holds what, after all that is known of claims and pods.
type Resolution struct {
	Allocations []Allocation
	Conflicts   []Conflict     // sorted, each once
	Unresolved  map[string]int // pods by reason
	// Wanted is what should be asked of the API server.
	Wanted Wanted
}

// Resolve returns who holds what, given what the kubelet lists. It is a pure function, and changes
// nothing of what it is given.
//
// PodResources is the word on what containers were given. It does not list plain init containers,
// nor claims of spec.resourceClaims that no container names (k8s.io/kubernetes
// pkg/kubelet/apis/podresources/server_v1.go), so the objects of pods and claims complete it:
//
//   - A pod that has neither been deleted nor ended holds what the allocations of its claims say,
//     where the claim is reserved for it: in no container where the kubelet lists none.
//   - Pods that were deleted, or have ended for the API server, hold nothing. A pod that has ended
//     for the kubelet holds what the kubelet lists until its cgroup is gone, or the claim is no
//     longer reserved for it.
//   - A pod holds the devices of a request if one of its containers, init containers included,
//     names the whole claim or that request, or if none of its containers names the claim. If no
//     pod qualifies, all do.
//   - Where the kubelet lists another device than the claim's allocation, the allocation is used if
//     the claim is reserved for the pod.
//   - UIDs, requests, tolerations, device classes, admin access, consumed capacity, what the driver
//     says of the device and what pods say of its health are added.
func (f Facts) Resolve(listed []Allocation) Resolution {
	if len(f.Claims) == 0 && len(f.Pods) == 0 {
		return Resolution{Allocations: listed}
	}
	r := resolver{
		Facts: f, names: newest(f.Pods), facts: map[string]*PodFacts{},
		listedClaims: map[string][]Claim{}, plugin: map[string]bool{}, used: map[Claim][]use{}, named: map[podUse]string{},
		position: map[rowKey]int{}, ofClaim: map[Claim][]int{}, unresolved: map[string]map[string]bool{},
		wanted: Wanted{Claims: map[Claim][]WantedFor{}},
	}
	for i := range listed {
		r.noteListed(&listed[i])
	}
	for _, claims := range r.listedClaims {
		slices.SortFunc(claims, Claim.Compare)
	}
	for _, uid := range r.sortedPods() {
		r.usePod(uid)
	}
	health, classic := f.health(listed), classicDevices(listed)
	for i := range listed {
		r.list(listed[i], health, classic)
	}
	r.complete()
	return r.finish()
}

// resolver resolves one answer of the kubelet, in steps: noteListed and usePod find which claims
// the pods use (resolve_claims.go) and what to ask of the API server (resolve_wanted.go), list and
// complete make the rows and their holders (resolve_rows.go, resolve_conflicts.go), and finish
// settles which pods were given which request (resolve_requests.go).
type resolver struct {
	Facts
	names map[Pod]string       // UIDs of the newest pods of each name
	facts map[string]*PodFacts // by UID, with the names of claims that were found out

	listedClaims map[string][]Claim // those that the kubelet lists, by the pod's UID
	plugin       map[string]bool    // pods, by UID, that device plugins gave devices to
	used         map[Claim][]use    // who uses each claim, by the pods' own objects
	named        map[podUse]string  // the pods' own names for the claims that they use
	made         map[string][]Claim // those that were made for pods, by the pod's UID; nil: not known yet

	rows       []Allocation
	position   map[rowKey]int  // in rows
	ofClaim    map[Claim][]int // positions of the claims' rows
	conflicts  []Conflict
	unresolved map[string]map[string]bool // UIDs of pods by reason
	wanted     Wanted
}

// pod returns what is known of the pod that a holder is: by its UID, or where that is unknown the
// newest one of its name; nil: nothing.
func (r *resolver) pod(h *Holder) *PodFacts {
	uid := h.UID
	if uid == "" {
		uid = r.names[h.Pod]
	}
	return r.podOf(uid)
}

// podOf returns what is known of the pod of that UID; nil: nothing.
func (r *resolver) podOf(uid string) *PodFacts {
	if p := r.facts[uid]; p != nil {
		return p
	}
	facts, known := r.Pods[uid]
	if !known {
		return nil
	}
	r.facts[uid] = &facts
	return &facts
}

// noteListed notes which claims the kubelet lists for which pods.
func (r *resolver) noteListed(a *Allocation) {
	for i := range a.Holders {
		uid := a.Holders[i].UID
		if uid == "" {
			uid = r.names[a.Holders[i].Pod]
		}
		switch {
		case uid == "":
		case a.ByPlugin():
			r.plugin[uid] = true
		case !slices.Contains(r.listedClaims[uid], a.Claim):
			r.listedClaims[uid] = append(r.listedClaims[uid], a.Claim)
		}
	}
}

// sortedPods returns the UIDs of the pods that have claims, by name.
func (r *resolver) sortedPods() []string {
	var uids []string
	for uid := range r.Pods {
		if p := r.Pods[uid]; len(p.Claims) > 0 || p.Extended || p.ExtendedClaim != "" {
			uids = append(uids, uid)
		}
	}
	slices.SortFunc(uids, func(a, b string) int {
		return cmp.Or(r.Pods[a].Pod.Compare(r.Pods[b].Pod), strings.Compare(a, b))
	})
	return uids
}

// noteUnresolved notes that it is not known what a pod holds.
func (r *resolver) noteUnresolved(reason, uid string) {
	if r.unresolved[reason] == nil {
		r.unresolved[reason] = map[string]bool{}
	}
	r.unresolved[reason][uid] = true
}

// finish settles which pods use which request, and returns what was found out.
func (r *resolver) finish() Resolution {
	devices := map[Claim]int{}
	for i := range r.rows {
		devices[r.rows[i].Claim]++
	}
	out := Resolution{Allocations: make([]Allocation, 0, len(r.rows)), Unresolved: map[string]int{}, Wanted: r.wanted}
	for i := range r.rows {
		a := &r.rows[i]
		claim := r.Claims[a.Claim]
		if !a.ByPlugin() {
			a.Holders = r.given(a, devices[a.Claim])
			a.Holders = claim.withUIDs(a.Holders)
		}
		if len(a.Holders) > 0 {
			sortHolders(a)
			out.Allocations = append(out.Allocations, *a)
		}
	}
	slices.SortStableFunc(out.Allocations, Allocation.Compare)
	slices.SortFunc(r.conflicts, Conflict.Compare)
	out.Conflicts = slices.Compact(r.conflicts)
	for reason, pods := range r.unresolved {
		out.Unresolved[reason] = len(pods)
	}
	slices.SortFunc(out.Wanted.Pods, func(a, b WantedPod) int { return a.Compare(b.PodRef) })
	return out
}

package holders

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
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

// Holdings is who holds what by all evidence, each holder with a Hold that has its Reason.
type Holdings struct {
	Allocations []podresources.Allocation
	Conflicts   []Conflict     // sorted, each once
	Unresolved  map[string]int // pods by reason
	Wanted      Wanted         // what should be asked of the API server
}

// Holds returns who holds what by the evidence, at a time. It is a pure function.
//
// PodResources is the word on what containers were given. It does not list plain init containers,
// nor claims of spec.resourceClaims that no container names (k8s.io/kubernetes
// pkg/kubelet/apis/podresources/server_v1.go), so the objects of pods and claims complete it:
//
//   - A pod that is not over (see [State]) holds what the allocations of its claims say, where the
//     claim is reserved for it: in no container where the kubelet lists none.
//   - A pod that is ending holds what the kubelet lists until the claim is no longer reserved for
//     it.
//   - A pod holds the devices of a request if one of its containers, init containers included,
//     names the whole claim or that request, or if none of its containers names the claim. What no
//     pod names is held by none.
//   - Where the kubelet lists another device than the claim's allocation, the allocation is used if
//     the claim is reserved for the pod.
//   - UIDs, requests, tolerations, device classes, admin access, consumed capacity, what the driver
//     says of the device and what pods say of its health are added.
func Holds(e *Evidence, now time.Time) Holdings {
	r := resolver{
		Evidence: e, now: now, claims: e.allFacts(), names: newest(e.pods), copies: map[string]*pod{},
		listedClaims: map[string][]podresources.Claim{}, plugin: map[string]bool{},
		used: map[podresources.Claim][]use{}, named: map[podUse]string{}, position: map[rowKey]int{},
		ofClaim: map[podresources.Claim][]int{}, unresolved: map[string]map[string]bool{},
		users: map[podresources.Claim]*users{}, pods: map[string]WantedPod{},
	}
	if len(e.pods) == 0 && len(r.claims) == 0 && e.failing.IsZero() && !e.filled {
		return Holdings{Allocations: e.allocations, Wanted: r.wanted()} // nothing else is known
	}
	maps.DeleteFunc(r.names, func(_ podresources.Pod, uid string) bool { return e.pods[uid].recreated(e.asked) })
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
	classic := podresources.ClassicDevices(e.allocations)
	for i := range e.allocations {
		r.list(e.allocations[i], health, classic)
	}
	r.complete()
	return r.finish()
}

// resolver finds out who holds what, in steps: noteListed and usePod find which claims the pods use
// (resolve_claims.go) and what to ask of the API server (resolve_wanted.go), list and complete make
// the rows and their holders (resolve_rows.go, resolve_conflicts.go), and finish settles which pods
// were given which request (resolve_requests.go).
type resolver struct {
	*Evidence
	now    time.Time
	claims map[podresources.Claim]podresources.ClaimFacts
	names  map[podresources.Pod]string // UIDs of the newest pods of each name
	copies map[string]*pod             // by UID, with the names of claims that were found out

	listedClaims map[string][]podresources.Claim // those that the kubelet lists, by the pod's UID
	plugin       map[string]bool                 // pods, by UID, that device plugins gave devices to
	used         map[podresources.Claim][]use    // who uses each claim, by the pods' own objects
	named        map[podUse]string               // the pods' own names for the claims that they use
	made         map[string][]podresources.Claim // those made for pods, by the pod's UID; nil: not known yet

	rows       []podresources.Allocation
	position   map[rowKey]int               // in rows
	ofClaim    map[podresources.Claim][]int // positions of the claims' rows
	conflicts  []Conflict
	unresolved map[string]map[string]bool // UIDs of pods by reason

	users map[podresources.Claim]*users // of the wanted claims
	pods  map[string]WantedPod          // by UID
}

// health yields what the statuses of pods that are not over say of devices.
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

// pod returns what is known of the pod that a holder is; nil: nothing.
func (r *resolver) pod(h *podresources.Holder) *pod { return r.podOf(r.holderUID(h)) }

// holderUID returns the UID of a holder, or where that is unknown of the newest pod of its name.
func (r *resolver) holderUID(h *podresources.Holder) string { return cmp.Or(h.UID, r.names[h.Pod]) }

// podOf returns what is known of the pod of that UID; nil: nothing.
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

// isOver reports whether the pod of that UID holds nothing any more.
func (r *resolver) isOver(uid string) bool {
	p := r.Evidence.pods[uid]
	return p != nil && p.state.over()
}

// noteListed notes which claims the kubelet lists for which pods.
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

// sortedPods returns the UIDs of the pods that have claims, by name.
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

// noteUnresolved notes that it is not known what a pod holds.
func (r *resolver) noteUnresolved(reason, uid string) {
	if r.unresolved[reason] == nil {
		r.unresolved[reason] = map[string]bool{}
	}
	r.unresolved[reason][uid] = true
}

// finish settles which pods use which request, and returns what was found out.
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

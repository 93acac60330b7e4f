package holders

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
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

// podOf returns the pod with that UID, nil if it is unknown.
func (r *resolver) podOf(uid string) *pod { return cmp.Or(r.copies[uid], r.pods[uid]) }

// noteListed records that the kubelet lists an allocation.
func (r *resolver) noteListed(a *podresources.Allocation) {
	c := r.claim(a.Claim)
	for i := range a.Holders {
		h := &a.Holders[i]
		if h.UID != "" {
			c.given = true
			if !slices.Contains(r.lists[h.UID], a.Claim) {
				r.lists[h.UID] = append(r.lists[h.UID], a.Claim)
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

// use is the use of a claim by a pod.
type use struct {
	pod   *pod
	name  string // the pod's own name for the claim; empty: unknown, or the claim of extended resources
	other bool   // the pod was given another device than the allocated ones
}

// usePod records which claims a pod uses.
func (r *resolver) usePod(p *pod) {
	unnamed, extended := 0, p.ExtendedClaim != "" && len(p.ExtendedUses) == 0
	if p.Extended || slices.ContainsFunc(p.Claims, func(c podresources.PodClaim) bool { return c.Claim == "" }) {
		named := *p
		p = &named
		unnamed, extended = r.nameClaims(p)
		r.copies[p.UID] = p
	}
	for _, c := range p.Claims {
		if c.Claim != "" {
			r.useClaim(p, c.Claim, c.Name)
		}
	}
	if p.ExtendedClaim != "" {
		r.useClaim(p, p.ExtendedClaim, "")
	}
	if unnamed > 0 {
		r.unresolved[unresolved{UnresolvedName, p.UID}] = true
	}
	if (unnamed > 0 || extended) && !p.namesKnown {
		r.wantPod(p)
	}
}

// nameOf returns the pod's own name for a claim; empty: unknown, or the claim of extended
// resources.
func (p *pod) nameOf(claim podresources.Claim) string {
	if p == nil || claim.Name == "" || claim.Name == p.ExtendedClaim || claim.Namespace != p.Pod.Namespace {
		return ""
	}
	for _, c := range slices.Backward(p.Claims) {
		if c.Claim == claim.Name {
			return c.Name
		}
	}
	return ""
}

// nameClaims determines the names of claims made for the pod that its status does not have. It uses
// the claims' objects, and a claim that the kubelet lists for the pod and that has no other
// explanation. It returns the number of claims from templates with unknown names, and whether the
// status from the API server is needed for the claim of the pod's extended resources.
func (r *resolver) nameClaims(p *pod) (unnamed int, extended bool) {
	p.Claims = slices.Clone(p.Claims)
	listed := slices.Clone(r.lists[p.UID])
	slices.SortFunc(listed, podresources.Claim.Compare)
	candidates := slices.Concat(listed, r.reservedClaims(p))
	explained := func(name string) {
		listed = slices.DeleteFunc(listed,
			func(c podresources.Claim) bool { return c.Namespace == p.Pod.Namespace && c.Name == name })
	}
	for _, c := range candidates {
		facts := r.allFacts()[c]
		if c.Namespace != p.Pod.Namespace {
			continue
		}
		if facts.Extended && p.ExtendedClaim == "" {
			p.ExtendedClaim = c.Name
		}
		for i := range p.Claims {
			if p.Claims[i].Claim == "" && facts.PodClaimName == p.Claims[i].Name {
				p.Claims[i].Claim = c.Name
			}
		}
	}
	explained(p.ExtendedClaim)
	last := -1
	for i := range p.Claims {
		if p.Claims[i].Claim == "" {
			unnamed, last = unnamed+1, i
		}
		explained(p.Claims[i].Claim)
	}
	if unnamed == 1 && len(listed) == 1 && !p.extendedUnknown() {
		p.Claims[last].Claim = listed[0].Name
		return 0, false
	}
	return max(0, unnamed-len(listed)), r.needsExtended(p, len(listed))
}

// reservedClaims returns the known claims that were made for the pod and are reserved for it,
// sorted.
func (r *resolver) reservedClaims(p *pod) []podresources.Claim {
	if p.namesKnown {
		return nil
	}
	if r.made == nil { // computed once: a file may have the claims of a whole cluster
		r.made = map[string][]podresources.Claim{}
		for claim, facts := range r.allFacts() {
			if facts.Deleted || !facts.Extended && facts.PodClaimName == "" {
				continue
			}
			for uid := range facts.Reserved {
				if r.pods[uid] != nil {
					r.made[uid] = append(r.made[uid], claim)
				}
			}
		}
	}
	claims := r.made[p.UID]
	slices.SortFunc(claims, podresources.Claim.Compare)
	return claims
}

// extendedUnknown reports whether an unknown claim may have been made for the pod's extended
// resources.
func (p *pod) extendedUnknown() bool { return p.Extended && p.ExtendedClaim == "" && !p.namesKnown }

// useClaim records that a pod uses a claim.
func (r *resolver) useClaim(p *pod, claim, name string) {
	id := podresources.Claim{Namespace: p.Pod.Namespace, Name: claim}
	c := r.claim(id)
	c.uses = append(c.uses, use{pod: p, name: name})
	c.want(p)
	unknown := !c.known || stale(&c.ClaimFacts, p)
	// If it is listed for another pod, the listed devices were given to this one too.
	if unknown && p.state != Ending && !slices.Contains(r.lists[p.UID], id) && (!p.Started || !c.given) {
		r.unresolved[unresolved{UnresolvedClaim, p.UID}] = true
	}
}

// reservedPod returns a pod without a known object for which the claim is reserved, nil if the
// claim is not reserved for it.
func (r *resolver) reservedPod(h *podresources.Holder, c *claimUse) *pod {
	uid := c.ReservedUID(h.Name)
	if known := r.pods[uid]; uid == "" || h.UID != "" && h.UID != uid || known != nil && known.state.over() {
		return nil
	}
	return &pod{PodFacts: podresources.PodFacts{Pod: h.Pod, UID: uid, Started: true}, state: Running}
}

// usedBy reports whether the pod uses the claim, by its object.
func (c *claimUse) usedBy(p *pod) bool {
	return slices.ContainsFunc(c.uses, func(u use) bool { return u.pod.UID == p.UID })
}

// stale reports whether the claim was read before the pod was seen, and was not reserved for it
// then. It must have been reserved since.
func stale(c *podresources.ClaimFacts, p *pod) bool {
	return len(c.Results) > 0 && !c.ReservedFor(p.UID) && !c.Read.After(p.seen)
}

// gives reports whether a pod that uses the claim holds its devices.
func gives(c *podresources.ClaimFacts, p *pod) bool {
	_, reserved := c.Reserved[p.UID]
	return c.ReservedFor(p.UID) || c.Deleted && p.Started && (reserved || c.ReservedOther)
}

// give leaves the holders that were given the device, by the request for which it was allocated.
func (r *resolver) give(a *podresources.Allocation) {
	request, _, _ := strings.Cut(a.Request, "/")
	several := len(r.claim(a.Claim).rows) > 1
	given := a.Holders[:0]
	for group := range groups(a.Holders) {
		first, p := group[0], r.podOf(group[0].UID)
		names := func(container string) bool { // or it names no request of the claim
			uses, named := p.uses(first.ClaimName, a.Claim.Name, container, request)
			return named || !uses
		}
		switch before := len(given); {
		case p == nil:
			given = append(given, group...)
		case request == "":
			if several && r.requestUnknown(p, a.Claim, first.ClaimName) {
				r.unresolved[unresolved{UnresolvedRequest, p.UID}] = true
			}
			given = append(given, group...)
		case names(""):
			for _, h := range group {
				if h.Container == "" || names(h.Container) {
					given = append(given, h)
				}
			}
			if len(given) == before {
				first.Container = ""
				given = append(given, first)
			}
		}
	}
	a.Holders = given
}

// requestUnknown reports whether the pod may hold only some of the claim's devices, which are
// unknown. name is the pod's own name for the claim.
func (r *resolver) requestUnknown(p *pod, claim podresources.Claim, name string) bool {
	uses, whole := p.uses(name, claim.Name, "", "")
	return uses && !whole || !uses && p.extendedUnknown() && slices.Contains(r.lists[p.UID], claim)
}

// uses reports whether a container of the pod names a claim, and whether it names the whole of it
// or that request. container is the container's name; empty: any of them. name is the pod's own
// name for the claim, which the claim of extended resources does not have.
func (p *pod) uses(name, claim, container, request string) (uses, named bool) {
	containers, extended := p.Containers, claim == p.ExtendedClaim && claim != ""
	if extended {
		containers = p.ExtendedUses
	}
	for i := range containers {
		if container != "" && containers[i].Name != container {
			continue
		}
		for _, u := range containers[i].Uses {
			if extended || name != "" && u.Name == name {
				uses, named = true, named || u.Request == "" || u.Request == request
			}
		}
	}
	return uses, named
}

// want records that a pod that uses the claim needs it to be read.
func (c *claimUse) want(p *pod) {
	name := p.Pod.Name + "/" + p.UID
	if p.state == Ending {
		name += " ends"
	}
	c.pods = append(c.pods, name)
	c.disagrees = c.disagrees || c.known && (p.state == Ending) == c.ReservedFor(p.UID)
}

// wantPod records that a pod's status at the API server is needed.
func (r *resolver) wantPod(p *pod) {
	wanted := WantedPod{Pod: p.Pod, UID: p.UID}
	if !p.Started && willBeNamed(p) {
		wanted.NotBefore = p.seen.Add(untilListed)
	}
	r.wantedPods = append(r.wantedPods, wanted)
}

// wanted returns what to read from the API server: claims that pods use or the kubelet lists, and
// pods.
func (r *resolver) wanted() Wanted {
	out := Wanted{Claims: make(map[podresources.Claim]WantedClaim, len(r.uses)), Pods: r.wantedPods}
	for claim, c := range r.uses {
		if claim.Name == "" { // devices of a device plugin
			continue
		}
		slices.Sort(c.pods)
		out.Claims[claim] = WantedClaim{
			Users:     strconv.Itoa(len(c.listed)) + " " + strings.Join(slices.Compact(c.pods), " "),
			Disagrees: c.disagrees,
		}
	}
	return out
}

// willBeNamed reports whether the kubelet will list all claims of the pod with unknown names once
// they are prepared, since containers that it lists name them.
func willBeNamed(p *pod) bool {
	for _, claim := range p.Claims {
		named := slices.ContainsFunc(p.Containers, func(c podresources.PodContainer) bool {
			return c.Listed && slices.ContainsFunc(c.Uses, func(u podresources.ClaimUse) bool { return u.Name == claim.Name })
		})
		if claim.Claim == "" && !named {
			return false
		}
	}
	return true
}

// needsExtended reports whether a pod's status at the API server is needed for its extended
// resources: a claim backs them, or may do so, since neither devices of device plugins nor listed
// claims explain them.
func (r *resolver) needsExtended(p *pod, unexplained int) bool {
	if p.ExtendedClaim != "" {
		return len(p.ExtendedUses) == 0
	}
	return p.extendedUnknown() && (unexplained > 0 || len(r.lists[p.UID]) == 0)
}

// Wanted is what is still to be read from the API server.
type Wanted struct {
	// Claims are the claims that the node's pods use or that the kubelet lists.
	Claims map[podresources.Claim]WantedClaim
	// Pods are the pods whose status at the API server is needed.
	Pods []WantedPod
}

// WantedClaim is a claim to read.
type WantedClaim struct {
	// Users summarizes the claim's devices and pods. If it changes, the claim is read again soon.
	Users string
	// Disagrees reports that the claim, when it was last read, lacked a device that the kubelet lists,
	// or was not reserved for exactly the pods that use it. Such a claim is read again soon.
	Disagrees bool
}

// WantedPod is a pod to read, but not before a time.
type WantedPod struct {
	podresources.Pod
	UID       string
	NotBefore time.Time
}

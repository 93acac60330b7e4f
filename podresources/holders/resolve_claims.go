package holders

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/podresources"
)

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

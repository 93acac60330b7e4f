package holders

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// use is the use of a claim by a pod.
type use struct {
	pod  *pod
	name string // the pod's own name for the claim; empty: unknown, or the claim of extended resources
}

// podUse identifies the use of a claim by a pod.
type podUse struct {
	uid   string
	claim podresources.Claim
}

// usePod records which claims a pod uses.
func (r *resolver) usePod(uid string) {
	p := r.podOf(uid)
	unnamed, extended := r.nameClaims(p)
	for _, c := range p.Claims {
		if c.Claim != "" {
			r.useClaim(p, podresources.Claim{Namespace: p.Pod.Namespace, Name: c.Claim}, c.Name)
		}
	}
	if p.ExtendedClaim != "" {
		r.useClaim(p, podresources.Claim{Namespace: p.Pod.Namespace, Name: p.ExtendedClaim}, "")
	}
	if unnamed > 0 {
		r.noteUnresolved(UnresolvedName, uid)
	}
	if (unnamed > 0 || extended) && !p.namesKnown {
		r.wantPod(p)
	}
}

// nameClaims determines the names of claims made for the pod that its status does not have. It uses
// the claims' objects, and a claim that the kubelet lists for the pod and that has no other
// explanation. It returns the number of claims from templates with unknown names, and whether the
// status from the API server is needed for the claim of the pod's extended resources.
func (r *resolver) nameClaims(p *pod) (unnamed int, extended bool) {
	p.Claims = slices.Clone(p.Claims)
	listed := slices.Clone(r.listedClaims[p.UID])
	candidates := slices.Concat(listed, r.reservedClaims(p))
	explained := func(name string) {
		listed = slices.DeleteFunc(listed,
			func(c podresources.Claim) bool { return c.Namespace == p.Pod.Namespace && c.Name == name })
	}
	for _, c := range candidates {
		facts := r.claims[c]
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
	unnamed := func(c podresources.PodClaim) bool { return c.Claim == "" }
	if p.namesKnown || !p.Extended && !slices.ContainsFunc(p.Claims, unnamed) {
		return nil
	}
	if r.made == nil { // computed once: a file may have the claims of a whole cluster
		r.made = map[string][]podresources.Claim{}
		for claim, facts := range r.claims {
			if facts.Deleted || !facts.Extended && facts.PodClaimName == "" {
				continue
			}
			for uid := range facts.Reserved {
				if r.Evidence.pods[uid] != nil {
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
func (r *resolver) useClaim(p *pod, claim podresources.Claim, name string) {
	facts, known := r.claims[claim]
	r.used[claim] = append(r.used[claim], use{pod: p, name: name})
	r.named[podUse{p.UID, claim}] = name
	r.wantClaim(claim, p)
	unknown := !known || stale(&facts, p)
	if unknown && p.state != Ending && !slices.Contains(r.listedClaims[p.UID], claim) && !r.listedForOthers(p, claim) {
		r.noteUnresolved(UnresolvedClaim, p.UID)
	}
}

// reservedPod returns a pod without a known object for which the claim is reserved, nil if the
// claim is not reserved for it.
func (r *resolver) reservedPod(h *podresources.Holder, claim podresources.Claim) *pod {
	facts := r.claims[claim]
	uid := facts.ReservedUID(h.Name)
	if uid == "" || h.UID != "" && h.UID != uid || r.isOver(uid) {
		return nil
	}
	return &pod{PodFacts: podresources.PodFacts{Pod: h.Pod, UID: uid, Started: true}, state: Running}
}

// uses reports whether the pod uses the claim, by its object.
func (r *resolver) uses(p *pod, claim podresources.Claim) bool {
	_, uses := r.named[podUse{p.UID, claim}]
	return uses
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

// listedForOthers reports whether this pod has started and the kubelet lists the claim for another
// pod. Then the listed devices were given to this pod too.
func (r *resolver) listedForOthers(p *pod, claim podresources.Claim) bool {
	if !p.Started {
		return false
	}
	for _, claims := range r.listedClaims {
		if slices.Contains(claims, claim) {
			return true
		}
	}
	return false
}

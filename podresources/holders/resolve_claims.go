package holders

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// use is a pod that uses a claim.
type use struct {
	pod  *pod
	name string // the pod's own name for the claim; empty: unknown, or the claim of extended resources
}

// podUse is the use of a claim by a pod.
type podUse struct {
	uid   string
	claim podresources.Claim
}

// usePod notes which claims a pod uses.
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

// nameClaims finds the names of the claims that were made for the pod, where its status does not
// tell: by what the claims themselves say, and by what the kubelet lists for the pod and nothing
// else explains. It returns how many claims from templates remain that no source names, and whether
// the claim of the pod's extended resources may be unknown.
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

// reservedClaims returns the claims that are known to be reserved for the pod and were made for it,
// sorted.
func (r *resolver) reservedClaims(p *pod) []podresources.Claim {
	unnamed := func(c podresources.PodClaim) bool { return c.Claim == "" }
	if p.namesKnown || !p.Extended && !slices.ContainsFunc(p.Claims, unnamed) {
		return nil
	}
	if r.made == nil { // a file may have the claims of a whole cluster
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

// extendedUnknown reports that a claim may have been made for the pod's extended resources, which
// no source tells.
func (p *pod) extendedUnknown() bool { return p.Extended && p.ExtendedClaim == "" && !p.namesKnown }

// useClaim notes that a pod uses a claim.
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

// reservedPod returns the pod of which nothing is known but that the claim is reserved for it; nil
// if it is not.
func (r *resolver) reservedPod(h *podresources.Holder, claim podresources.Claim) *pod {
	facts := r.claims[claim]
	uid := facts.ReservedUID(h.Name)
	if uid == "" || h.UID != "" && h.UID != uid || r.isOver(uid) {
		return nil
	}
	return &pod{PodFacts: podresources.PodFacts{Pod: h.Pod, UID: uid, Started: true}, state: Running}
}

// uses reports whether the pod's own object says that it uses the claim.
func (r *resolver) uses(p *pod, claim podresources.Claim) bool {
	_, uses := r.named[podUse{p.UID, claim}]
	return uses
}

// stale reports that the claim was read before the pod was seen, and has no reservation for it,
// which it must have had since.
func stale(c *podresources.ClaimFacts, p *pod) bool {
	return len(c.Results) > 0 && !c.ReservedFor(p.UID) && !c.Read.After(p.seen)
}

// gives reports whether the claim gives its devices to a pod that uses it.
func gives(c *podresources.ClaimFacts, p *pod) bool {
	_, reserved := c.Reserved[p.UID]
	return c.ReservedFor(p.UID) || c.Deleted && p.Started && (reserved || c.ReservedOther)
}

// listedForOthers reports that the kubelet lists the claim for another pod, and so its devices, and
// that this pod has started, so that it was given them too.
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

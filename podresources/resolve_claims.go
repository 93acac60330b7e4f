package podresources

import "slices"

// use is a pod that uses a claim.
type use struct {
	pod  *PodFacts
	name string // the pod's own name for the claim; empty: unknown, or the claim of extended resources
}

// podUse is the use of a claim by a pod.
type podUse struct {
	uid   string
	claim Claim
}

// usePod notes which claims a pod uses.
func (r *resolver) usePod(uid string) {
	p := r.podOf(uid)
	if p.Gone || p.Ended {
		return
	}
	unnamed, extended := r.nameClaims(p)
	for _, c := range p.Claims {
		if c.Claim != "" {
			r.useClaim(p, Claim{Namespace: p.Pod.Namespace, Name: c.Claim}, c.Name)
		}
	}
	if p.ExtendedClaim != "" {
		r.useClaim(p, Claim{Namespace: p.Pod.Namespace, Name: p.ExtendedClaim}, "")
	}
	if unnamed > 0 {
		r.noteUnresolved(UnresolvedName, uid)
	}
	if (unnamed > 0 || extended) && !p.Told {
		ref := WantedPod{PodRef: PodRef{Pod: p.Pod, UID: uid}}
		if !p.Started && p.willBeNamed() {
			ref.NotBefore = p.Seen.Add(untilListed)
		}
		r.wanted.Pods = append(r.wanted.Pods, ref)
	}
}

// nameClaims finds the names of the claims that were made for the pod, where its status does not
// tell: by what the claims themselves say, and by what the kubelet lists for the pod and nothing
// else explains. It returns how many claims from templates remain that no source names, and whether
// the claim of the pod's extended resources may be unknown.
func (r *resolver) nameClaims(p *PodFacts) (unnamed int, extended bool) {
	p.Claims = slices.Clone(p.Claims)
	listed := slices.Clone(r.listedClaims[p.UID])
	candidates := slices.Concat(listed, r.reservedClaims(p))
	explained := func(name string) {
		listed = slices.DeleteFunc(listed, func(c Claim) bool { return c.Namespace == p.Pod.Namespace && c.Name == name })
	}
	for _, c := range candidates {
		facts := r.Claims[c]
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
func (r *resolver) reservedClaims(p *PodFacts) []Claim {
	if p.Told || !p.Extended && !slices.ContainsFunc(p.Claims, func(c PodClaim) bool { return c.Claim == "" }) {
		return nil
	}
	if r.made == nil { // a file may have the claims of a whole cluster
		r.made = map[string][]Claim{}
		for claim, facts := range r.Claims {
			if facts.Deleted || !facts.Extended && facts.PodClaimName == "" {
				continue
			}
			for uid := range facts.Reserved {
				if _, known := r.Pods[uid]; known {
					r.made[uid] = append(r.made[uid], claim)
				}
			}
		}
	}
	claims := r.made[p.UID]
	slices.SortFunc(claims, Claim.Compare)
	return claims
}

// extendedUnknown reports that a claim may have been made for the pod's extended resources, which
// no source tells.
func (p *PodFacts) extendedUnknown() bool { return p.Extended && p.ExtendedClaim == "" && !p.Told }

// useClaim notes that a pod uses a claim.
func (r *resolver) useClaim(p *PodFacts, claim Claim, name string) {
	facts, known := r.Claims[claim]
	r.used[claim] = append(r.used[claim], use{pod: p, name: name})
	r.named[podUse{p.UID, claim}] = name
	if r.exited(p) {
		return
	}
	r.wanted.Claims[claim] = append(r.wanted.Claims[claim],
		WantedFor{PodRef: PodRef{Pod: p.Pod, UID: p.UID}, Ending: p.Ending})
	untold := !known || facts.stale(p)
	if untold && !p.Ending && !slices.Contains(r.listedClaims[p.UID], claim) && !r.listedForOthers(p, claim) {
		r.noteUnresolved(UnresolvedClaim, p.UID)
	}
}

// uses reports whether the pod's own object says that it uses the claim.
func (r *resolver) uses(p *PodFacts, claim Claim) bool {
	_, uses := r.named[podUse{p.UID, claim}]
	return uses
}

// stale reports that the claim was read before the pod was seen, and has no reservation for it,
// which it must have had since.
func (c *ClaimFacts) stale(p *PodFacts) bool {
	return len(c.Results) > 0 && !c.ReservedFor(p.UID) && !c.Read.After(p.Seen)
}

// listedForOthers reports that the kubelet lists the claim for another pod, and so its devices, and
// that this pod has started, so that it was given them too.
func (r *resolver) listedForOthers(p *PodFacts, claim Claim) bool {
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

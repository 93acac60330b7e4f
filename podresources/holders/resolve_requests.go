package holders

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// unlistedShares returns the shares of the device that the claim has, where the kubelet lists the
// device without its share: share_id came with Kubernetes 1.35.
func unlistedShares(c *podresources.ClaimFacts, a *podresources.Allocation) []string {
	if a.ShareID != "" {
		return nil
	}
	var shares []string
	for i := range c.Results {
		if c.Results[i].Device != a.Device {
			continue
		}
		if c.Results[i].ShareID == "" {
			return nil
		}
		shares = append(shares, c.Results[i].ShareID)
	}
	return shares
}

// given returns the holders that are given the device, by the request that it was allocated for.
// devices is how many devices the claim has.
func (r *resolver) given(a *podresources.Allocation, devices int) []podresources.Holder {
	request, _, _ := strings.Cut(a.Request, "/")
	out := make([]podresources.Holder, 0, len(a.Holders))
	for group := range groups(a.Holders) {
		p := r.pod(&group[0])
		if p == nil {
			out = append(out, group...)
			continue
		}
		uses := p.usesOf(group[0].ClaimName, a.Claim.Name)
		if request == "" {
			if devices > 1 && r.requestUnknown(p, a.Claim, uses) {
				r.noteUnresolved(UnresolvedRequest, p.UID)
			}
			out = append(out, group...)
			continue
		}
		if !anyUse(uses, request) {
			continue
		}
		before := len(out)
		for _, h := range group {
			if h.Container == "" || isGiven(uses, h.Container, request) {
				out = append(out, h)
			}
		}
		if len(out) == before {
			h := group[0]
			h.Container = ""
			out = append(out, h)
		}
	}
	return out
}

// requestUnknown reports that the pod may hold only some of the claim's devices.
func (r *resolver) requestUnknown(p *pod, claim podresources.Claim, uses []podresources.PodContainer) bool {
	if len(uses) == 0 {
		return p.extendedUnknown() && slices.Contains(r.listedClaims[p.UID], claim)
	}
	return !anyUse(uses, "")
}

// usesOf returns what the pod's containers name of a claim, by the pod's own name for it or, for
// the claim of extended resources, as its own.
func (p *pod) usesOf(name, claim string) []podresources.PodContainer {
	if claim == p.ExtendedClaim && claim != "" {
		return p.ExtendedUses
	}
	var out []podresources.PodContainer
	for _, c := range p.Containers {
		named := podresources.PodContainer{Name: c.Name}
		for _, u := range c.Uses {
			if name != "" && u.Name == name {
				named.Uses = append(named.Uses, u)
			}
		}
		if len(named.Uses) > 0 {
			out = append(out, named)
		}
	}
	return out
}

// anyUse reports whether a container names the whole claim or that request, or none names the
// claim.
func anyUse(uses []podresources.PodContainer, request string) bool {
	return len(uses) == 0 ||
		slices.ContainsFunc(uses, func(c podresources.PodContainer) bool { return names(&c, request) })
}

// isGiven reports whether a container that the kubelet lists is given the device of a request.
// One of which it is not known what it names is.
func isGiven(uses []podresources.PodContainer, container, request string) bool {
	i := slices.IndexFunc(uses, func(c podresources.PodContainer) bool { return c.Name == container })
	return i < 0 || names(&uses[i], request)
}

// names reports whether the container names the whole claim or that request of it.
func names(c *podresources.PodContainer, request string) bool {
	return slices.ContainsFunc(c.Uses,
		func(u podresources.ClaimUse) bool { return u.Request == "" || u.Request == request })
}

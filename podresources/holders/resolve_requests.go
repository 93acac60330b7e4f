package holders

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// given returns the holders that were given the device, by the request for which it was allocated.
// devices is the number of the claim's devices.
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

// requestUnknown reports whether the pod may hold only some of the claim's devices, which are
// unknown.
func (r *resolver) requestUnknown(p *pod, claim podresources.Claim, uses []podresources.PodContainer) bool {
	if len(uses) == 0 {
		return p.extendedUnknown() && slices.Contains(r.listedClaims[p.UID], claim)
	}
	return !anyUse(uses, "")
}

// usesOf returns the containers of the pod that name a claim, with the requests that they name.
// name is the pod's own name for the claim, which the claim of extended resources does not have.
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

// isGiven reports whether a container that the kubelet lists was given the device of a request. If
// the requests that it names are unknown, it is assumed so.
func isGiven(uses []podresources.PodContainer, container, request string) bool {
	i := slices.IndexFunc(uses, func(c podresources.PodContainer) bool { return c.Name == container })
	return i < 0 || names(&uses[i], request)
}

// names reports whether the container names the whole claim or that request.
func names(c *podresources.PodContainer, request string) bool {
	return slices.ContainsFunc(c.Uses,
		func(u podresources.ClaimUse) bool { return u.Request == "" || u.Request == request })
}

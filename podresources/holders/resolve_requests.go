package holders

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// give leaves the holders that were given the device, by the request for which it was allocated.
func (r *resolver) give(a *podresources.Allocation) {
	request, _, _ := strings.Cut(a.Request, "/")
	several := len(r.claim(a.Claim).rows) > 1
	given := a.Holders[:0]
	for group := range groups(a.Holders) {
		first, p := group[0], r.pod(&group[0])
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

package holders

import (
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/podresources"
)

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

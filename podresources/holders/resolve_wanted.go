package holders

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// users are the pods of a claim, and whether they disagree with the claim's object.
type users struct {
	pods      []string
	devices   int
	disagrees bool
}

// wantClaim records that a claim that a pod uses must be read.
func (r *resolver) wantClaim(claim podresources.Claim, p *pod) {
	u := r.usersOf(claim)
	name := p.Pod.Name + "/" + p.UID
	if p.state == Ending {
		name += " ends"
	}
	u.pods = append(u.pods, name)
	if facts, known := r.claims[claim]; known && (p.state == Ending) == facts.ReservedFor(p.UID) {
		u.disagrees = true
	}
}

func (r *resolver) usersOf(claim podresources.Claim) *users {
	u := r.users[claim]
	if u == nil {
		u = &users{}
		r.users[claim] = u
	}
	return u
}

// wantPod records that a pod's status at the API server is needed.
func (r *resolver) wantPod(p *pod) {
	wanted := WantedPod{Pod: p.Pod, UID: p.UID}
	if !p.Started && willBeNamed(p) {
		wanted.NotBefore = p.seen.Add(untilListed)
	}
	r.pods[p.UID] = wanted
}

// wanted returns what to read from the API server: claims that pods use or the kubelet lists, and
// pods.
func (r *resolver) wanted() Wanted {
	for i := range r.allocations {
		a := &r.allocations[i]
		if a.ByPlugin() {
			continue
		}
		u := r.usersOf(a.Claim)
		if u.devices == 0 {
			for j := range a.Holders {
				u.pods = append(u.pods, a.Holders[j].Name+"/"+a.Holders[j].UID)
			}
		}
		u.devices++
		if facts, known := r.claims[a.Claim]; known && !facts.Covers(a) {
			u.disagrees = true
		}
	}
	out := Wanted{Claims: make(map[podresources.Claim]WantedClaim, len(r.users))}
	for claim, u := range r.users {
		slices.Sort(u.pods)
		out.Claims[claim] = WantedClaim{
			Users:     strconv.Itoa(u.devices) + " " + strings.Join(slices.Compact(u.pods), " "),
			Disagrees: u.disagrees,
		}
	}
	out.Pods = slices.SortedFunc(maps.Values(r.pods), WantedPod.Compare)
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
	return p.extendedUnknown() && (unexplained > 0 || len(r.listedClaims[p.UID]) == 0 && !r.plugin[p.UID])
}

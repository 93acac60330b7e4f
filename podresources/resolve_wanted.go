package podresources

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Wanted is what the API server has to say before all is known.
type Wanted struct {
	// Claims are those that the pods of the node use, with the pods.
	Claims map[Claim][]WantedFor
	// Pods are those of which the API server's status is needed.
	Pods []WantedPod
}

// WantedPod is a pod of which the API server's status is needed, though not before a time.
type WantedPod struct {
	PodRef
	NotBefore time.Time
}

// WantedFor is a pod that uses a claim.
type WantedFor struct {
	PodRef
	// Ending reports that the pod is ending: it holds the claim until that is no longer reserved
	// for it.
	Ending bool
}

// PodRef is a pod of the node.
type PodRef struct {
	Pod
	UID string
}

// Compare orders pods by name and UID.
func (p PodRef) Compare(other PodRef) int {
	return cmp.Or(p.Pod.Compare(other.Pod), strings.Compare(p.UID, other.UID))
}

// willBeNamed reports that the kubelet will list each of the pod's claims whose names are unknown
// once they are prepared, since a container that it lists names them.
func (p *PodFacts) willBeNamed() bool {
	for _, claim := range p.Claims {
		named := slices.ContainsFunc(p.Containers, func(c PodContainer) bool {
			return c.Listed && slices.ContainsFunc(c.Uses, func(u ClaimUse) bool { return u.Name == claim.Name })
		})
		if claim.Claim == "" && !named {
			return false
		}
	}
	return true
}

// untilListed is how long a pod whose containers have not started is given to be listed by the
// kubelet, which names most claims, before the API server is asked for the names.
const untilListed = 5 * time.Second

// needsExtended reports that the API server's status of a pod would say what its extended resources
// are: they are backed by a claim, or may be, since neither a device plugin's devices nor the
// claims that the kubelet lists explain them.
func (r *resolver) needsExtended(p *PodFacts, unexplained int) bool {
	if p.ExtendedClaim != "" {
		return len(p.ExtendedUses) == 0
	}
	return p.extendedUnknown() && (unexplained > 0 || len(r.listedClaims[p.UID]) == 0 && !r.plugin[p.UID])
}

package holders

import (
	"cmp"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Kinds of [Conflict].
const (
	// ConflictDevice: the kubelet lists a device that the claim's allocation does not have, while
	// the claim is reserved for the pod. The allocation is used.
	ConflictDevice = "device"
	// ConflictReservation: the kubelet lists a claim for a pod that runs, and the claim, read after
	// the pod was first seen, is not reserved for it. The kubelet's answer is used.
	ConflictReservation = "reservation"
)

// ConflictKinds returns the kinds of conflicts.
func ConflictKinds() []string { return []string{ConflictDevice, ConflictReservation} }

// Conflict is a disagreement between kubelet and API server about who holds a device.
type Conflict struct {
	Kind   string
	Claim  podresources.Claim
	Pod    podresources.Pod
	UID    string    // of the pod
	Device driver.ID // listed by the kubelet
}

// Compare orders conflicts by kind, claim, pod and device.
func (c Conflict) Compare(other Conflict) int {
	return cmp.Or(
		strings.Compare(c.Kind, other.Kind), c.Claim.Compare(other.Claim), c.Pod.Compare(other.Pod),
		strings.Compare(c.UID, other.UID), c.Device.Compare(other.Device),
	)
}

// ConflictLog has the present conflicts. It determines which to log.
type ConflictLog map[Conflict]loggedConflict

type loggedConflict struct {
	since  time.Time
	logged bool
}

// News sets the present conflicts. It returns those that have lasted for catchUp, each once.
func (c *ConflictLog) News(now []Conflict, at time.Time) []Conflict {
	var out []Conflict
	next := make(ConflictLog, len(now))
	for _, found := range now {
		state, known := (*c)[found]
		if !known {
			state.since = at
		}
		if !state.logged && at.Sub(state.since) >= catchUp {
			state.logged = true
			out = append(out, found)
		}
		next[found] = state
	}
	*c = next
	return out
}

// disagree records a conflict between the kubelet and the claim. It reports whether the claim's
// allocation is used.
func (r *resolver) disagree(p *pod, a *podresources.Allocation, claim *podresources.ClaimFacts, shares bool) bool {
	if a.ByPlugin() || a.Classic() || claim.Classic != nil || len(claim.Results) == 0 {
		return false
	}
	c := Conflict{Claim: a.Claim, Pod: p.Pod, UID: p.UID, Device: a.Device}
	switch {
	case !claim.ReservedFor(p.UID):
		if p.state == Ending || p.seen.IsZero() || !claim.Read.After(p.seen) {
			return false
		}
		c.Kind = ConflictReservation
	case shares, claim.Covers(a), !r.uses(p, a.Claim) && !p.seen.IsZero():
		return false
	default:
		c.Kind = ConflictDevice
		if !r.uses(p, a.Claim) { // no object of the pod is known
			r.used[a.Claim] = append(r.used[a.Claim], use{pod: p})
			r.named[podUse{p.UID, a.Claim}] = ""
		}
	}
	r.conflicts = append(r.conflicts, c)
	return c.Kind == ConflictDevice
}

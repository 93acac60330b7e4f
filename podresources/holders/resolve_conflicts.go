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
	// ConflictReservation: the kubelet lists a claim for a pod that runs, and the claim, read since
	// the pod was first seen, is not reserved for it. The kubelet is believed.
	ConflictReservation = "reservation"
)

// ConflictKinds returns the kinds of conflicts.
func ConflictKinds() []string { return []string{ConflictDevice, ConflictReservation} }

// Conflict is a disagreement of kubelet and API server about who holds a device.
type Conflict struct {
	Kind   string
	Claim  podresources.Claim
	Pod    podresources.Pod
	UID    string    // the pod's
	Device driver.ID // that the kubelet lists
}

// Compare orders conflicts by kind, claim, pod and device.
func (c Conflict) Compare(other Conflict) int {
	return cmp.Or(
		strings.Compare(c.Kind, other.Kind), c.Claim.Compare(other.Claim), c.Pod.Compare(other.Pod),
		strings.Compare(c.UID, other.UID), c.Device.Compare(other.Device),
	)
}

// ConflictLog has the present conflicts.
type ConflictLog map[Conflict]loggedConflict

type loggedConflict struct {
	since  time.Time
	logged bool
}

// News sets the present conflicts, and returns those to log: they have lasted for a while, and were
// not returned before.
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

// reallocated notes that the kubelet lists a device that the claim does not have, for a pod whose
// object is unknown and that the claim is reserved for; true: the claim is believed.
func (r *resolver) reallocated(
	h *podresources.Holder, a *podresources.Allocation, claim *podresources.ClaimFacts, shares bool,
) bool {
	uid := claim.ReservedUID(h.Name)
	if uid == "" || r.isOver(uid) || h.UID != "" && h.UID != uid || shares || a.ByPlugin() || a.Classic() ||
		claim.Classic != nil || claim.Deleted || len(claim.Results) == 0 || claim.Covers(a) {
		return false
	}
	r.conflicts = append(r.conflicts,
		Conflict{Kind: ConflictDevice, Claim: a.Claim, Pod: h.Pod, UID: uid, Device: a.Device})
	return true
}

// holdReallocated makes pods whose objects are unknown hold what their claims have, where the
// kubelet lists other devices.
func (r *resolver) holdReallocated() {
	for _, c := range r.conflicts {
		if c.Kind != ConflictDevice || r.podOf(c.UID) != nil {
			continue
		}
		claim := r.claims[c.Claim]
		holders := r.holders(r.ofClaim[c.Claim])
		for i := range claim.Results {
			row := r.row(c.Claim, &claim, &claim.Results[i])
			if !holders[rowHolder{row, ""}] { // its holders have no UIDs yet, this pod perhaps among them
				of := &pod{PodFacts: podresources.PodFacts{Pod: c.Pod, UID: c.UID, Started: true}}
				r.hold(holders, row, use{pod: of}, podresources.ReasonReallocated)
			}
		}
	}
}

// disagree notes where the kubelet and the claim disagree; true: the claim is believed.
func (r *resolver) disagree(p *pod, a *podresources.Allocation, claim *podresources.ClaimFacts, shares bool) bool {
	if a.ByPlugin() || a.Classic() || claim.Classic != nil || len(claim.Results) == 0 {
		return false
	}
	c := Conflict{Claim: a.Claim, Pod: p.Pod, UID: p.UID, Device: a.Device}
	switch {
	case !claim.ReservedFor(p.UID):
		if p.state == Ending || !claim.Read.After(p.seen) {
			return false
		}
		c.Kind = ConflictReservation
	case shares, claim.Covers(a), !r.uses(p, a.Claim):
		return false
	default:
		c.Kind = ConflictDevice
	}
	r.conflicts = append(r.conflicts, c)
	return c.Kind == ConflictDevice
}

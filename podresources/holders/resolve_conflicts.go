package holders

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Kinds of [Conflict].
const (
	// ConflictDevice: the kubelet lists a device that the claim's allocation does not have, while
	// the claim is reserved for the pod. If a container of the pod had started when the kubelet was
	// asked, the pod holds both: its driver has prepared the one, and the scheduler has allocated the
	// other. Otherwise the kubelet may list what an earlier claim of the name had, and the allocation
	// is used.
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
	// Allocated is the device that the claim is allocated instead; zero: the kubelet lists all devices
	// of the claim.
	Allocated driver.ID
}

// Compare orders conflicts by kind, claim, pod and device.
func (c Conflict) Compare(other Conflict) int {
	return cmp.Or(
		strings.Compare(c.Kind, other.Kind), c.Claim.Compare(other.Claim), c.Pod.Compare(other.Pod),
		strings.Compare(c.UID, other.UID), c.Device.Compare(other.Device), c.Allocated.Compare(other.Allocated),
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

// disagree records a conflict between the kubelet and the claim. conflict reports whether the
// kubelet lists a device that the claim is not allocated, and used whether only the claim's
// allocation is used.
func (r *resolver) disagree(
	p *pod, a *podresources.Allocation, claim *podresources.ClaimFacts, shares bool,
) (conflict, used bool) {
	if a.ByPlugin() || len(claim.Results) == 0 {
		return false, false
	}
	c := Conflict{Claim: a.Claim, Pod: p.Pod, UID: p.UID, Device: a.Device}
	switch {
	case !claim.ReservedFor(p.UID):
		if p.state == Ending || p.seen.IsZero() || !claim.Read.After(p.seen) {
			return false, false
		}
		c.Kind = ConflictReservation
	case shares, claim.Covers(a), !r.uses(p, a.Claim) && !p.seen.IsZero():
		return false, false
	default:
		c.Kind, c.Allocated = ConflictDevice, r.notListed(claim, a)
		if !r.uses(p, a.Claim) { // no object of the pod is known
			r.used[a.Claim] = append(r.used[a.Claim], use{pod: p})
			r.named[podUse{p.UID, a.Claim}] = ""
		}
	}
	r.conflicts = append(r.conflicts, c)
	if c.Kind != ConflictDevice {
		return false, false
	}
	given := p.state == Running && p.Started && !p.seen.IsZero() && p.since.Before(r.asked)
	if given {
		a.Admin = !slices.ContainsFunc(claim.Results, func(of podresources.ClaimResult) bool { return !of.Admin })
		r.others[podUse{p.UID, a.Claim}] = true
	}
	return given, !given
}

// notListed returns the first device of the claim that the kubelet does not list for it.
func (r *resolver) notListed(claim *podresources.ClaimFacts, of *podresources.Allocation) driver.ID {
	for i := range claim.Results {
		id := claim.Results[i].Device
		if !slices.ContainsFunc(r.allocations, func(a podresources.Allocation) bool {
			return a.Claim == of.Claim && a.Device == id
		}) {
			return id
		}
	}
	return driver.ID{}
}

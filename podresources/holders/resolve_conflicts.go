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

// ConflictLog has the present conflicts, each with the time since which it is present; zero: it has
// been logged.
type ConflictLog map[Conflict]time.Time

// News sets the present conflicts. It returns those that have lasted for catchUp, each once.
func (c *ConflictLog) News(now []Conflict, at time.Time) (out []Conflict) {
	next := make(ConflictLog, len(now))
	for _, found := range now {
		since, known := (*c)[found]
		switch {
		case !known:
			since = at
		case !since.IsZero() && at.Sub(since) >= catchUp:
			since = time.Time{}
			out = append(out, found)
		}
		next[found] = since
	}
	*c = next
	return out
}

// compare records whether the kubelet, which lists the allocation for the pod, and the claim
// disagree. It returns the reason why the pod holds the device; empty: it does not, since only the
// claim's allocation is used.
func (r *resolver) compare(p *pod, a *podresources.Allocation, c *claimUse, shares bool) podresources.Reason {
	conflict := Conflict{Claim: a.Claim, Pod: p.Pod, UID: p.UID, Device: a.Device}
	switch {
	case a.ByPlugin(), len(c.Results) == 0:
		return podresources.ReasonListed
	case !c.ReservedFor(p.UID):
		if p.state != Ending && !p.seen.IsZero() && c.Read.After(p.seen) {
			conflict.Kind = ConflictReservation
			r.conflicts = append(r.conflicts, conflict)
		}
		return podresources.ReasonListed
	case shares, c.Covers(a), !c.usedBy(p) && !p.seen.IsZero():
		return podresources.ReasonListed
	case !c.usedBy(p): // no object of the pod is known
		c.uses = append(c.uses, use{pod: p})
	}
	conflict.Kind = ConflictDevice
	for i := range slices.Backward(c.Results) {
		if id := c.Results[i].Device; !slices.Contains(c.listed, id) {
			conflict.Allocated = id // the first one
		}
	}
	r.conflicts = append(r.conflicts, conflict)
	if p.state != Running || !p.Started || p.seen.IsZero() || !p.since.Before(r.asked) {
		return ""
	}
	a.Admin = !slices.ContainsFunc(c.Results, func(of podresources.ClaimResult) bool { return !of.Admin })
	for i := range c.uses {
		c.uses[i].other = c.uses[i].other || c.uses[i].pod.UID == p.UID
	}
	return podresources.ReasonOther
}

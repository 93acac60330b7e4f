package holders

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// listedRows returns the rows that the kubelet lists, with those of kept pods, and the UIDs of
// their holders. If the UID of a listed pod is unknown, it is that of the newest pod with its name,
// unless the listed pod must be a newer one.
func (e *Evidence) listedRows() []podresources.Allocation {
	rows := make([]podresources.Allocation, 0, len(e.allocations))
	for _, a := range e.allocations {
		holders := make([]podresources.Holder, 0, len(a.Holders))
		for _, h := range a.Holders {
			if l := e.listed[h.Pod]; l != nil && l.devices {
				h.UID = l.uid
				if uid := e.uidOf(h.Pod); h.UID == "" && !e.pods[uid].recreated(e.asked) {
					h.UID = uid
				}
				holders = append(holders, h)
			}
		}
		if a.Holders = holders; len(holders) > 0 {
			rows = append(rows, a)
		}
	}
	return rows
}

// list adds the rows of an allocation that the kubelet lists.
func (r *resolver) list(a podresources.Allocation, health map[driver.ID]podresources.DeviceHealth) {
	c := r.claim(a.Claim)
	a.Health, a.HealthReason = health[a.Device].Health, health[a.Device].Message
	shares := unlistedShares(&c.ClaimFacts, &a)
	r.listedHolders(&a, c, len(shares) > 0)
	if len(shares) == 0 {
		shares = []string{a.ShareID}
	}
	for _, share := range shares {
		b := a
		if b.ShareID = share; len(shares) > 1 {
			b.Holders = slices.Clone(a.Holders)
		}
		c.Complete(&b)
		// If the claim is reserved, but for none of the row's holders, it was read before it was reserved
		// for them, or it is an earlier claim with the name.
		if len(c.Reserved) > 0 && !c.ReservedOther && !slices.ContainsFunc(a.Holders, func(h podresources.Holder) bool {
			_, reserved := c.Reserved[h.UID]
			return reserved || h.UID == ""
		}) {
			b.ClaimUID = ""
		}
		r.add(b, c)
	}
}

// listedHolders leaves those of the listed holders that hold the device, with their holds. It
// records where they disagree with the claim.
func (r *resolver) listedHolders(a *podresources.Allocation, c *claimUse, shares bool) {
	holders := a.Holders[:0]
	for group := range groups(a.Holders) {
		p, reason := r.podOf(group[0].UID), podresources.ReasonListed
		if p == nil {
			p = r.reservedPod(&group[0], c)
		}
		if p != nil {
			if r.over(p, &c.ClaimFacts) {
				continue
			}
			if reason = r.compare(p, a, c, shares); reason == "" {
				continue
			}
		}
		hold := r.listedHold(p, group[0].Pod, reason)
		for _, h := range group {
			if h.Hold = hold; p != nil {
				h.UID, h.Meta, h.ClaimName = p.UID, p.Meta, r.podOf(p.UID).nameOf(a.Claim)
			}
			holders = append(holders, h)
		}
	}
	a.Holders = holders
}

// complete adds the rows and holders of a claim that the kubelet does not list.
func (r *resolver) complete(claim podresources.Claim, c *claimUse) {
	listed := c.rows
	for _, u := range c.uses {
		switch {
		case r.over(u.pod, &c.ClaimFacts):
		case gives(&c.ClaimFacts, u.pod):
			reason := reservedReason(u.pod, &c.ClaimFacts)
			if u.other {
				reason = podresources.ReasonUnused
			}
			for i := range c.Results {
				r.hold(r.row(claim, c, &c.Results[i]), u, reason)
			}
		case u.pod.Started && (!c.known || stale(&c.ClaimFacts, u.pod)):
			for _, i := range listed {
				r.hold(&r.rows[i], u, podresources.ReasonReserved)
			}
		}
	}
}

// row returns the row for a device of a claim. It adds the row if there is none.
func (r *resolver) row(
	claim podresources.Claim, c *claimUse, result *podresources.ClaimResult,
) *podresources.Allocation {
	for _, i := range slices.Backward(c.rows) {
		if a := &r.rows[i]; a.Device == result.Device && a.ShareID == result.ShareID {
			return a
		}
	}
	a := podresources.Allocation{
		Claim: claim, Device: result.Device, ShareID: result.ShareID, State: podresources.StateAllocated,
	}
	c.Complete(&a)
	r.add(a, c)
	return &r.rows[len(r.rows)-1]
}

// hold adds a pod, without a container, to the holders of a row, unless the kubelet lists it there.
func (r *resolver) hold(a *podresources.Allocation, u use, reason podresources.Reason) {
	if slices.ContainsFunc(a.Holders, func(h podresources.Holder) bool {
		return h.Container != "" && h.UID == u.pod.UID
	}) {
		return
	}
	if u.pod.Started && reason != podresources.ReasonUnused {
		a.State = podresources.StatePrepared
	}
	a.Holders = append(a.Holders, podresources.Holder{
		Pod: u.pod.Pod, UID: u.pod.UID, ClaimName: u.name, Meta: u.pod.Meta,
		Hold: &podresources.Hold{From: u.pod.seen, Wanted: u.pod.seen, Reason: reason, Since: u.pod.since},
	})
}

// reservedReason returns the reason why a pod holds the devices of a claim that is reserved for it.
func reservedReason(p *pod, claim *podresources.ClaimFacts) podresources.Reason {
	switch {
	case claim.Deleted:
		return podresources.ReasonClaimGone
	case p.state == Waiting:
		return podresources.ReasonNominated
	case p.state == Ending:
		return podresources.ReasonEnding
	case !p.Started:
		return podresources.ReasonWaiting
	default:
		return podresources.ReasonReserved
	}
}

// listedHold returns the hold of a pod that the kubelet lists. reason is that of its last answer. p
// is nil if no object of the pod is known.
func (r *resolver) listedHold(p *pod, name podresources.Pod, reason podresources.Reason) *podresources.Hold {
	l, h := r.listed[name], &podresources.Hold{Reason: reason}
	if p != nil {
		h.Wanted = p.seen
	}
	switch {
	case l != nil && !l.unlistedSince.IsZero():
		h.Reason, h.Since = podresources.Reason(l.kept), l.unlistedSince
	case !r.failing.IsZero() && r.now.Sub(r.failing) >= unansweredAfter:
		h.Reason, h.Since = podresources.ReasonNoAnswer, r.failing
	case p != nil && p.state == Ending:
		h.Reason, h.Since = podresources.ReasonEnding, p.since
	}
	return h
}

// add adds a row.
func (r *resolver) add(a podresources.Allocation, c *claimUse) {
	c.rows = append(c.rows, len(r.rows))
	r.rows = append(r.rows, a)
}

// over reports whether the pod holds nothing of the claim any more, even if the kubelet lists it.
func (r *resolver) over(p *pod, claim *podresources.ClaimFacts) bool {
	return p.state.over() || p.state == Ending && claim.Read.After(p.since) && !claim.ReservedFor(p.UID)
}

// takeRows sets the rows that the kubelet lists, with those of kept pods.
func (e *Evidence) takeRows(rows []podresources.Allocation) {
	kept := func(h podresources.Holder) bool {
		l := e.listed[h.Pod]
		return l != nil && l.devices && !l.unlistedSince.IsZero()
	}
	listed, rows := len(rows), slices.Clip(rows)
	for _, a := range e.allocations {
		if slices.ContainsFunc(a.Holders, kept) {
			a.Holders = slices.DeleteFunc(slices.Clone(a.Holders), func(h podresources.Holder) bool { return !kept(h) })
			rows = append(rows, a)
		}
	}
	if e.allocations = rows; len(rows) == listed {
		return
	}
	slices.SortStableFunc(rows, podresources.Allocation.Compare)
	e.allocations = rows[:0]
	for _, a := range rows {
		if n := len(e.allocations); n > 0 && e.allocations[n-1].Compare(a) == 0 {
			of := &e.allocations[n-1]
			of.Holders = slices.Concat(of.Holders, a.Holders)
			podresources.SortHolders(of)
			continue
		}
		e.allocations = append(e.allocations, a)
	}
}

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

// Kubelets before 1.35, and some drivers, report no shares: the kubelet lists the whole device for
// a pod that has a share of it. The claim from the API server has the shares a moment later; then
// the hold of the whole device goes on as those of the shares.

// unlistedShares returns the claim's shares of the device if the kubelet lists the device without a
// share.
func unlistedShares(c *podresources.ClaimFacts, a *podresources.Allocation) []string {
	if a.ShareID != "" {
		return nil
	}
	var shares []string
	for i := range c.Results {
		switch r := &c.Results[i]; {
		case r.Device != a.Device:
		case r.ShareID == "":
			return nil
		default:
			shares = append(shares, r.ShareID)
		}
	}
	return shares
}

// ofWhole returns the hold of the whole device that the hold of a share replaces.
func (d *Dates) ofWhole(key holdKey, uid string) *dated {
	if key.share == "" {
		return nil
	}
	key.share = ""
	for _, whole := range d.holds[key] {
		if whole.uid == uid && whole.call < d.calls {
			return whole
		}
	}
	return nil
}

package holders

import (
	"reflect"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// list adds the rows of an allocation in the kubelet's answer.
func (r *resolver) list(a podresources.Allocation, health map[driver.ID]podresources.DeviceHealth) {
	c := r.claim(a.Claim)
	a.Health, a.HealthReason = health[a.Device].Health, health[a.Device].Message
	shares := unlistedShares(&c.ClaimFacts, &a)
	if len(shares) == 0 {
		c.Complete(&a)
	}
	a.Holders = r.listedHolders(&a, c, len(shares) > 0)
	if len(shares) == 0 {
		r.addListed(a, c)
	}
	for _, share := range shares {
		b := a
		b.ShareID, b.Holders = share, slices.Clone(a.Holders)
		c.Complete(&b)
		r.addListed(b, c)
	}
}

// listedHolders returns those of the listed holders that hold the device, with their holds. It
// records where they disagree with the claim.
func (r *resolver) listedHolders(a *podresources.Allocation, c *claimUse, shares bool) []podresources.Holder {
	var holders []podresources.Holder
	for group := range groups(a.Holders) {
		p, reason := r.pod(&group[0]), podresources.ReasonListed
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
	return holders
}

// addListed adds a row that the kubelet lists. If the claim is reserved, but for none of the row's
// holders, it was read before it was reserved for them, or it is an earlier claim with the name:
// the row has no UID of the claim until more is known.
func (r *resolver) addListed(a podresources.Allocation, c *claimUse) {
	reserved := func(h podresources.Holder) bool {
		_, reserved := c.Reserved[h.UID]
		return reserved || h.UID == ""
	}
	if len(c.Reserved) > 0 && !c.ReservedOther && !slices.ContainsFunc(a.Holders, reserved) {
		a.ClaimUID = ""
	}
	r.add(a, c)
}

// complete adds the rows and holders of a claim that the kubelet does not list.
func (r *resolver) complete(claim podresources.Claim, c *claimUse) {
	listed := c.rows
	holders := r.holders(listed)
	for _, u := range c.uses {
		switch {
		case r.over(u.pod, &c.ClaimFacts):
		case gives(&c.ClaimFacts, u.pod):
			reason := reservedReason(u.pod, &c.ClaimFacts)
			if u.other {
				reason = podresources.ReasonUnused
			}
			for i := range c.Results {
				r.hold(holders, r.row(claim, c, &c.Results[i]), u, reason)
			}
		case u.pod.Started && (!c.known || stale(&c.ClaimFacts, u.pod)):
			for _, i := range listed {
				r.hold(holders, i, u, podresources.ReasonReserved)
			}
		}
	}
}

// row returns the position of the row for a device of a claim. It adds the row if there is none.
func (r *resolver) row(claim podresources.Claim, c *claimUse, result *podresources.ClaimResult) int {
	a := podresources.Allocation{
		Claim: claim, Device: result.Device, ShareID: result.ShareID, State: podresources.StateAllocated,
	}
	if i, known := r.position[rowKeyOf(&a)]; known {
		return i
	}
	c.Complete(&a)
	r.add(a, c)
	return len(r.rows) - 1
}

// hold adds a pod, without a container, to the holders of a row, unless it is one of them.
func (r *resolver) hold(holders map[rowHolder]bool, i int, u use, reason podresources.Reason) {
	if holders[rowHolder{i, u.pod.UID}] {
		return
	}
	a := &r.rows[i]
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
	r.position[rowKeyOf(&a)] = len(r.rows)
	c.rows = append(c.rows, len(r.rows))
	r.rows = append(r.rows, a)
}

func rowKeyOf(a *podresources.Allocation) rowKey {
	key := rowKey{claim: a.Claim, device: a.Device, shareID: a.ShareID}
	if a.ByPlugin() && len(a.Holders) > 0 {
		key.pod = a.Holders[0].Pod
	}
	return key
}

// rowKey identifies a row.
type rowKey struct {
	claim   podresources.Claim
	device  driver.ID
	shareID string
	pod     podresources.Pod // only for a device of a device plugin
}

// rowHolder identifies a pod that holds a row.
type rowHolder struct {
	row int
	uid string
}

// holders returns the pods that hold these rows.
func (r *resolver) holders(rows []int) map[rowHolder]bool {
	out := map[rowHolder]bool{}
	for _, i := range rows {
		for h := range r.rows[i].Holders {
			out[rowHolder{i, r.rows[i].Holders[h].UID}] = true
		}
	}
	return out
}

// over reports whether the pod holds nothing of the claim any more, even if the kubelet lists it.
func (r *resolver) over(p *pod, claim *podresources.ClaimFacts) bool {
	return p.state.over() || p.state == Ending && claim.Read.After(p.since) && !claim.ReservedFor(p.UID)
}

// setRows sets the rows that the kubelet lists: those of its last answer, with those of kept pods
// that it lacks, and with the UIDs of the listed pods. Equal rows stay the same slice, also that of
// the answer.
func (e *Evidence) setRows() {
	rows, same := make([]podresources.Allocation, 0, len(e.given)), true
	for _, a := range e.given {
		holders := e.holdersOf(&a, false)
		same = same && len(holders) > 0 && &holders[0] == &a.Holders[0]
		if a.Holders = holders; len(holders) > 0 {
			rows = append(rows, a)
		}
	}
	e.identified = false
	listed := len(rows)
	for _, a := range e.allocations {
		if a.Holders = e.holdersOf(&a, true); len(a.Holders) > 0 {
			rows = append(rows, a)
		}
	}
	if len(rows) > listed {
		rows = merged(rows)
	} else if same {
		rows = e.given
	}
	if !reflect.DeepEqual(rows, e.allocations) {
		e.allocations = rows
	}
}

// merged returns the rows in order. Equal ones become one, with the holders of all.
func merged(rows []podresources.Allocation) []podresources.Allocation {
	slices.SortStableFunc(rows, podresources.Allocation.Compare)
	out := rows[:0]
	for _, a := range rows {
		if n := len(out); n > 0 && out[n-1].Compare(a) == 0 {
			out[n-1].Holders = slices.Concat(out[n-1].Holders, a.Holders)
			podresources.SortHolders(&out[n-1])
			continue
		}
		out = append(out, a)
	}
	return out
}

// holdersOf returns the holders of a row that are listed, or that are kept, with the UIDs of the
// listed pods. If all of them stay as they are, it is the same slice.
func (e *Evidence) holdersOf(a *podresources.Allocation, kept bool) []podresources.Holder {
	stays := func(h *podresources.Holder) *listedPod {
		if l := e.listed[h.Pod]; l != nil && l.devices && l.unlistedSince.IsZero() != kept {
			return l
		}
		return nil
	}
	if !slices.ContainsFunc(a.Holders, func(h podresources.Holder) bool {
		l := stays(&h)
		return l == nil || l.uid != h.UID
	}) {
		return a.Holders
	}
	holders := make([]podresources.Holder, 0, len(a.Holders))
	for _, h := range a.Holders {
		if l := stays(&h); l != nil {
			h.UID = l.uid
			holders = append(holders, h)
		}
	}
	return holders
}

// sameSlice reports whether both slices use the same memory, or are empty.
func sameSlice(a, b []podresources.Allocation) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

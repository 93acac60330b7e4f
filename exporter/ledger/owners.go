package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// resolve determines which accounts are charged for a device's holdings. Times before from are
// decided. An account belongs to one UID of a claim or pod. As long as the UID is unknown, the
// account belongs to the name, and to holdings without a gap between them. The account stays the
// same when the UID becomes known or unknown.
func (b *books) resolve(d *deviceBook, holdings []holding, from, now time.Time) {
	known := d.owners
	d.owners = make(ownership, len(holdings))
	byTime := make([]*holding, 0, len(holdings))
	for i := range holdings {
		h := &holdings[i]
		d.owners[h.holdingKey] = known[h.holdingKey]
		byTime = append(byTime, h)
	}
	slices.SortStableFunc(byTime, func(a, b *holding) int { return a.from.Compare(b.from) })
	for i, h := range byTime {
		o := d.owners[h.holdingKey]
		if o == nil {
			o = d.owners.ofWhole(known, h)
			d.owners[h.holdingKey] = o
		}
		h.owner = o
		if !h.to.IsZero() && !h.to.After(from) && o.period == nil {
			continue
		}
		begun := driver.Later(driver.Later(h.from, from), b.answered)
		switch {
		case h.share.Admin: // earlier charges, from before it had admin access, may be dropped
			o.claim, o.pod = nil, nil
		case h.to.IsZero() || h.to.After(from):
			o.claim = b.claims.owner(d, h, byTime[:i], begun, now)
			o.pod = b.pods.owner(d, h, byTime[:i], begun, now)
			o.claim.useBy(o.pod)
		}
		o.period = d.setPeriod(o.period, h.period(d, begun, from))
	}
	for _, h := range byTime { // the account of the current holder is the newest of its name
		if o := h.owner; h.to.IsZero() && o.claim != nil {
			b.claims.reopen(o.claim.present(), now)
			b.pods.reopen(o.pod.present(), now)
		}
	}
	for key, o := range known { // holdings that do not exist any more
		if d.owners[key] != o && o.period != nil && o.period.To.IsZero() {
			d.endPeriod(o.period, from)
		}
	}
}

// ofWhole returns the owner of a new holding. Kubelets before 1.35 do not distinguish shares, and
// the API server does so a moment later: then the holding takes over the owner of the holding
// without share that it replaces.
func (o ownership) ofWhole(known ownership, h *holding) *owner {
	whole := h.holdingKey
	whole.share = ""
	before := known[whole]
	if _, both := o[whole]; before == nil || both || h.share.ShareID == "" {
		return &owner{}
	}
	delete(known, whole)
	return before
}

// named returns a holding's name in the book, its UID ("": unknown), and its account (nil: none).
func (b *accountBook) named(h *holding) (namespace, name, uid string, present *account) {
	if b.ofPods {
		return h.pod.Namespace, h.pod.Name, h.uid, h.owner.pod
	}
	return h.claim.Namespace, h.claim.Name, h.share.ClaimUID, h.owner.claim
}

// owner returns the account of a holding. A new account begins at begun. before are the holdings
// that began earlier.
func (b *accountBook) owner(d *deviceBook, h *holding, before []*holding, begun, now time.Time) *account {
	namespace, name, uid, present := b.named(h)
	present = present.present()
	if present != nil && present.aggregated {
		if !h.to.IsZero() {
			return present
		}
		present = nil
	}
	key := HolderKey{namespace, name, d.id}
	known := b.of(key, uid)
	a := present
	switch {
	case present != nil && present.dropped, present != nil && uid != "" && present.uid != "" && present.uid != uid:
		a = known
	case present == nil:
		if a = known; a == nil {
			a = b.continued(key, uid, h, before)
		}
	case known != nil && known != present: // its UID became known later
		b.merge(known, present)
		a = known
	}
	if a == nil {
		a = b.begin(d, key, begun, now)
	}
	if uid != "" && uid != a.uid {
		a.uid = uid
		a.changed()
	}
	b.reopen(a, now)
	return a
}

// continued returns the newest account of a name if a new holding may belong to it, since one of
// the UIDs is unknown, and there is no gap before the holding. Allocations by device plugins have
// no UID, and share one account.
func (b *accountBook) continued(key HolderKey, uid string, h *holding, before []*holding) *account {
	a := b.accounts[key]
	switch {
	case a == nil, a.uid != "" && uid != "":
		return nil
	case key.Name == "":
		return a
	}
	others, gap := false, true
	for _, o := range before {
		if o.owner.claim == a || o.owner.pod == a {
			others = true
			gap = gap && !o.to.IsZero() && o.to.Before(h.from)
		}
	}
	if others && gap || !others && !a.ended.IsZero() {
		return nil
	}
	return a
}

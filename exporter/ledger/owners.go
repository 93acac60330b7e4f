package ledger

import (
	"slices"
	"time"
)

// resolve determines who is charged for the holdings of a device; what was before a moment is
// decided. An account is of one UID: that of the claim or the pod. As long as the UID is unknown,
// the account is of the name, and of holdings without a gap between them. That a UID becomes known,
// or unknown, changes no account.
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
		begun := later(later(h.from, from), b.answered)
		switch {
		case h.share.Admin: // what it was charged before it had admin access may be dropped meanwhile
			o.claim, o.pod = nil, nil
		case h.to.IsZero() || h.to.After(from):
			o.claim = b.claims.owner(d, h, byTime[:i], begun, now)
			o.pod = b.pods.owner(d, h, byTime[:i], begun, now)
			o.claim.useBy(o.pod)
		}
		o.period = d.setPeriod(o.period, h.period(d, begun, from))
	}
	for _, h := range byTime { // of each name the one that holds the device is the newest
		if o := h.owner; h.to.IsZero() && o.claim != nil {
			b.claims.reopen(o.claim.present(), now)
			b.pods.reopen(o.pod.present(), now)
		}
	}
	for key, o := range known { // the holdings that are not there any more
		if d.owners[key] != o && o.period != nil && o.period.To.IsZero() {
			d.endPeriod(o.period, from)
		}
	}
}

// ofWhole returns the owner of a holding that is new. Kubelets before 1.35 do not tell shares
// apart, and the API server does a moment later: then it is that of the holding in whose place it
// comes.
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

// named returns the name that a holding has in the book, the UID, empty if it is unknown, and its
// present account, nil if it has none.
func (b *accountBook) named(h *holding) (namespace, name, uid string, present *account) {
	if b.ofPods {
		return h.pod.Namespace, h.pod.Name, h.uid, h.owner.pod
	}
	return h.claim.Namespace, h.claim.Name, h.share.ClaimUID, h.owner.claim
}

// owner returns the account of a holding. A new one began then. before are the holdings that began
// before it.
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

// continued returns the newest account of a name if a new holding may be of it, as one of both UIDs
// is unknown: if there is no gap before the holding. What device plugins gave has no UID, and is
// one account for ever.
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

package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// resolve determines which accounts are charged for a device's holds. Times before from are
// decided. An account belongs to one UID of a claim or pod. As long as the UID is unknown, the
// account belongs to the name, and to holds without a gap between them. The account stays the same
// when the UID becomes known or unknown.
func (b *books) resolve(d *deviceBook, all []hold, from, now time.Time) {
	known := d.holds
	d.holds, d.present = make(holds, len(all)), 0
	byTime := make([]*hold, 0, len(all))
	for i := range all {
		h := &all[i]
		if h.by = known[h.ID]; h.by == nil {
			h.by = &charged{}
		}
		h.by.facts, h.by.lived, d.holds[h.ID] = h.holdFacts(), nil, h.by
		if h.To.IsZero() {
			d.present++
		}
		byTime = append(byTime, h)
	}
	slices.SortStableFunc(byTime, func(a, b *hold) int { return a.From.Compare(b.From) })
	for i, h := range byTime {
		by := h.by
		if !h.To.IsZero() && !h.To.After(from) && by.period == nil {
			continue
		}
		begun := driver.Later(driver.Later(h.From, from), b.answered)
		switch {
		case h.share.Admin: // earlier charges, from before it had admin access, may be dropped
			by.claim, by.pod = nil, nil
		case h.To.IsZero() || h.To.After(from):
			by.claim = b.claims.accountOf(d, h, byTime[:i], begun, now)
			by.pod = b.pods.accountOf(d, h, byTime[:i], begun, now)
			by.claim.useBy(by.pod)
		}
		by.period = d.periods.Set(by.period, h.nextPeriod(d.id, d.joined.Attribution, begun, from))
	}
	markUnclaimed(byTime)
	for _, h := range byTime { // the account of the current holder is the newest of its name
		if h.To.IsZero() && h.by.claim != nil {
			b.claims.reopen(h.by.claim.present(), now)
			b.pods.reopen(h.by.pod.present(), now)
		}
	}
	for id, by := range known { // holds that do not exist any more
		if d.holds[id] != by && by.period != nil && by.period.To.IsZero() {
			d.periods.End(by.period, from)
		}
	}
}

// markUnclaimed marks the accounts of pods that have the device by a device plugin alone. The mark
// stays: the series of such a pod do not end before its others.
func markUnclaimed(all []*hold) {
	plugged := func(h *hold, is bool) bool { return h.by.pod != nil && h.share.ByPlugin() == is }
	for _, h := range all {
		if plugged(h, true) && !h.by.pod.youth.aggregated && !slices.ContainsFunc(all, func(o *hold) bool {
			return plugged(o, false) && o.by.pod == h.by.pod
		}) {
			h.by.pod.unclaimed = true
		}
	}
}

// named returns a hold's name in the book, its UID ("": unknown), and its account (nil: none).
func (b *accountBook) named(h *hold) (namespace, name, uid string, present *account) {
	if b.ofPods {
		return h.pod.Namespace, h.pod.Name, h.uid, h.by.pod
	}
	return h.share.Claim.Namespace, h.share.Claim.Name, h.share.ClaimUID, h.by.claim
}

// accountOf returns the account of a hold. A new account begins at begun. before are the holds that
// began earlier.
func (b *accountBook) accountOf(d *deviceBook, h *hold, before []*hold, begun, now time.Time) *account {
	namespace, name, uid, present := b.named(h)
	present = present.present()
	if present != nil && present.youth.aggregated {
		if !h.To.IsZero() {
			return present
		}
		present = nil
	}
	key := book.HolderKey{Namespace: namespace, Name: name, Device: d.id}
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
		a = b.begin(&d.device, key, begun, now)
	}
	if uid != "" && uid != a.uid {
		a.uid = uid
		a.changed()
	}
	b.reopen(a, now)
	return a
}

// continued returns the newest account of a name if a new hold may belong to it, since one of
// the UIDs is unknown, and there is no gap before the hold. Allocations by device plugins have
// no UID, and share one account.
func (b *accountBook) continued(key book.HolderKey, uid string, h *hold, before []*hold) *account {
	a := b.accounts[key].newest()
	switch {
	case a == nil, a.uid != "" && uid != "":
		return nil
	case key.Name == "":
		return a
	}
	others, gap := false, true
	for _, o := range before {
		if o.by.claim == a || o.by.pod == a {
			others = true
			gap = gap && !o.To.IsZero() && o.To.Before(h.From)
		}
	}
	if others && gap || !others && !a.ended.IsZero() {
		return nil
	}
	return a
}

package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// owner is who is charged for a holding: the accounts of its claim and of its pod. Both are nil for
// admin access. All are nil for what ended before the decided time.
type owner struct {
	claim, pod *account
	period     *Period
}

// owners are who is charged for a share: the accounts of its claim, and of each of its pods.
type owners struct {
	claim *account
	pods  []*account
}

// resolve determines who is charged for the holdings of a device; what was before a moment is
// decided. An account is of one UID: that of the claim or the pod. As long as the UID is unknown,
// the account is of the name, and of holdings without a gap between them. That a UID becomes known,
// or unknown, changes no account.
func (l *Ledger) resolve(d *deviceBook, holdings []holding, from, now time.Time) {
	known := d.owners
	d.owners = make(map[holdingKey]*owner, len(holdings))
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
			o = d.ownerOfWhole(known, h)
			d.owners[h.holdingKey] = o
		}
		h.owner = o
		if !h.to.IsZero() && !h.to.After(from) && o.period == nil {
			continue
		}
		begun := later(later(h.from, from), l.answered)
		switch {
		case h.share.Admin: // what it was charged before it had admin access may be dropped meanwhile
			o.claim, o.pod = nil, nil
		case h.to.IsZero() || h.to.After(from):
			o.claim = l.claims.owner(d, h, byTime[:i], begun, now)
			o.pod = l.pods.owner(d, h, byTime[:i], begun, now)
			o.claim.useBy(o.pod)
		}
		d.setPeriod(o, h.period(d, begun, from))
	}
	for _, h := range byTime { // of each name the one that holds the device is the newest
		if o := h.owner; h.to.IsZero() && o.claim != nil {
			l.claims.reopen(o.claim.present(), now)
			l.pods.reopen(o.pod.present(), now)
		}
	}
	d.endPeriods(known, from)
}

// endPeriods ends the periods of the holdings that are not there any more.
func (d *deviceBook) endPeriods(known map[holdingKey]*owner, at time.Time) {
	for key, o := range known {
		if d.owners[key] != o && o.period != nil && o.period.To.IsZero() {
			ended := *o.period
			ended.To = later(ended.From, at)
			d.setPeriod(o, ended)
		}
	}
}

// ownerOfWhole returns the owner of a holding that is new. Kubelets before 1.35 do not tell shares
// apart, and the API server does a moment later: then it is that of the holding in whose place it
// comes.
func (d *deviceBook) ownerOfWhole(known map[holdingKey]*owner, h *holding) *owner {
	whole := h.holdingKey
	whole.share = ""
	o := known[whole]
	if _, both := d.owners[whole]; o == nil || both || h.share.ShareID == "" {
		return &owner{}
	}
	delete(known, whole)
	return o
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
	if uid != "" {
		a.uid = uid
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

// period returns the period of a holding. A new one began then. What was before a moment is
// decided.
func (h *holding) period(d *deviceBook, begun, decided time.Time) Period {
	p := Period{
		Device: d.id, Pod: h.pod, Attribution: d.joined.Attribution, From: begun, Older: h.from.IsZero(),
	}
	o := h.owner
	if o.period != nil {
		p = *o.period
	}
	p.Claim, p.ShareID, p.Admin = h.share.Claim, h.share.ShareID, h.share.Admin
	p.ClaimUID, p.PodUID = cmp.Or(h.share.ClaimUID, p.ClaimUID), cmp.Or(h.uid, p.PodUID)
	if o.claim != nil {
		p.ClaimUID, p.PodUID = o.claim.uid, o.pod.uid
	}
	if o.period == nil && !h.from.IsZero() {
		p.FromDoubt = widened(h.fromDoubt, begun.Sub(h.from))
	}
	if !h.to.IsZero() && p.To.IsZero() {
		p.To = later(p.From, later(h.to, decided))
		p.ToDoubt = widened(h.toDoubt, p.To.Sub(h.to))
	}
	return p
}

// setPeriod makes p the period of an owner, if it is another one than before.
func (d *deviceBook) setPeriod(o *owner, p Period) {
	if o.period != nil && *o.period == p {
		return
	}
	d.newPeriods = true
	before := o.period
	o.period = &p
	if i := slices.Index(d.periods, before); i >= 0 {
		d.periods = slices.Clone(d.periods) // a timeline has the other
		d.periods[i] = o.period
		return
	}
	d.periods = append(d.periods, o.period)
}

// widened returns the doubt of a time that takes effect later.
func widened(d podresources.Doubt, later time.Duration) podresources.Doubt {
	return podresources.Doubt{Early: d.Early + later, Late: max(0, d.Late-later)}
}

func (d *deviceBook) forgetPeriods(now time.Time) {
	old := func(p *Period) bool { return !p.To.IsZero() && now.Sub(p.To) > rememberFor }
	if slices.ContainsFunc(d.periods, old) {
		d.periods, d.newPeriods = slices.DeleteFunc(slices.Clone(d.periods), old), true
	}
}

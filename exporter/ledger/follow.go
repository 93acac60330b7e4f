package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// follow updates the timeline of the device by the holds of a tick, including ended ones. at is the
// time until which the holders are known.
func (b *books) follow(d *deviceBook, shares, ended []join.Share, at, now time.Time) {
	since := d.used
	d.used = now
	if d.resumed && !at.After(b.kept) || !d.resumed && sameSlice(shares, d.shares) && sameSlice(ended, d.ended) {
		return
	}
	d.known = d.known.with(knownTick{since, shares}, d.accrued)
	same, sameLives := sameShares(shares, d.shares)
	if d.resumed {
		b.takeOver(d, shares, ended, at, now)
		sameLives = false
	} else if !same || len(ended) > 0 {
		holdings := holdingsOf(shares, ended)
		from, earliest, changed := b.firstChange(d, holdings, at)
		if changed || !same {
			b.change(d, holdings, shares, from, earliest, now)
		}
	}
	if !sameLives || len(ended) > 0 {
		b.followLives(d, shares, ended)
	}
	d.shares, d.ended, d.left = shares, ended, leftTimes(shares)
	d.use(since, now)
}

// takeOver sets the holders of a restored device to those in the kubelet's first answer. Other
// holds ended when the earlier process ended, except that of a sole holder if the time of its end
// is known.
func (b *books) takeOver(d *deviceBook, shares, ended []join.Share, at, now time.Time) {
	d.resumed = false
	known := slices.DeleteFunc(slices.Clone(d.periods), func(p *Period) bool { return !p.To.IsZero() })
	holdings := holdingsOf(shares, nil)
	if len(known) == 1 && !known[0].Admin {
		holdings = holdingsOf(shares, ended)
	}
	d.owners = ownership{}
	for i := range holdings {
		h := &holdings[i]
		if n := slices.IndexFunc(known, func(p *Period) bool { return p.isOf(h) }); n >= 0 {
			d.owners[h.holdingKey] = &owner{period: known[n]}
			known = slices.Delete(known, n, n+1)
		}
	}
	for _, p := range known {
		d.endPeriod(p, b.kept)
	}
	from := d.accrued
	b.change(d, holdings, shares, from, from, now)
	if s := d.timeline.on(from); s.from.Equal(from) { // ended holds may have ended at any time until now
		s.doubt.Late = max(s.doubt.Late, at.Sub(from))
		d.late = max(d.late, s.doubt.Late)
	}
}

// firstChange returns the time of the first change of holdings since the last tick, and whether
// there was one. If there was none, it is the time of the present answer, which may have changed
// the shares' weights. A change before the decided time is a late correction: it takes effect at
// that time. earliest is the earliest possible time of the change.
func (b *books) firstChange(
	d *deviceBook, holdings []holding, at time.Time,
) (first, earliest time.Time, changed bool) {
	before := map[holdingKey]time.Time{}
	for _, h := range holdingsOf(d.shares, d.ended) {
		before[h.holdingKey] = h.to
	}
	first = at
	late := at
	for _, h := range holdings {
		to, known := before[h.holdingKey]
		if !known && h.share.ShareID != "" { // kubelets before 1.35 do not report shares, the API server does
			whole := h.holdingKey
			whole.share = ""
			if !slices.ContainsFunc(holdings, func(o holding) bool { return o.holdingKey == whole }) {
				to, known = before[whole]
			}
		}
		if known && to.Equal(h.to) && !d.owners.isOther(&h) {
			continue
		}
		edge, doubt := h.from, h.fromDoubt
		if known && !to.Equal(h.to) {
			edge, doubt = h.to, h.toDoubt
		}
		if !edge.IsZero() && edge.Before(d.accrued) {
			b.corrections++
			late = driver.Earlier(late, edge.Add(-doubt.Early))
		}
		first, changed = driver.Earlier(first, edge), true
	}
	first = driver.Later(first, d.accrued)
	return first, driver.Earlier(first, late), changed
}

// change resolves the holdings and renews the timeline from a time on. earliest is the earliest
// possible time of the change.
func (b *books) change(
	d *deviceBook, holdings []holding, shares []join.Share, from, earliest, now time.Time,
) {
	b.resolve(d, holdings, from, now)
	b.renew(d, holdings, from, from.Sub(earliest), now)
	d.owned = d.owners.of(shares)
}

// renew replaces the timeline from a time on. The change at that time may have happened earlier, by
// at most before.
func (b *books) renew(d *deviceBook, holdings []holding, from time.Time, before time.Duration, now time.Time) {
	n := slices.IndexFunc(d.timeline, func(s segment) bool { return !s.from.Before(from) })
	if n < 0 {
		n = len(d.timeline)
	}
	replaced := slices.Clone(d.timeline[n:])
	d.timeline = d.timeline[:n]
	for _, cut := range d.known.cuts(holdings, from) {
		shares, owned, divided := d.known.heldAt(holdings, cut)
		s := segmentOf(shares, owned, divided, cut)
		doubt, edge := doubtAt(holdings, cut)
		if cut.Equal(from) {
			doubt.Early = max(doubt.Early, before)
		}
		s.doubt, d.late = doubt, max(d.late, doubt.Late)
		if n := len(d.timeline); n == 0 || edge || !d.timeline[n-1].samePortions(&s) {
			d.timeline = d.timeline.append(s)
		}
	}
	d.timeline.endAccounts(replaced, from)
	d.timeline = d.timeline.since(now.Add(-rememberFor))
	for i := range holdings {
		h := &holdings[i]
		if h.from.IsZero() && h.owner.pod != nil {
			h.owner.pod.young = false
			h.owner.pod.changed()
			b.markPartial(h.owner.claim, h.share)
		}
		if !h.to.IsZero() && h.owner.claim != nil {
			h.owner.claim.noteEnd(h.share)
		}
	}
}

// use updates the present holders' parts by the use of their processes since the previous tick.
func (d *deviceBook) use(since, now time.Time) {
	known := slices.ContainsFunc(d.shares, func(s join.Share) bool { return s.Uses != nil || s.Own != nil })
	if !known && !d.usesKnown {
		return
	}
	d.usesKnown = known
	last := d.timeline.last()
	fresh := segmentOf(d.shares, d.owned, d.joined.Attribution, last.from)
	switch {
	case last.samePortions(&fresh):
	case since.After(last.from):
		fresh.from = since
		d.timeline = d.timeline.append(fresh)
	default:
		fresh.doubt, fresh.judged, fresh.before = last.doubt, last.judged, last.before
		*last = fresh
	}
	if d.timeline.beyond() > len(d.timeline)/2 {
		d.timeline = d.timeline.since(now.Add(-rememberFor))
	}
}

// knownUntil returns the time up to which the holders of the device and of its partitions are
// known. horizon is that time for all devices that are not waiting.
func (d *deviceBook) knownUntil(horizon time.Time, waiting map[driver.ID]time.Time) time.Time {
	if since, waits := waiting[d.id]; waits {
		horizon = driver.Earlier(horizon, since)
	}
	for _, p := range d.parts {
		if since, waits := waiting[p.id]; waits {
			horizon = driver.Earlier(horizon, since)
		}
	}
	return horizon
}

// markPartial marks a claim that held the device before the kubelet's first answer: its earlier use
// is unknown, unless it was allocated after this process started.
func (b *books) markPartial(a *account, s *join.Share) {
	if !s.AllocatedAt.Before(b.started) {
		return
	}
	a.partial = true
	a.changed()
	if a.fit != nil {
		a.fit.partial = true
	}
}

// followLives updates the lives of claims by the present and the ended shares of a device.
func (b *books) followLives(d *deviceBook, shares, ended []join.Share) {
	for _, of := range [2][]join.Share{shares, ended} {
		for i := range of {
			s := &of[i]
			for j := range s.Holders {
				hold := holdOf(&s.Holders[j])
				o := d.owners[holdingKey{s.Claim, s.ShareID, s.Holders[j].Pod, hold.From}]
				if o != nil && o.claim != nil && o.claim.key.Name != "" {
					b.followLife(o.claim.present(), s, &hold)
				}
			}
		}
	}
}

// followLife updates the life of a claim by a hold. If the claim was allocated before this process
// started, the time since which a pod of this node waited for it is unknown.
func (b *books) followLife(a *account, s *join.Share, h *podresources.Hold) {
	v := a.lived()
	before := *v
	if !s.AllocatedAt.IsZero() {
		v.Allocated = s.AllocatedAt
	}
	if !v.Allocated.IsZero() && !v.Allocated.Before(b.started) && !h.Wanted.IsZero() && !h.From.IsZero() {
		waiting := driver.Later(v.Allocated, driver.Earlier(h.Wanted, h.From))
		if v.Waiting.IsZero() || waiting.Before(v.Waiting) {
			v.Waiting = waiting
		}
	}
	if v.Prepared.IsZero() && !h.Prepared.IsZero() {
		v.Prepared = h.Prepared
		if v.FirstActive.Before(v.Prepared) { // it was activity of an earlier holder
			v.FirstActive = time.Time{}
		}
	}
	if v.Unprepared.IsZero() {
		v.Unprepared = h.Unprepared
	}
	if *v != before {
		a.changed()
	}
}

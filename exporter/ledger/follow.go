package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/divide"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// follow updates the timeline of the device by the holds of a tick, including ended ones. at is the
// time until which the holders are known.
func (b *books) follow(d *deviceBook, shares, ended []join.Share, at, now time.Time) {
	since := d.used
	d.used = now
	same := driver.SameSlice(shares, d.shares) && driver.SameSlice(ended, d.ended)
	if d.resumed && !at.After(b.kept) || !d.resumed && same {
		return
	}
	d.known = d.known.With(divide.Tick{Since: since, Shares: shares}, d.accrued)
	if d.resumed {
		b.takeOver(d, shares, ended, at, now)
	} else if from, earliest, changed := b.firstChange(d, shares, ended, at); changed {
		b.change(d, sortedHolds(shares, ended), from, earliest, now)
	}
	b.followLives(d, shares, ended)
	d.shares, d.ended = shares, ended
	d.use(since)
}

// takeOver sets the holders of a restored device to those in the kubelet's first answer. Other
// holds ended when the earlier process ended, except that of a sole holder if the time of its end
// is known.
func (b *books) takeOver(d *deviceBook, shares, ended []join.Share, at, now time.Time) {
	d.resumed = false
	all := sortedHolds(shares, nil)
	for _, by := range d.holds {
		if len(d.holds) == 1 && !by.period.Admin {
			all = sortedHolds(shares, ended)
		}
	}
	known := d.holds
	d.holds = holds{}
	for i := range all {
		h := &all[i]
		if by := known[h.ID]; by != nil && sameUID(by.period.ClaimUID, h.share.ClaimUID) {
			d.holds[h.ID] = by
			delete(known, h.ID)
		}
	}
	for _, by := range known {
		d.periods.End(by.period, b.kept)
	}
	from := d.accrued
	b.change(d, all, from, from, now)
	if s := d.timeline.On(from); s.From.Equal(from) { // ended holds may have ended at any time until now
		s.Doubt.Late = max(s.Doubt.Late, at.Sub(from))
		d.late = max(d.late, s.Doubt.Late)
	}
}

// sameUID reports whether two UIDs may be the same. Empty ones are unknown.
func sameUID(x, y string) bool { return x == y || x == "" || y == "" }

// firstChange returns the time of the first change of the device's holds since they were last taken
// in, and whether there was one. A change of weights alone takes effect at the time of the present
// answer. A beginning or an end before the decided time is a late correction: it takes effect at
// that time. earliest is the earliest possible time of the change.
func (b *books) firstChange(
	d *deviceBook, shares, ended []join.Share, at time.Time,
) (first, earliest time.Time, changed bool) {
	first = at
	late, present := at, 0
	for h := range holdsIn(shares, ended) {
		if h.To.IsZero() {
			present++
		}
		by := d.holds[h.ID]
		if by != nil && by.facts == h.holdFacts() {
			continue
		}
		changed = true
		edge, doubt := h.From, h.FromDoubt
		if by == nil {
			by = d.holds[h.Of]
		}
		switch {
		case by == nil:
		case !by.facts.to.Equal(h.To):
			edge, doubt = h.To, h.ToDoubt
		case !by.isOther(&h):
			continue
		}
		if !edge.IsZero() && edge.Before(d.accrued) {
			b.corrections++
			late = driver.Earlier(late, edge.Add(-doubt.Early))
		}
		first = driver.Earlier(first, edge)
	}
	first = driver.Later(first, d.accrued)
	return first, driver.Earlier(first, late), changed || present != d.present
}

// change takes in the holds, and renews the timeline from a time on. earliest is the earliest
// possible time of the change.
func (b *books) change(d *deviceBook, all []hold, from, earliest, now time.Time) {
	b.resolve(d, all, from, now)
	b.renew(d, all, from, from.Sub(earliest), now)
}

// renew replaces the timeline from a time on. The change at that time may have happened earlier, by
// at most before.
func (b *books) renew(d *deviceBook, all []hold, from time.Time, before time.Duration, now time.Time) {
	n := slices.IndexFunc(d.timeline, func(s segment) bool { return !s.From.Before(from) })
	if n < 0 {
		n = len(d.timeline)
	}
	replaced := slices.Clone(d.timeline[n:])
	d.timeline = d.timeline[:n]
	for _, cut := range d.known.Cuts(from, edgesOf(all)...) {
		var shares []join.Share
		var divided join.Attribution
		shares, d.accounts, divided = d.heldAt(all, cut)
		s := divide.NewSegment(shares, d.accounts, divided, cut)
		doubt, edge := doubtAt(all, cut)
		if cut.Equal(from) {
			doubt.Early = max(doubt.Early, before)
		}
		s.Doubt, d.late = doubt, max(d.late, doubt.Late)
		if n := len(d.timeline); n == 0 || edge || !d.timeline[n-1].SameParts(&s) {
			d.timeline = d.timeline.Append(s)
		}
	}
	endAccounts(d.timeline, replaced, from)
	d.timeline = slices.Delete(d.timeline, 0, d.timeline.At(now.Add(-rememberFor)))
	for i := range all {
		h := &all[i]
		if h.From.IsZero() && h.by.pod != nil {
			h.by.pod.Young = false
			h.by.pod.changed()
			b.markPartial(h.by.claim, h.share)
		}
		if !h.To.IsZero() && h.by.claim != nil {
			h.by.claim.noteEnd(h.share)
			h.by.claim.endWithout(d.timeline, h.To)
			h.by.pod.endWithout(d.timeline, h.To)
		}
	}
}

// heldAt returns the shares that were held at a moment, with who is charged for each, and how they
// divided the device then.
func (d *deviceBook) heldAt(
	all []hold, moment time.Time,
) (out []join.Share, accounts []shareAccounts, divided join.Attribution) {
	for i := range all {
		h := &all[i]
		if h.From.After(moment) || !h.To.IsZero() && !h.To.After(moment) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Compare(h.share.Allocation) != 0 || out[n-1].Admin != h.share.Admin {
			out, accounts = append(out, *h.share), append(accounts, shareAccounts{Claim: h.by.claim})
			out[n].Pods = nil
		}
		last, of := &out[len(out)-1], &accounts[len(accounts)-1]
		if n := len(last.Pods); n == 0 || last.Pods[n-1] != h.pod {
			last.Pods, of.Pods = append(last.Pods, h.pod), append(of.Pods, h.by.pod)
		}
	}
	return out, accounts, d.known.Divide(out, moment)
}

// use updates the present holders' parts by the use of their processes since the previous tick.
func (d *deviceBook) use(since time.Time) {
	known := slices.ContainsFunc(d.shares, func(s join.Share) bool { return s.Uses != nil || s.Own != nil })
	if !known && !d.usesKnown {
		return
	}
	d.usesKnown = known
	last := d.timeline.Last()
	fresh := divide.NewSegment(d.shares, d.accounts, d.joined.Attribution, last.From)
	switch {
	case last.SameParts(&fresh):
	case since.After(last.From):
		fresh.From = since
		d.timeline = d.timeline.Append(fresh)
	default:
		last.Redo(&fresh)
	}
}

// knownUntil returns the time up to which the holders of the device and of its partitions are
// known. horizon is that time for all devices that are not waiting.
func (d *deviceBook) knownUntil(horizon time.Time, waiting map[driver.ID]time.Time) time.Time {
	d.eachBook(func(b *deviceBook) {
		if since, waits := waiting[b.id]; waits {
			horizon = driver.Earlier(horizon, since)
		}
	})
	return horizon
}

// markPartial marks a claim that held the device before the kubelet's first answer: its earlier use
// is unknown, unless it was allocated after this process started.
func (b *books) markPartial(a *account, s *join.Share) {
	if !s.AllocatedAt.Before(b.started) {
		return
	}
	a.Partial = true
	a.changed()
	if a.ofClaim.fit != nil {
		a.ofClaim.fit.Partial = true
	}
}

// followLives updates the lives of claims by the present and the ended holds of a device, if one of
// them has changed.
func (b *books) followLives(d *deviceBook, shares, ended []join.Share) {
	news := len(ended) > 0
	for h := range holdsIn(shares) {
		by := d.holds[h.ID]
		news = news || by.lived != h.Hold || !by.allocated.Equal(h.share.AllocatedAt)
		by.lived, by.allocated = h.Hold, h.share.AllocatedAt
	}
	if !news {
		return
	}
	for h := range holdsIn(shares, ended) {
		if by := d.holds[h.ID]; by != nil && by.claim != nil && by.claim.key.Name != "" {
			b.followLife(by.claim.present(), h.share, h.Hold)
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

// MaxHistory is the default of Config.History: bytes for segments and periods. 2000 holders that
// end within ten minutes and had a device for themselves take as much; 8700 without their segments.
const MaxHistory = 4 << 20

// periodBytes is what a period takes, with its texts.
const periodBytes = 480

// history is who held what in the last ten minutes.
type history struct {
	timeline  timeline.Timeline // of the last tick
	forgotten time.Time         // when old periods were last forgotten
	lost      int               // what was forgotten in this tick that may still be needed
}

// forgetEvery is the time between two removals of old periods.
const forgetEvery = time.Minute

// update takes over the periods that this tick has changed, within a bound in bytes.
func (h *history) update(devices deviceBooks, bound int, now time.Time) {
	h.lost = 0
	if now.Sub(h.forgotten) >= forgetEvery {
		h.forgotten = now
		for _, d := range devices {
			d.shorten(now.Add(-rememberFor), periods, now)
		}
	}
	changed := map[driver.ID][]*timeline.Period{}
	if bytes := devices.changedPeriods(changed); bytes > bound {
		h.shorten(devices, bound, now)
		devices.changedPeriods(changed)
	}
	h.timeline = h.timeline.With(changed)
}

// changedPeriods adds the changed periods of each device. It returns what the history of all takes.
func (b deviceBooks) changedPeriods(to map[driver.ID][]*timeline.Period) (bytes int) {
	for id, d := range b {
		bytes += d.historyBytes()
		if all, changed := d.periods.News(); changed {
			to[id], d.periodsSaved = all, false
		}
	}
	return bytes
}

// dispensable is what a history can forget, what matters least first.
type dispensable int

const (
	settled   dispensable = iota // segments that nothing can be charged to any more
	periods                      // also periods, which tell who held what
	unsettled                    // also segments that readings to come are charged to
)

// shorten makes the history a quarter shorter than its bound, so that each entry costs little. What
// matters least goes first, and of that what is older, of all devices.
func (h *history) shorten(devices deviceBooks, bound int, now time.Time) {
	for what := settled; what <= unsettled; what++ {
		for age := rememberFor; age > time.Second; age = age / 4 * 3 {
			bytes := 0
			for _, d := range devices {
				h.lost += d.shorten(now.Add(-age), what, now)
				bytes += d.historyBytes()
			}
			if bytes <= bound/4*3 {
				return
			}
		}
	}
}

func (d *deviceBook) historyBytes() int { return d.timeline.Bytes() + len(d.periods.All())*periodBytes }

// shorten forgets what ended before a moment. Of settled segments, only a reading or an event that
// comes late, of an earlier time than those before, would need one: they are not counted as lost.
func (d *deviceBook) shorten(before time.Time, what dispensable, now time.Time) (lost int) {
	end := d.timeline.At(driver.Earlier(before, d.accrued))
	if first := min(d.timeline.At(d.unsettled(now)), end); first > 0 {
		d.timeline, end = slices.Delete(d.timeline, 0, first), end-first
	}
	if what >= periods {
		lost = d.periods.Forget(before)
	}
	if what >= unsettled && end > 1 {
		lost += end - 1
		d.timeline = d.timeline.Without(end, &account{dropped: true})
	}
	return lost
}

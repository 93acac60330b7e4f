package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// holding is the time in which a pod holds a share of the device, [from, to).
type holding struct {
	holdingKey
	uid   string // of the pod; empty: unknown
	share *join.Share
	to    time.Time // zero: it holds it now
	owner *owner    // nil: not resolved yet

	fromDoubt, toDoubt podresources.Doubt
}

type holdingKey struct {
	claim podresources.Claim
	share string
	pod   podresources.Pod
	from  time.Time // zero: before the first answer of the kubelet
}

// holdingsOf returns the holdings of present shares and of those that ended, by share.
func holdingsOf(shares, ended []join.Share) []holding {
	out := make([]holding, 0, len(shares)+len(ended))
	for _, of := range [2][]join.Share{shares, ended} {
		for i := range of {
			s := &of[i]
			for j := range s.Holders {
				hold := holdOf(&s.Holders[j])
				of := &s.Holders[j]
				h := holding{
					holdingKey: holdingKey{s.Claim, s.ShareID, of.Pod, hold.From}, uid: of.UID, share: s, to: hold.To,
					fromDoubt: hold.FromDoubt, toDoubt: hold.ToDoubt,
				}
				if n := len(out); n == 0 || out[n-1] != h { // a pod's containers have the same hold
					out = append(out, h)
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b holding) int { return a.share.Compare(b.share.Allocation) })
	return out
}

// holdOf returns the hold of a holder; one that is not dated holds since ever.
func holdOf(h *podresources.Holder) podresources.Hold {
	if h.Hold == nil {
		return podresources.Hold{}
	}
	return *h.Hold
}

// knownTick is what is known of a device from one tick to the next.
type knownTick struct {
	since  time.Time
	shares []join.Share // with what their processes, or own CPUs, used since then
}

// follow updates the timeline of the device by the holds of a tick, those that ended included. at
// is the time until which it is known who holds what.
func (l *Ledger) follow(d *deviceBook, shares, ended []join.Share, at, now time.Time) {
	since := d.used
	d.used = now
	if d.resumed {
		if at.After(l.kept) {
			l.takeOver(d, shares, ended, since, at, now)
			l.followLives(d, shares, ended)
		}
		return
	}
	if sameSlice(shares, d.shares) && sameSlice(ended, d.ended) {
		return
	}
	d.note(knownTick{since, shares})
	same := slices.EqualFunc(shares, d.shares, sameHolding)
	if !same || len(ended) > 0 {
		holdings := holdingsOf(shares, ended)
		from, earliest, changed := l.firstChange(d, holdings, at)
		if changed || !same {
			l.resolve(d, holdings, from, now)
			l.renew(d, holdings, from, from.Sub(earliest), now)
			d.owned = d.ownersOf(shares)
		}
	}
	l.followLives(d, shares, ended)
	d.shares, d.ended, d.left = shares, ended, leftTimes(shares)
	d.use(since, now)
}

// takeOver makes the device, which is as an earlier process left it, held by those whom the first
// answer of the kubelet names. The others ended when that process did, but for one that held the
// device alone, if it is known when it ended.
func (l *Ledger) takeOver(d *deviceBook, shares, ended []join.Share, since, at, now time.Time) {
	d.resumed = false
	d.note(knownTick{since, shares})
	known := slices.DeleteFunc(slices.Clone(d.periods), func(p *Period) bool { return !p.To.IsZero() })
	holdings := holdingsOf(shares, nil)
	if len(known) == 1 && !known[0].Admin {
		holdings = holdingsOf(shares, ended)
	}
	for i := range holdings {
		h := &holdings[i]
		for n, p := range known {
			if p.isOf(h) {
				d.adopt(h, p)
				known = slices.Delete(known, n, n+1)
				break
			}
		}
	}
	for _, p := range known {
		ended := *p
		ended.To = later(p.From, l.kept)
		d.setPeriod(&owner{period: p}, ended)
	}
	l.resolve(d, holdings, d.accrued, now)
	from := d.accrued
	l.renew(d, holdings, from, 0, now)
	if s := &d.timeline[d.timeline.at(from)]; s.from.Equal(from) { // those that ended may have ended until now
		s.doubt.Late = max(s.doubt.Late, at.Sub(from))
		d.late = max(d.late, s.doubt.Late)
	}
	d.owned = d.ownersOf(shares)
	d.shares, d.ended, d.left = shares, ended, leftTimes(shares)
	d.use(since, now)
}

// adopt makes a period that of a holding, which has just become known again.
func (d *deviceBook) adopt(h *holding, p *Period) {
	if d.owners == nil {
		d.owners = map[holdingKey]*owner{}
	}
	d.owners[h.holdingKey] = &owner{period: p}
}

// isOf reports whether the period is that of a holding. UIDs may be unknown.
func (p *Period) isOf(h *holding) bool {
	same := func(x, y string) bool { return x == y || x == "" || y == "" }
	return p.Claim == h.share.Claim && p.ShareID == h.share.ShareID && p.Pod == h.pod &&
		same(p.ClaimUID, h.share.ClaimUID) && same(p.PodUID, h.uid)
}

// firstChange returns the time of the first change of holdings since the last tick, and whether
// there was one. Without one it is the time of the present answer, since when the shares may have
// other weights. A change before the decided time is a late correction: it takes effect from that
// time on. earliest is when it may have been.
func (l *Ledger) firstChange(
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
		if !known && h.share.ShareID != "" { // a kubelet before 1.35 does not tell shares, the API does
			whole := h.holdingKey
			whole.share = ""
			if !slices.ContainsFunc(holdings, func(o holding) bool { return o.holdingKey == whole }) {
				to, known = before[whole]
			}
		}
		if known && to.Equal(h.to) && !d.isOther(&h) {
			continue
		}
		edge, doubt := h.from, h.fromDoubt
		if known && !to.Equal(h.to) {
			edge, doubt = h.to, h.toDoubt
		}
		if !edge.IsZero() && edge.Before(d.accrued) {
			l.corrections++
			late = earlier(late, edge.Add(-doubt.Early))
		}
		first, changed = earlier(first, edge), true
	}
	first = later(first, d.accrued)
	return first, earlier(first, late), changed
}

// isOther reports whether a holding is of another claim or pod of the same name than was known:
// what is known of names may be older than the holding.
func (d *deviceBook) isOther(h *holding) bool {
	o := d.owners[h.holdingKey]
	other := func(a *account, uid string) bool { return a != nil && uid != "" && a.uid != "" && a.uid != uid }
	return o != nil && (other(o.claim, h.share.ClaimUID) || other(o.pod, h.uid))
}

// renew makes the timeline again from a moment on. What changes then may have changed earlier.
func (l *Ledger) renew(d *deviceBook, holdings []holding, from time.Time, before time.Duration, now time.Time) {
	n := slices.IndexFunc(d.timeline, func(s segment) bool { return !s.from.Before(from) })
	if n < 0 {
		n = len(d.timeline)
	}
	replaced := slices.Clone(d.timeline[n:])
	d.timeline = d.timeline[:n]
	for _, cut := range d.cuts(holdings, from) {
		shares, owned, divided := d.heldAt(holdings, cut)
		s := segmentOf(shares, owned, divided, cut)
		doubt, edge := doubtAt(holdings, cut)
		if cut.Equal(from) {
			doubt.Early = max(doubt.Early, before)
		}
		s.doubt, d.late = doubt, max(d.late, doubt.Late)
		if n := len(d.timeline); n == 0 || edge || !d.timeline[n-1].samePortions(&s) {
			d.timeline = append(d.timeline, s)
		}
	}
	d.closeAccounts(replaced, from)
	d.timeline = d.timeline.since(now.Add(-rememberFor))
	for i := range holdings {
		h := &holdings[i]
		if h.from.IsZero() && h.owner.pod != nil {
			h.owner.pod.young = false
			l.markPartial(h.owner.claim, h.share)
		}
		if !h.to.IsZero() && h.owner.claim != nil {
			h.owner.claim.noteEnd(h.share)
		}
	}
}

// doubtAt returns how far a moment may be off, if holdings begin or end then.
func doubtAt(holdings []holding, moment time.Time) (doubt podresources.Doubt, edge bool) {
	add := func(at time.Time, of podresources.Doubt) {
		if at.Equal(moment) {
			edge = true
			doubt = podresources.Doubt{Early: max(doubt.Early, of.Early), Late: max(doubt.Late, of.Late)}
		}
	}
	for i := range holdings {
		add(holdings[i].from, holdings[i].fromDoubt)
		add(holdings[i].to, holdings[i].toDoubt)
	}
	return doubt, edge
}

// cuts returns a moment and the later ones at which holdings change, or more was known of them.
func (d *deviceBook) cuts(holdings []holding, from time.Time) []time.Time {
	out := []time.Time{from}
	for i := range holdings {
		out = append(out, holdings[i].from, holdings[i].to)
	}
	for i := range d.known {
		out = append(out, d.known[i].since)
	}
	out = slices.DeleteFunc(out, func(t time.Time) bool { return t.Before(from) })
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// note keeps what is known of the device since the last tick, as long as that is not decided; and
// of one more tick, since parts of own CPUs stay what they were until the share ends.
func (d *deviceBook) note(k knownTick) {
	drop := max(d.knownAt(d.accrued)-1, len(d.known)-maxSegments, 0)
	d.known = append(slices.Delete(d.known, 0, drop), k)
}

// knownAt returns the index of what was known of a moment.
func (d *deviceBook) knownAt(moment time.Time) int {
	i := len(d.known) - 1
	for i > 0 && d.known[i].since.After(moment) {
		i--
	}
	return i
}

// heldAt returns the shares that were held at a moment, with the pods that held them, divided by
// what was known of them at that time.
func (d *deviceBook) heldAt(
	holdings []holding, moment time.Time,
) (out []join.Share, owned []owners, divided join.Attribution) {
	for i := range holdings {
		h := &holdings[i]
		if h.from.After(moment) || !h.to.IsZero() && !h.to.After(moment) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Compare(h.share.Allocation) != 0 || out[n-1].Admin != h.share.Admin {
			out, owned = append(out, *h.share), append(owned, owners{claim: h.owner.claim})
			out[n].Pods = nil
		}
		last, of := &out[len(out)-1], &owned[len(owned)-1]
		if n := len(last.Pods); n == 0 || last.Pods[n-1] != h.pod {
			last.Pods, of.pods = append(last.Pods, h.pod), append(of.pods, h.owner.pod)
		}
	}
	d.recall(out, d.knownAt(moment))
	return out, owned, attributionOf(out, join.Divide(out))
}

// attributionOf returns how shares that were divided by weight are divided by what is known of
// their use.
func attributionOf(shares []join.Share, divided join.Attribution) join.Attribution {
	for i := range shares {
		switch s := &shares[i]; {
		case s.Admin:
		case s.Own != nil:
			return join.AttributionCPUs
		case s.ByProcess && divided != join.AttributionExclusive:
			return join.AttributionProcess
		}
	}
	return divided
}

// ownersOf returns the owners of the present shares.
func (d *deviceBook) ownersOf(shares []join.Share) []owners {
	out := make([]owners, len(shares))
	for i := range shares {
		s := &shares[i]
		for j := range s.Holders {
			h := &s.Holders[j]
			o := d.owners[holdingKey{s.Claim, s.ShareID, h.Pod, holdOf(h).From}]
			out[i].claim = o.claim
			if j == 0 || s.Holders[j-1].Pod != h.Pod {
				out[i].pods = append(out[i].pods, o.pod)
			}
		}
	}
	return out
}

// recall gives shares what was known of them in a tick. The use by processes is known only if it is
// of all their pods. Own CPUs stay what they were until the share ends; those that were not known
// yet did what they do now, as far as the others leave that much of the device.
func (d *deviceBook) recall(shares []join.Share, tick int) {
	var taken, wanted join.Use
	var late []*join.Share
	byProcess, byCPUs := true, false
	for i := range shares {
		s := &shares[i]
		k := findShare(d.known[tick].shares, s)
		if k != nil {
			pods, admin := s.Pods, s.Admin
			*s = *k
			s.Pods, s.Admin = pods, admin
		}
		byProcess = byProcess && (s.Admin || k != nil && slices.Equal(s.Pods, k.Pods))
		known := k != nil
		if !known {
			known = d.recallOwn(s, tick)
		}
		switch {
		case s.Admin || s.Own == nil:
		case !known:
			wanted.Add(s.Own.Use)
			late = append(late, s)
		default:
			taken.Add(s.Own.Use)
		}
		byCPUs = byCPUs || !s.Admin && s.Own != nil
	}
	for _, s := range late {
		s.Own = &join.Own{Part: s.Own.Part, Use: within(s.Own.Use, wanted, taken), Unknown: s.Own.Unknown}
	}
	divideAlike(shares, byProcess, byCPUs)
}

// recallOwn gives a share the own CPUs that it had last before a tick, and reports whether it was
// known then.
func (d *deviceBook) recallOwn(s *join.Share, tick int) bool {
	for j := tick - 1; j >= 0; j-- {
		if k := findShare(d.known[j].shares, s); k != nil {
			s.Own = k.Own
			return true
		}
	}
	return false
}

// divideAlike makes all shares of a device be divided by the same: by processes only if all are,
// by own CPUs if one is.
func divideAlike(shares []join.Share, byProcess, byCPUs bool) {
	for i := range shares {
		s := &shares[i]
		if !byProcess {
			s.Uses, s.ByProcess = nil, false
		}
		if byCPUs && !s.Admin && s.Own == nil {
			s.Own = &join.Own{}
		}
	}
}

// within returns a part of what is wanted in all, so that it fits in what is left of a device.
func within(part, wanted, taken join.Use) join.Use {
	for b := range part {
		if left := max(0, 1-taken[b]); wanted[b] > left {
			part[b] *= left / wanted[b]
		}
	}
	return part
}

// findShare returns the share of the same allocation, nil if there is none.
func findShare(shares []join.Share, s *join.Share) *join.Share {
	i, found := slices.BinarySearchFunc(shares, s, func(other join.Share, s *join.Share) int {
		return other.Compare(s.Allocation)
	})
	if !found {
		return nil
	}
	return &shares[i]
}

// sameHolding reports whether two shares are of the same claim and pods, for the same time, and
// have the same weights.
func sameHolding(x, y join.Share) bool {
	return x.Weight == y.Weight && x.Admin == y.Admin && x.ClaimUID == y.ClaimUID && x.Compare(y.Allocation) == 0 &&
		slices.EqualFunc(x.Holders, y.Holders, func(a, b podresources.Holder) bool {
			return a.Pod == b.Pod && a.UID == b.UID && (a.Hold == b.Hold || holdOf(&a).From.Equal(holdOf(&b).From))
		})
}

// leftTimes returns when the last processes of those ended who hold the shares all the same, in
// order.
func leftTimes(shares []join.Share) []time.Time {
	var out []time.Time
	for i := range shares {
		for j := range shares[i].Holders {
			if left := holdOf(&shares[i].Holders[j]).Left; !shares[i].Admin && !left.IsZero() {
				out = append(out, left)
			}
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// knownUntil returns the time up to which the holders of the device and of its parts are known,
// given that of the answers.
func (d *deviceBook) knownUntil(horizon time.Time, waiting map[driver.ID]time.Time) time.Time {
	if since, waits := waiting[d.id]; waits {
		horizon = earlier(horizon, since)
	}
	for _, p := range d.parts {
		if since, waits := waiting[p.id]; waits {
			horizon = earlier(horizon, since)
		}
	}
	return horizon
}

func sameSlice(a, b []join.Share) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// byDevice returns the shares of each device. They are sorted.
func byDevice(shares []join.Share) map[driver.ID][]join.Share {
	if len(shares) == 0 {
		return nil
	}
	out := map[driver.ID][]join.Share{}
	for len(shares) > 0 {
		n := slices.IndexFunc(shares, func(s join.Share) bool { return s.Device != shares[0].Device })
		if n < 0 {
			n = len(shares)
		}
		out[shares[0].Device], shares = shares[:n:n], shares[n:]
	}
	return out
}

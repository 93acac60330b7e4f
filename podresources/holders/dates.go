package holders

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Dates remembers since when each pod has held each device. The zero value is ready. It is not safe
// for concurrent use.
type Dates struct {
	holds   map[holdKey]*dated
	ended   []podresources.Allocation // oldest first
	calls   int
	given   []podresources.Allocation // the argument of the last call
	view    podresources.View         // its result
	waiting bool                      // it withheld something
	resumed bool                      // there was no answer since Resume
}

// holdKey is a pod that holds a share of a device through a claim or, without a name of one,
// through a device plugin.
type holdKey struct {
	device driver.ID
	claim  podresources.Claim
	share  string
	pod    podresources.Pod
	uid    string // empty: unknown
}

func (k holdKey) compare(other holdKey) int {
	return cmp.Or(k.device.Compare(other.device), k.claim.Compare(other.claim), strings.Compare(k.share, other.share),
		k.pod.Compare(other.pod), strings.Compare(k.uid, other.uid))
}

// dated is a hold that has not ended.
type dated struct {
	hold  *podresources.Hold
	began time.Time // of the call that saw it first
	shown bool      // it was in a view
	call  int       // the last call that had it
	told  bool      // that of shares has it in its place, which were not told apart before
	ready bool      // its devices were prepared at an earlier call

	// first is of the call that saw it first, if the pods are watched and its pod's UID is not known
	// yet; else nil.
	first *changeTimes

	of      *podresources.Allocation // that call's; nil: it is resumed, and none had it yet
	holders []podresources.Holder    // of it, this pod's
	resumed *Resumed                 // nil: it is not
}

// Resumed is a hold of an earlier process that had not ended when that did.
type Resumed struct {
	Device driver.ID
	Claim  podresources.Claim
	Share  string
	Pod    podresources.Pod
	UID    string // of the pod; empty: unknown
	From   time.Time
	Admin  bool // see [podresources.Allocation]

	ClaimUID string // empty: unknown
}

// Resume makes the dates go on from those that an earlier process knew until a time, before the
// first Date. Those of these holds that the first answer of the kubelet has go on, and what is new
// began after that time. Of the others those have ended of which a sign says when; the rest is
// forgotten. Until that answer nothing is known. A hold with admin access has it until the claim is
// described.
func (d *Dates) Resume(holds []Resumed, until time.Time) {
	d.holds = map[holdKey]*dated{}
	for i := range holds {
		r := &holds[i]
		key := holdKey{r.Device, r.Claim, r.Share, r.Pod, r.UID}
		d.holds[key] = &dated{hold: &podresources.Hold{From: r.From}, began: until, shown: true, resumed: r}
	}
	d.resumed, d.view.At = true, until
}

// Date returns the view of these allocations, given the signs of what changed since the call
// before. The Reason and Since of the holders' holds are kept, and the times are set; a holder
// without hold is listed. allocations are sorted, and must not change afterwards; now does not go
// back. While nothing changes, the view has the same slices.
//
// A hold began, or ended:
//
//   - when its pod's cgroup or its CDI spec was seen to come or go, between the two calls' At;
//   - else in the middle between these, or at the second one where they are more than maxGuess
//     apart, since the middle would be a guess. The same if the devices are not prepared yet:
//     objects of the API say so, which come when they change. What objects alone say began when the
//     pod's first object came, at the earliest: the From of the holders' holds.
//
// A sign that came up to maxPreparation before the first answer, which did not name the pod yet,
// means the time of that answer; so does, of watched pods, one before the last answer that names
// it. One that came while the kubelet gave the first answer that names it means the second call's
// At. An allocation of which it is about to be known what it is (Pending), or whose pod's UID a
// watch is about to tell, is withheld for up to maxPending, and its device is in Waiting meanwhile.
func (d *Dates) Date(allocations []podresources.Allocation, signs Signs, now time.Time) podresources.View {
	d.date(allocations, signs, now)
	d.view.Settled = later(d.view.At, now.Add(-maxPending))
	return d.view
}

// date makes the view.
func (d *Dates) date(allocations []podresources.Allocation, signs Signs, now time.Time) {
	when := changeTimes{
		after: d.view.At, until: later(d.view.At, signs.At), now: now, changes: signs.Changes, watched: signs.Watched,
	}
	if d.resumed && !signs.At.After(d.view.At) {
		return
	}
	d.resumed = false
	if d.unchanged(allocations, &when, now) {
		d.view.At = when.until
		return
	}
	if d.holds == nil {
		d.holds = map[holdKey]*dated{}
	}
	d.calls++
	d.waiting = false
	all := slices.Clone(allocations)
	view := podresources.View{At: when.until, Allocations: all}
	withheld := map[int]bool{}
	for i := range all {
		if shown, from := d.dateHolders(&all[i], &when, now); !shown {
			d.withhold(&view, all[i].Device, from)
			withheld[i] = true
		}
	}
	if len(withheld) > 0 {
		view.Allocations = make([]podresources.Allocation, 0, len(all))
		for i := range all {
			if !withheld[i] {
				view.Allocations = append(view.Allocations, all[i])
			}
		}
	}
	d.end(&when, now)
	view.Ended = slices.Clone(d.ended)
	d.given, d.view = allocations, view
}

// unchanged reports whether the last view still holds.
func (d *Dates) unchanged(allocations []podresources.Allocation, when *changeTimes, now time.Time) bool {
	if d.holds == nil || d.waiting || !sameSlice(allocations, d.given) {
		return false
	}
	if len(d.ended) > 0 && now.Sub(endOf(&d.ended[0])) > keepEnded {
		return false
	}
	return !slices.ContainsFunc(when.changes, func(c podresources.Change) bool { return c.Gone && when.within(c.At) })
}

// dateHolders gives the holders of an allocation their dated holds. It returns whether the
// allocation is shown, and when the first of the holds began.
func (d *Dates) dateHolders(a *podresources.Allocation, when *changeTimes, now time.Time) (shown bool, from time.Time) {
	a.Holders = slices.Clone(a.Holders)
	shown = !a.Pending && len(a.Holders) == 0
	var holds []*dated
	for group := range groups(a.Holders) {
		h := d.hold(a, &group[0], when, now)
		for j := range group {
			group[j].Hold = h.hold
		}
		if a.Request == "" && h.resumed != nil { // the API server has not described the claim yet
			a.Admin = a.Admin || h.resumed.Admin
		}
		h.of, h.holders = a, group
		shown = shown || h.shown || !a.Pending && h.first == nil || now.Sub(h.began) >= maxPending
		if len(holds) == 0 || h.hold.From.Before(from) {
			from = h.hold.From
		}
		holds = append(holds, h)
	}
	for _, h := range holds {
		h.shown = h.shown || shown
	}
	return shown, from
}

// hold returns the dated hold of a pod.
func (d *Dates) hold(
	a *podresources.Allocation, holder *podresources.Holder, when *changeTimes, now time.Time,
) *dated {
	given := podresources.Hold{Reason: podresources.ReasonListed}
	if holder.Hold != nil {
		given = *holder.Hold
	}
	key := d.keyOf(a, holder)
	h := d.holds[key]
	if h == nil {
		h = d.begin(&key, &given, a, holder, when, now)
		d.holds[key] = h
	}
	if h.first != nil && holder.UID != "" && !h.shown {
		d.dateAgain(h, a, holder, when)
	}
	h.call = d.calls
	left := when.left(a, holder)
	if left.Before(h.hold.From) || left.IsZero() {
		left = h.hold.Left
	}
	prepared := h.hold.Prepared
	if a.State == podresources.StatePrepared && !h.ready {
		h.ready, prepared = true, when.prepared(a, h)
	}
	if given.Wanted.IsZero() || !h.hold.Wanted.IsZero() && h.hold.Wanted.Before(given.Wanted) {
		given.Wanted = h.hold.Wanted
	}
	if h.hold.Reason != given.Reason || !h.hold.Since.Equal(given.Since) || !h.hold.Left.Equal(left) ||
		!h.hold.Prepared.Equal(prepared) || !h.hold.Wanted.Equal(given.Wanted) {
		h.hold = &podresources.Hold{
			From: h.hold.From, FromDoubt: h.hold.FromDoubt, Left: left, Reason: given.Reason, Since: given.Since,
			Wanted: given.Wanted, Prepared: prepared,
		}
	}
	return h
}

// begin dates the begin of a hold that no call had before, in given.
func (d *Dates) begin(
	key *holdKey, given *podresources.Hold, a *podresources.Allocation, holder *podresources.Holder, when *changeTimes,
	now time.Time,
) *dated {
	if came := when.cameFirst(holder); given.Wanted.IsZero() || !came.IsZero() && came.Before(given.Wanted) {
		given.Wanted = came
	}
	h := &dated{began: now, hold: given}
	if whole := d.ofWhole(*key); whole != nil {
		given.From, given.FromDoubt, given.Left = whole.hold.From, whole.hold.FromDoubt, whole.hold.Left
		given.Prepared = whole.hold.Prepared
		h.began, h.shown, h.ready, whole.told = whole.began, whole.shown, whole.ready, true
		return h
	}
	given.From, given.FromDoubt = when.began(a, holder, when.notBefore(given))
	given.From = later(given.From, d.lastEnd(key))
	if when.watched && holder.UID == "" && !when.after.IsZero() {
		first := *when
		h.first = &first
	}
	return h
}

// dateAgain dates the begin of a hold that was not shown yet by the signs of its pod, whose UID has
// become known.
func (d *Dates) dateAgain(h *dated, a *podresources.Allocation, holder *podresources.Holder, when *changeTimes) {
	first, hold := *h.first, *h.hold
	h.first, first.changes = nil, when.changes
	key := d.keyOf(a, holder)
	hold.From, hold.FromDoubt = first.began(a, holder, time.Time{})
	hold.From = later(hold.From, d.lastEnd(&key))
	h.hold = &hold
}

// keyOf returns the key of a hold. That a UID becomes known, or unknown, changes no hold.
func (d *Dates) keyOf(a *podresources.Allocation, holder *podresources.Holder) holdKey {
	key := holdKey{a.Device, a.Claim, a.ShareID, holder.Pod, holder.UID}
	if d.holds[key] != nil {
		return key
	}
	if holder.UID == "" {
		for other := range d.holds {
			unknown := other
			if unknown.uid = ""; unknown == key {
				return other
			}
		}
		return key
	}
	unknown := key
	unknown.uid = ""
	if before := d.holds[unknown]; before != nil {
		delete(d.holds, unknown)
		d.holds[key] = before
	}
	return key
}

// lastEnd returns the end of the hold of that key that ended last, zero if there is none: a hold
// that comes back does not begin before. It may come back before its UID is known again.
func (d *Dates) lastEnd(key *holdKey) time.Time {
	for i := len(d.ended) - 1; i >= 0; i-- {
		a := &d.ended[i]
		if h := &a.Holders[0]; a.Device == key.device && a.Claim == key.claim && a.ShareID == key.share &&
			h.Pod == key.pod && (h.UID == key.uid || key.uid == "") {
			return h.Hold.To
		}
	}
	return time.Time{}
}

// ofWhole returns the hold of the whole device, without a share, in whose place that of a share
// comes: kubelets before 1.35 do not tell shares apart, and the API server does a moment later.
func (d *Dates) ofWhole(key holdKey) *dated {
	if key.share == "" {
		return nil
	}
	key.share = ""
	if whole := d.holds[key]; whole != nil && whole.call < d.calls {
		return whole
	}
	return nil
}

func (d *Dates) withhold(view *podresources.View, device driver.ID, from time.Time) {
	d.waiting = true
	if view.Waiting == nil {
		view.Waiting = map[driver.ID]time.Time{}
	}
	if since, twice := view.Waiting[device]; !twice || from.Before(since) {
		view.Waiting[device] = from
	}
}

// end ends the holds that the present call does not have, and forgets those that ended a while ago.
func (d *Dates) end(when *changeTimes, now time.Time) {
	old := slices.IndexFunc(d.ended, func(a podresources.Allocation) bool { return now.Sub(endOf(&a)) <= keepEnded })
	if old < 0 {
		old = len(d.ended)
	}
	d.ended = slices.Delete(d.ended, 0, old)
	for i := range d.ended {
		when.unprepare(&d.ended[i])
	}
	for _, key := range slices.SortedFunc(maps.Keys(d.holds), holdKey.compare) {
		h := d.holds[key]
		if h.call == d.calls {
			continue
		}
		delete(d.holds, key)
		if h.of == nil && when.gone(h.resumed.allocation()) != nil {
			h.of, h.holders = h.resumed.allocation()
		}
		if h.told || h.of == nil {
			continue
		}
		ended := *h.hold
		to, doubt := when.ended(h.of, &h.holders[0])
		ended.To, ended.ToDoubt = later(ended.From, to), doubt
		if ended.Reason == podresources.ReasonNoAnswer || ended.Reason == podresources.ReasonRestarted {
			silent := ended.To.Sub(later(ended.From, ended.Since)) // it may have ended when the kubelet ceased to say
			ended.ToDoubt.Early = max(doubt.Early, silent)
		}
		a := *h.of
		a.Holders = slices.Clone(h.holders)
		for i := range a.Holders {
			a.Holders[i].Hold = &ended
		}
		when.unprepare(&a)
		d.ended = append(d.ended, a)
	}
	slices.SortStableFunc(d.ended, func(a, b podresources.Allocation) int { return endOf(&a).Compare(endOf(&b)) })
}

// allocation returns what the hold is of, as far as that is known, and its holder.
func (r *Resumed) allocation() (*podresources.Allocation, []podresources.Holder) {
	a := podresources.Allocation{
		Device: r.Device, Claim: r.Claim, ShareID: r.Share, ClaimUID: r.ClaimUID, Admin: r.Admin,
	}
	return &a, []podresources.Holder{{Pod: r.Pod, UID: r.UID}}
}

// endOf returns the end of an allocation of View.Ended.
func endOf(a *podresources.Allocation) time.Time { return a.Holders[0].Hold.To }

// groups yields the holders of each pod.
func groups(holders []podresources.Holder) func(yield func([]podresources.Holder) bool) {
	return func(yield func([]podresources.Holder) bool) {
		for i := 0; i < len(holders); {
			n := 1
			for i+n < len(holders) && holders[i+n].Pod == holders[i].Pod && holders[i+n].UID == holders[i].UID {
				n++
			}
			if !yield(holders[i : i+n : i+n]) {
				return
			}
			i += n
		}
	}
}

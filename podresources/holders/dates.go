package holders

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Dates records when each pod began to hold each device. The zero value is ready to use. It is not
// safe for concurrent use.
type Dates struct {
	holds   map[holdKey][]*dated      // those that have not ended; for pods of one name there may be several
	ended   []podresources.Allocation // oldest first
	calls   int
	lastID  podresources.HoldID
	given   []podresources.Allocation // the argument of the last call
	view    podresources.View         // its result
	resumed bool                      // no answer since Resume
}

// holdKey identifies the hold of a share of a device, by a pod of a name, through a claim or, if
// the claim is empty, through a device plugin.
type holdKey struct {
	device driver.ID
	claim  podresources.Claim
	share  string
	pod    podresources.Pod
}

func keyOf(a *podresources.Allocation, holder *podresources.Holder) holdKey {
	return holdKey{a.Device, a.Claim, a.ShareID, holder.Pod}
}

// dated is a hold that has not ended.
type dated struct {
	uid      string // of the pod; empty: unknown
	hold     *podresources.Hold
	began    time.Time // time of the first call that had it
	shown    bool      // it was in a view
	call     int       // the last call that had it
	replaced bool      // holds of shares have replaced it
	ready    bool      // its devices were prepared at an earlier call

	// first has the times of the first call that had it, if the pods are watched and the pod's UID is
	// not known yet; else nil.
	first *changeTimes

	of      *podresources.Allocation // of the last call; nil: it is resumed, and no call had it yet
	holders []podresources.Holder    // the holders in it that are this pod
	resumed *podresources.Allocation // nil: it began in this process
}

// Resume continues the holds of an earlier process, which knew the holders until the given time. It
// must be called before Date. Holds that the kubelet's first answer has continue; others in that
// answer began after that time. A hold that the answer lacks has ended if a sign shows when;
// otherwise it is forgotten. Until that answer, Date returns no holders. A hold with admin access
// keeps it until the claim has been read. Each hold is an allocation with one holder.
func (d *Dates) Resume(holds []podresources.Allocation, until time.Time) {
	d.holds = map[holdKey][]*dated{}
	for i := range holds {
		a, holder := &holds[i], &holds[i].Holders[0]
		h := &dated{uid: holder.UID, hold: holder.Hold, began: until, shown: true, resumed: a}
		key := keyOf(a, holder)
		d.holds[key] = append(d.holds[key], h)
		d.lastID = max(d.lastID, holder.Hold.ID)
	}
	d.resumed, d.view.At = true, until
}

// Date returns the view of these allocations, given the signs of changes since the previous call.
// It keeps Reason and Since of the holders' holds and sets the times. A holder without a hold has
// the reason listed. allocations must be sorted, and must not be changed afterwards; now must not
// go back. While nothing changes, the view has the same slices.
//
// A hold began, or ended:
//
//   - when its pod's cgroup or its CDI spec appeared or disappeared, if that was between the At of
//     the two calls;
//   - otherwise in the middle between these, or at the second one if they are more than maxGuess
//     apart or the devices are not prepared yet: then the hold is known from objects of the API,
//     which arrive when they change. A hold that is known only from objects does not begin before
//     the pod's first object arrived: the From of the given hold.
//
// If a sign is up to maxPreparation older than an answer that did not have the pod yet, the hold
// begins at that answer. Similarly, if watched pods have a sign of the end shortly before the last
// answer with the pod, the hold ends at that answer. If the sign appeared while the kubelet
// produced the first answer with the pod, the hold begins at the At of the second call. An
// allocation that is not described yet (Pending), or whose pod's UID a watch has not reported yet,
// is withheld for up to maxPending; its device is in Waiting meanwhile.
func (d *Dates) Date(allocations []podresources.Allocation, signs Signs, now time.Time) podresources.View {
	d.date(allocations, signs, now)
	d.view.Settled = driver.Later(d.view.At, now.Add(-maxPending))
	return d.view
}

// date makes the view.
func (d *Dates) date(allocations []podresources.Allocation, signs Signs, now time.Time) {
	when := changeTimes{Signs: signs, after: d.view.At, until: driver.Later(d.view.At, signs.At), now: now}
	if d.resumed && !signs.At.After(d.view.At) {
		return
	}
	d.resumed = false
	if d.unchanged(allocations, &when, now) {
		d.view.At = when.until
		return
	}
	if d.holds == nil {
		d.holds = map[holdKey][]*dated{}
	}
	when.index()
	d.calls++
	all := slices.Clone(allocations)
	view := podresources.View{At: when.until, Allocations: make([]podresources.Allocation, 0, len(all))}
	for i := range all {
		shown, from := d.dateHolders(&all[i], &when, now)
		if shown {
			view.Allocations = append(view.Allocations, all[i])
			continue
		}
		if view.Waiting == nil {
			view.Waiting = map[driver.ID]time.Time{}
		}
		if since, twice := view.Waiting[all[i].Device]; !twice || from.Before(since) {
			view.Waiting[all[i].Device] = from
		}
	}
	d.end(&when, now)
	view.Ended = slices.Clone(d.ended)
	d.given, d.view = allocations, view
}

// unchanged reports whether the last view still holds.
func (d *Dates) unchanged(allocations []podresources.Allocation, when *changeTimes, now time.Time) bool {
	if d.holds == nil || d.view.Waiting != nil || !driver.SameSlice(allocations, d.given) {
		return false
	}
	if len(d.ended) > 0 && now.Sub(endOf(&d.ended[0])) > keepEnded {
		return false
	}
	return !slices.ContainsFunc(when.Changes, func(c podresources.Change) bool { return c.Gone && when.within(c.At) })
}

// dateHolders sets the dated holds of an allocation's holders. It returns whether the allocation is
// shown, and when the first of the holds began.
func (d *Dates) dateHolders(a *podresources.Allocation, when *changeTimes, now time.Time) (shown bool, from time.Time) {
	a.Holders = slices.Clone(a.Holders)
	shown = !a.Pending && len(a.Holders) == 0
	var holds []*dated
	for group := range groups(a.Holders) {
		h := d.hold(a, &group[0], when, now)
		for j := range group {
			group[j].Hold = h.hold
		}
		if a.Request == "" && h.resumed != nil { // the claim has not been read yet
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
	h := d.find(keyOf(a, holder), holder.UID)
	if h == nil {
		h = d.begin(&given, a, holder, when, now)
	}
	if h.first != nil && holder.UID != "" && !h.shown {
		d.dateAgain(h, a, holder, when)
	}
	h.call = d.calls
	after := *h.hold
	after.Reason, after.Since = given.Reason, given.Since
	if ends := when.ends(a, holder.UID); len(ends) > 0 && !ends[len(ends)-1].At.Before(after.From) {
		after.Left = ends[len(ends)-1].At // the pod's processes, or the claim's CDI spec, have disappeared
	}
	if a.State == podresources.StatePrepared && !h.ready {
		h.ready, after.Prepared = true, when.prepared(a, h)
	}
	if wanted := given.Wanted; after.Wanted.IsZero() || !wanted.IsZero() && wanted.Before(after.Wanted) {
		after.Wanted = wanted
	}
	if after != *h.hold {
		changed := after
		h.hold = &changed
	}
	return h
}

// find returns the hold of a pod, nil if it has none. A hold continues if the UID of its pod
// becomes known or unknown: the newest one, if pods of the same name hold the device.
func (d *Dates) find(key holdKey, uid string) *dated {
	var found *dated
	for _, h := range d.holds[key] {
		switch {
		case h.uid == uid:
			return h
		case uid == "" && (found == nil || h.hold.ID > found.hold.ID), uid != "" && h.uid == "":
			found = h
		}
	}
	if found != nil && uid != "" {
		found.uid = uid
	}
	return found
}

// begin dates the start of a new hold. It sets the times of given.
func (d *Dates) begin(
	given *podresources.Hold, a *podresources.Allocation, holder *podresources.Holder, when *changeTimes, now time.Time,
) *dated {
	came := when.of(holder.UID, nil, false) // its cgroup
	if len(came) > 0 && (given.Wanted.IsZero() || came[0].At.Before(given.Wanted)) {
		given.Wanted = came[0].At
	}
	key := keyOf(a, holder)
	h := &dated{uid: holder.UID, began: now, hold: given}
	d.holds[key] = append(d.holds[key], h)
	if whole := d.ofWhole(key, holder.UID); whole != nil {
		if given.ID = whole.hold.ID; whole.replaced {
			given.ID, given.Of = d.nextID(), whole.hold.ID
		}
		given.From, given.FromDoubt, given.Left = whole.hold.From, whole.hold.FromDoubt, whole.hold.Left
		given.Prepared = whole.hold.Prepared
		h.began, h.shown, h.ready, whole.replaced = whole.began, whole.shown, whole.ready, true
		return h
	}
	given.ID = d.nextID()
	seen := given.From
	if seen.IsZero() && when.Watched { // its first object, which may have arrived while the kubelet answered
		seen = driver.Earlier(given.Wanted, when.until)
	}
	given.From, given.FromDoubt = when.began(a, holder, seen)
	given.From = driver.Later(given.From, d.lastEnd(key, holder.UID))
	if when.Watched && holder.UID == "" && !when.after.IsZero() {
		first := *when
		h.first = &first
	}
	return h
}

func (d *Dates) nextID() podresources.HoldID {
	d.lastID++
	return d.lastID
}

// dateAgain dates the start of a hold again, by the signs of its pod, whose UID has become known.
// The hold has not been shown yet.
func (d *Dates) dateAgain(h *dated, a *podresources.Allocation, holder *podresources.Holder, when *changeTimes) {
	first, hold := *h.first, *h.hold
	h.first, first.Changes, first.by = nil, when.Changes, when.by
	hold.From, hold.FromDoubt = first.began(a, holder, time.Time{})
	hold.From = driver.Later(hold.From, d.lastEnd(keyOf(a, holder), holder.UID))
	h.hold = &hold
}

// lastEnd returns the end of the last ended hold of the pod, zero if there is none: the next hold
// does not begin before it. The UID of the next hold may not be known yet.
func (d *Dates) lastEnd(key holdKey, uid string) time.Time {
	for i := range slices.Backward(d.ended) {
		h := &d.ended[i].Holders[0]
		if keyOf(&d.ended[i], h) == key && (h.UID == uid || uid == "") {
			return h.Hold.To
		}
	}
	return time.Time{}
}

// end ends the holds that the present call does not have, and forgets those that ended more than
// keepEnded ago.
func (d *Dates) end(when *changeTimes, now time.Time) {
	d.ended = slices.DeleteFunc(d.ended, func(a podresources.Allocation) bool { return now.Sub(endOf(&a)) > keepEnded })
	for i := range d.ended {
		when.unprepare(&d.ended[i])
	}
	var over []*dated
	for key, holds := range d.holds {
		d.holds[key] = slices.DeleteFunc(holds, func(h *dated) bool {
			if h.call == d.calls {
				return false
			}
			if h.of == nil && len(when.ends(h.resumed, h.uid)) > 0 {
				h.of, h.holders = h.resumed, h.resumed.Holders
			}
			if !h.replaced && h.of != nil {
				over = append(over, h)
			}
			return true
		})
		if len(d.holds[key]) == 0 {
			delete(d.holds, key)
		}
	}
	slices.SortFunc(over, func(a, b *dated) int {
		return cmp.Or(a.of.Compare(*b.of), a.holders[0].Pod.Compare(b.holders[0].Pod), strings.Compare(a.uid, b.uid))
	})
	for _, h := range over {
		d.ended = append(d.ended, h.end(when))
	}
	slices.SortStableFunc(d.ended, func(a, b podresources.Allocation) int { return endOf(&a).Compare(endOf(&b)) })
}

// end returns the ended hold.
func (h *dated) end(when *changeTimes) podresources.Allocation {
	hold := *h.hold
	to, doubt := when.ended(h.of, &h.holders[0])
	hold.To, hold.ToDoubt = driver.Later(hold.From, to), doubt
	if hold.Reason == podresources.ReasonNoAnswer || hold.Reason == podresources.ReasonRestarted {
		// It may have ended at any time since the kubelet's last answer.
		silent := hold.To.Sub(driver.Later(hold.From, hold.Since))
		hold.ToDoubt.Early = max(doubt.Early, silent)
	}
	a := *h.of
	setHold(&a, h.holders, hold)
	when.unprepare(&a)
	return a
}

// endOf returns the end of an allocation in View.Ended.
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

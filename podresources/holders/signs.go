package holders

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Signs are the times of observed changes.
type Signs struct {
	// At is the time until which the holders are known. If it is not later than at the previous call,
	// only Changes are new.
	At time.Time
	// Changes are the times at which pods and CDI specs appeared and disappeared, oldest first.
	Changes []podresources.Change
	// Watched reports that Changes has the end of each pod, possibly a moment later.
	Watched bool
}

// changeTimes determines when a hold began or ended between two times at which the holders were
// known: see [Dates.Date].
type changeTimes struct {
	Signs
	after, until time.Time
	now          time.Time
	by           map[string][]int // positions in Changes, by UIDs of pods and by CDI names
}

// index sets by.
func (c *changeTimes) index() {
	c.by = make(map[string][]int, len(c.Changes))
	for i := range c.Changes {
		if uid := c.Changes[i].PodUID; uid != "" {
			c.by[uid] = append(c.by[uid], i)
			continue
		}
		for _, name := range c.Changes[i].CDI {
			c.by[name] = append(c.by[name], i)
		}
	}
}

// of returns the changes of a pod, and of the CDI devices of an allocation, oldest first.
func (c *changeTimes) of(uid string, cdi []string, gone bool) (out []*podresources.Change) {
	found := slices.Clip(c.by[uid])
	for _, name := range cdi {
		found = append(found, c.by[name]...)
	}
	slices.Sort(found)
	for _, i := range slices.Compact(found) {
		if c.Changes[i].Gone == gone {
			out = append(out, &c.Changes[i])
		}
	}
	return out
}

// began returns when the hold began, with the possible error. Without a sign, it is not before
// seen, the time of the pod's first object, which may be later than the kubelet's last answer.
func (c *changeTimes) began(
	a *podresources.Allocation, holder *podresources.Holder, seen time.Time,
) (time.Time, podresources.Doubt) {
	if c.after.IsZero() {
		return time.Time{}, podresources.Doubt{} // before the first answer
	}
	var last, sign time.Time
	var doubt podresources.Doubt // of last
	for _, change := range c.of(holder.UID, a.CDI, false) {
		switch {
		case c.within(change.At) && !change.At.After(c.until):
			last, sign, doubt = change.At, change.At, change.Doubt // they are ordered by time: the last one counts
		case c.within(change.At) && a.State != podresources.StateAllocated: // it appeared while the kubelet answered
			last, sign, doubt = c.until, c.until, podresources.Doubt{Late: change.At.Sub(c.until)}
		case !change.At.After(c.after):
			sign = change.At
			if c.after.Sub(change.At) <= maxPreparation {
				last = c.after
			}
		}
	}
	if !last.IsZero() && last.Equal(sign) {
		return last, doubtOf(doubt)
	}
	from := last
	switch {
	case !last.IsZero():
	case a.State == podresources.StateAllocated:
		from = driver.Later(c.until, seen)
	default:
		from = driver.Later(c.middle(), seen)
	}
	earliest := c.after
	if !sign.IsZero() && sign.Before(earliest) {
		earliest = sign
	}
	return from, podresources.Doubt{Early: from.Sub(earliest), Late: max(0, c.until.Sub(from))}
}

// ended returns when the hold ended, with the possible error.
func (c *changeTimes) ended(
	a *podresources.Allocation, holder *podresources.Holder,
) (time.Time, podresources.Doubt) {
	if ends := c.ends(a, holder.UID); len(ends) > 0 {
		return ends[0].At, doubtOf(ends[0].Doubt)
	}
	to := c.until
	switch left := holder.Hold.Left; {
	case !c.Watched:
		to = c.middle()
	case !left.IsZero() && c.after.Sub(left) <= maxPreparation:
		to = c.after
	}
	return to, podresources.Doubt{Early: to.Sub(c.after), Late: c.until.Sub(to)}
}

// ends returns the signs of the end of a pod's hold.
func (c *changeTimes) ends(a *podresources.Allocation, uid string) []*podresources.Change {
	return slices.DeleteFunc(c.of(uid, a.CDI, true), func(of *podresources.Change) bool { return !c.within(of.At) })
}

// doubtOf returns the possible error of the time of a sign.
func doubtOf(sign podresources.Doubt) podresources.Doubt {
	return podresources.Doubt{Early: max(signDoubt, sign.Early), Late: max(signDoubt, sign.Late)}
}

// prepared returns when the devices of a hold were prepared, which this call is the first to have
// prepared. It is the time at which their CDI spec appeared or, without one, at which the kubelet
// listed them. It is zero if that is uncertain by more than maxGuess.
func (c *changeTimes) prepared(a *podresources.Allocation, h *dated) (last time.Time) {
	if h.hold.From.IsZero() {
		return time.Time{} // before the first answer
	}
	for _, change := range c.of("", a.CDI, false) {
		if !change.At.After(c.now) {
			last = change.At
		}
	}
	resumed := h.of == nil && h.began.Before(c.now)
	if !last.IsZero() || resumed || c.until.Sub(c.after) > maxGuess {
		return last
	}
	return driver.Later(c.until, h.hold.From)
}

// unprepare records when the CDI spec of an ended allocation was removed, if it was.
func (c *changeTimes) unprepare(a *podresources.Allocation) {
	h := *a.Holders[0].Hold
	if !h.Unprepared.IsZero() {
		return
	}
	for _, change := range c.of("", a.CDI, true) {
		if !change.At.Before(h.From) {
			h.Unprepared = change.At
		}
	}
	if !h.Unprepared.IsZero() {
		setHold(a, a.Holders, h)
	}
}

// setHold sets the holders of an allocation, which have one hold. An earlier view may have the old
// slice.
func setHold(a *podresources.Allocation, holders []podresources.Holder, hold podresources.Hold) {
	a.Holders = slices.Clone(holders)
	for i := range a.Holders {
		a.Holders[i].Hold = &hold
	}
}

// within reports whether a change happened since the last view. An end may be later than until: it
// is known when its event arrives.
func (c *changeTimes) within(t time.Time) bool { return t.After(c.after) && !t.After(c.now) }

// middle returns the middle of the time since the last view, or its end if it is longer than
// maxGuess.
func (c *changeTimes) middle() time.Time {
	if gap := c.until.Sub(c.after); gap > 0 && gap <= maxGuess {
		return c.after.Add(gap / 2)
	}
	return c.until
}

// changeLog has the changes of the last changeMemory, at most maxChanges, ordered by time.
type changeLog struct{ all []podresources.Change }

// add records a change, and reports whether it is new. Changes may be added in any order. An equal
// change of the same pod or CDI spec within sameChange is the same change: the first time is kept.
// A repeated removal is new if the kubelet was asked in between: its answer may still list the pod.
func (l *changeLog) add(c podresources.Change, asked time.Time) bool {
	i := len(l.all)
	for i > 0 && l.all[i-1].At.After(c.At) {
		i--
	}
	if l.repeats(i, &c, asked) {
		return false
	}
	all := slices.Insert(l.all, i, c)
	oldest := all[len(all)-1].At.Add(-changeMemory)
	drop := max(0, len(all)-maxChanges)
	for all[drop].At.Before(oldest) {
		drop++
	}
	l.all = slices.Delete(all, 0, drop)
	return true
}

// repeats reports whether c equals the last change, before index i, of the same pod or CDI spec.
func (l *changeLog) repeats(i int, c *podresources.Change, asked time.Time) bool {
	for i--; i >= 0 && c.At.Sub(l.all[i].At) <= sameChange; i-- {
		if before := &l.all[i]; before.PodUID == c.PodUID && slices.Equal(before.CDI, c.CDI) {
			asksBetween := before.At.Before(asked) && asked.Before(c.At)
			return before.Gone == c.Gone && (!c.Gone || !asksBetween)
		}
	}
	return false
}

// since returns the changes after a time, oldest first.
func (l *changeLog) since(t time.Time) []podresources.Change {
	i := len(l.all)
	for i > 0 && l.all[i-1].At.After(t) {
		i--
	}
	return slices.Clone(l.all[i:])
}

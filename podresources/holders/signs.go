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
	after, until time.Time
	now          time.Time
	changes      []podresources.Change
	watched      bool
}

// notBefore returns a time before which the hold did not begin, zero if there is none. A hold that
// is known only from objects, or whose pod is watched, did not begin before the pod's first object
// arrived. If that was while the kubelet answered, it is the At of the second call.
func (c *changeTimes) notBefore(given *podresources.Hold) time.Time {
	switch {
	case !given.From.IsZero() || !c.watched:
		return given.From
	case given.Wanted.After(c.until):
		return c.until
	default:
		return given.Wanted
	}
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
	for i := range c.changes {
		change := &c.changes[i]
		if change.Gone || !concerns(change, a, holder) {
			continue
		}
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
		return last, podresources.Doubt{Early: max(signDoubt, doubt.Early), Late: max(signDoubt, doubt.Late)}
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
	if change := c.gone(a, []podresources.Holder{*holder}); change != nil {
		return change.At, podresources.Doubt{
			Early: max(signDoubt, change.Doubt.Early), Late: max(signDoubt, change.Doubt.Late),
		}
	}
	to := c.until
	switch left := holder.Hold.Left; {
	case !c.watched:
		to = c.middle()
	case !left.IsZero() && c.after.Sub(left) <= maxPreparation:
		to = c.after
	}
	return to, podresources.Doubt{Early: to.Sub(c.after), Late: c.until.Sub(to)}
}

// gone returns the first sign of the end of the hold, nil if there is none.
func (c *changeTimes) gone(a *podresources.Allocation, holder []podresources.Holder) *podresources.Change {
	for i := range c.changes {
		if change := &c.changes[i]; change.Gone && c.within(change.At) && concerns(change, a, &holder[0]) {
			return change
		}
	}
	return nil
}

// left returns the last time at which the pod's processes or the claim's CDI spec disappeared, zero
// if they did not.
func (c *changeTimes) left(a *podresources.Allocation, holder *podresources.Holder) time.Time {
	for i := len(c.changes) - 1; i >= 0; i-- {
		if change := &c.changes[i]; change.Gone && c.within(change.At) && concerns(change, a, holder) {
			return change.At
		}
	}
	return time.Time{}
}

// cameFirst returns when the pod's cgroup first appeared, zero if that is older than the changes.
func (c *changeTimes) cameFirst(holder *podresources.Holder) time.Time {
	for i := range c.changes {
		if change := &c.changes[i]; !change.Gone && change.PodUID != "" && change.PodUID == holder.UID {
			return change.At
		}
	}
	return time.Time{}
}

// prepared returns when the devices of a hold were prepared, which this call is the first to have
// prepared. It is the time at which their CDI spec appeared or, without one, at which the kubelet
// listed them. It is zero if that is uncertain by more than maxGuess.
func (c *changeTimes) prepared(a *podresources.Allocation, h *dated) time.Time {
	if h.hold.From.IsZero() {
		return time.Time{} // before the first answer
	}
	for _, change := range slices.Backward(c.changes) {
		if !change.Gone && change.PodUID == "" && !change.At.After(c.now) && concerns(&change, a, nil) {
			return change.At
		}
	}
	resumed := h.of == nil && h.began.Before(c.now)
	if resumed || c.until.Sub(c.after) > maxGuess {
		return time.Time{}
	}
	return driver.Later(c.until, h.hold.From)
}

// unprepare records when the CDI spec of an ended allocation was removed, if it was.
func (c *changeTimes) unprepare(a *podresources.Allocation) {
	before := a.Holders[0].Hold
	if !before.Unprepared.IsZero() {
		return
	}
	for i := range c.changes {
		change := &c.changes[i]
		if !change.Gone || change.PodUID != "" || change.At.Before(before.From) || !concerns(change, a, nil) {
			continue
		}
		h := *before
		h.Unprepared = change.At
		a.Holders = slices.Clone(a.Holders) // an earlier view has the old slice
		for n := range a.Holders {
			a.Holders[n].Hold = &h
		}
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

// concerns reports whether a change is one of the pod, or of a CDI device of the allocation.
func concerns(c *podresources.Change, a *podresources.Allocation, holder *podresources.Holder) bool {
	if c.PodUID != "" {
		return holder.UID == c.PodUID
	}
	return slices.ContainsFunc(a.CDI, func(name string) bool { return slices.Contains(c.CDI, name) })
}

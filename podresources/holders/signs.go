package holders

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Signs are the times at which something was seen to begin or to end.
type Signs struct {
	// At is the time until which it is known who holds what. If it is not after that of the call
	// before, nothing new is known but what Changes say.
	At time.Time
	// Changes are the times at which pods and CDI specs were seen to come and go, oldest first.
	Changes []podresources.Change
	// Watched reports that the end of each pod is in Changes, possibly a moment later.
	Watched bool
}

// changeTimes determines when, between two times at which it was known who held what, a pod began
// or ended to hold a device: see [Dates.Date].
type changeTimes struct {
	after, until time.Time
	now          time.Time
	changes      []podresources.Change
	watched      bool
}

// notBefore returns when the pod of a hold was seen first, if it did not hold before: its objects
// alone say that it holds, or the kubelet gave its object before the answer. One that came while
// the kubelet answered means the second call's At.
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

// began returns when the pod began to hold, and how far that may be off; without a sign, not before
// its first object was seen, which may be later than the last answer of the kubelet.
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
			last, sign, doubt = change.At, change.At, change.Doubt // in order of time: the last one counts
		case c.within(change.At) && a.State != podresources.StateAllocated: // it came while the kubelet answered
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
		from = later(c.until, seen)
	default:
		from = later(c.middle(), seen)
	}
	earliest := c.after
	if !sign.IsZero() && sign.Before(earliest) {
		earliest = sign
	}
	return from, podresources.Doubt{Early: from.Sub(earliest), Late: max(0, c.until.Sub(from))}
}

// ended returns when the pod ended to hold, and how far that may be off.
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

// gone returns the first sign that the pod ended to hold, nil if there is none.
func (c *changeTimes) gone(a *podresources.Allocation, holder []podresources.Holder) *podresources.Change {
	for i := range c.changes {
		if change := &c.changes[i]; change.Gone && c.within(change.At) && concerns(change, a, &holder[0]) {
			return change
		}
	}
	return nil
}

// left returns when the pod's processes, or the claim's CDI spec, were seen to go last.
func (c *changeTimes) left(a *podresources.Allocation, holder *podresources.Holder) time.Time {
	for i := len(c.changes) - 1; i >= 0; i-- {
		if change := &c.changes[i]; change.Gone && c.within(change.At) && concerns(change, a, holder) {
			return change.At
		}
	}
	return time.Time{}
}

// cameFirst returns when the pod's cgroup came first, as far as the changes reach back.
func (c *changeTimes) cameFirst(holder *podresources.Holder) time.Time {
	for i := range c.changes {
		if change := &c.changes[i]; !change.Gone && change.PodUID != "" && change.PodUID == holder.UID {
			return change.At
		}
	}
	return time.Time{}
}

// prepared returns when the devices of a hold, which are prepared since this call, were: when their
// CDI spec came, else when the kubelet named them. It is zero if that is not known to maxGuess.
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
	return later(c.until, h.hold.From)
}

// unprepare notes when the CDI spec of an allocation that ended was removed, if it was.
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
		a.Holders = slices.Clone(a.Holders) // an earlier view has the others
		for n := range a.Holders {
			a.Holders[n].Hold = &h
		}
	}
}

// within reports whether a change is of the time since the last view. An end may be later than
// until: it is known when the event arrives.
func (c *changeTimes) within(t time.Time) bool { return t.After(c.after) && !t.After(c.now) }

// middle returns the middle of the time since the last view, or its end where that is long.
func (c *changeTimes) middle() time.Time {
	if gap := c.until.Sub(c.after); gap > 0 && gap <= maxGuess {
		return c.after.Add(gap / 2)
	}
	return c.until
}

// concerns reports whether a change is of the pod, or of a CDI device of the allocation.
func concerns(c *podresources.Change, a *podresources.Allocation, holder *podresources.Holder) bool {
	if c.PodUID != "" {
		return holder.UID == c.PodUID
	}
	return slices.ContainsFunc(a.CDI, func(name string) bool { return slices.Contains(c.CDI, name) })
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

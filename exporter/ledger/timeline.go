package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// timeline is who held a device when: segments in order of time, each until the next begins. The
// first begins at the zero time; the last is open.
type timeline []segment

// segment is a span of time in which the holders and their portions did not change. Both lists are
// empty for a free device. Otherwise the weights of each list sum to 1, and the uses of the claims
// and the unattributed part sum to 1.
type segment struct {
	from         time.Time
	claims       []portion
	pods         []portion
	unattributed join.Use
	measured     bool // the uses are not the weights but what processes, or own CPUs, used
}

type portion struct {
	account *account
	weight  float64
	use     join.Use
	own     float64 // the part of the device that could be used: 1, less for own CPUs, or unknownOwn
}

// unknownOwn stands for a part of a group of CPUs of which it is unknown which CPUs these are. It
// is no field of its own, since timelines have many portions.
const unknownOwn = -1

// setUnattributed sets what the claims do not use. Rounding errors are not unattributed. Claims
// whose parts are of different ticks may have more than the device together: then each has less, in
// proportion.
func (s *segment) setUnattributed() {
	var used join.Use
	for _, p := range s.claims {
		used.Add(p.use)
	}
	for b, all := range used {
		const rounding = 1e-12
		s.unattributed[b] = 0
		switch {
		case all > 1+rounding:
			scale(s.claims, b, 1/all)
			scale(s.pods, b, 1/all)
		case all < 1-rounding:
			s.unattributed[b] = 1 - all
		}
	}
}

// scale changes what all of the parts use in one way.
func scale(parts []portion, basis int, by float64) {
	for i := range parts {
		parts[i].use[basis] *= by
	}
}

// samePortions reports whether the holders have the same portions in both segments.
func (s *segment) samePortions(other *segment) bool {
	return slices.Equal(s.claims, other.claims) && slices.Equal(s.pods, other.pods)
}

// hasDropped reports whether an account of the segment was dropped, so that the remaining ones
// would not sum to the whole.
func (s *segment) hasDropped() bool {
	gone := func(p portion) bool { return p.account.dropped }
	return slices.ContainsFunc(s.claims, gone) || slices.ContainsFunc(s.pods, gone)
}

// maxSegments is the largest number of segments of a device. A late reading of the time before the
// oldest segment is charged to the holders of that segment.
const maxSegments = 512

// each calls f for every segment that overlaps the span, with the overlap. The overlaps make up the
// span. For an empty span it calls f with the segment at that time.
func (t timeline) each(from, to time.Time, f func(s *segment, from, to time.Time)) {
	for i := t.at(from); i < len(t); i++ {
		start, end := t[i].from, to
		if i+1 < len(t) && t[i+1].from.Before(to) {
			end = t[i+1].from
		}
		if i == 0 || start.Before(from) { // the first segment covers all time before it
			start = from
		}
		f(&t[i], start, end)
		if !end.Before(to) {
			return
		}
	}
}

// at returns the index of the segment that covers the moment.
func (t timeline) at(moment time.Time) int {
	i := len(t) - 1
	for i > 0 && t[i].from.After(moment) {
		i--
	}
	return i
}

// since returns the timeline without the segments that ended by the moment.
func (t timeline) since(moment time.Time) timeline {
	i := max(t.at(moment), len(t)-maxSegments)
	if i <= 0 {
		return t
	}
	return slices.Clone(t[i:])
}

// holdingPeriod is the span of time in which one pod held one share. A zero from means always, a
// zero to means still.
type holdingPeriod struct {
	share    int // index into the change's shares
	pod      podresources.Pod
	from, to time.Time
}

// change is the difference of a device's holders between two answers of the kubelet.
type change struct {
	shares  []join.Share // of the new answer, then those of the old answer that ended
	periods []holdingPeriod
	times   []time.Time // the times of changes, in order
}

// newChange determines the times of all changes between two answers of the kubelet.
func newChange(old, now []join.Share, d changeTimes) change {
	c := change{shares: slices.Clone(now)}
	for i, s := range now {
		before := findShare(old, s)
		for _, pod := range s.Pods {
			t := holdingPeriod{share: i, pod: pod}
			if before == nil || !slices.Contains(before.Pods, pod) {
				t.from = d.began(&s, pod)
				c.times = append(c.times, t.from)
			}
			c.periods = append(c.periods, t)
		}
	}
	for _, s := range old {
		i, after := len(c.shares), findShare(now, s)
		if after == nil {
			c.shares = append(c.shares, s)
		} else {
			i = slices.IndexFunc(now, func(n join.Share) bool { return n.Compare(s.Allocation) == 0 })
		}
		for _, pod := range s.Pods {
			if after != nil && slices.Contains(after.Pods, pod) {
				continue
			}
			t := holdingPeriod{share: i, pod: pod, to: d.ended(&s, pod)}
			c.times = append(c.times, t.to)
			c.periods = append(c.periods, t)
		}
	}
	if len(c.times) == 0 { // the same holders with other weights: from now on
		c.times = append(c.times, d.until)
	}
	slices.SortFunc(c.times, time.Time.Compare)
	c.times = slices.CompactFunc(c.times, time.Time.Equal)
	return c
}

func findShare(shares []join.Share, s join.Share) *join.Share {
	for i := range shares {
		if shares[i].Compare(s.Allocation) == 0 {
			return &shares[i]
		}
	}
	return nil
}

// at returns the shares that were held at the moment, with the pods that held them, divided.
func (c *change) at(moment time.Time) []join.Share {
	pods := make([][]podresources.Pod, len(c.shares))
	for _, t := range c.periods {
		if !t.from.After(moment) && (t.to.IsZero() || t.to.After(moment)) {
			pods[t.share] = append(pods[t.share], t.pod)
		}
	}
	var out []join.Share
	for i, s := range c.shares {
		if len(pods[i]) == 0 {
			continue
		}
		s.Pods, s.Uses = pods[i], nil // the parts of own CPUs stay what they were
		out = append(out, s)
	}
	join.Divide(out)
	return out
}

// changeTimes determines when, between two answers of the kubelet, a pod began or ended to hold a
// device:
//
// - when its cgroup or CDI spec was seen to come or go in that time;
//
// - else in the middle between the answers, or, if these are far apart, at the second: the middle
// would be a guess. The same if the devices are not prepared yet: objects of the API say so, which
// come when they change.
//
// A sign that came shortly before the first answer, which did not name the pod yet, means the time
// of that answer. If pods are watched, an end without a sign was just before the second answer: the
// sign is still to come.
type changeTimes struct {
	after, until time.Time
	changes      []podresources.Change
	watched      bool
}

// maxGuess is the longest time between two answers for which a change without a sign is put in the
// middle.
const maxGuess = 3 * time.Second

// maxPreparation is the longest time from a sign that a pod will hold a device to the kubelet's
// first answer that names it.
const maxPreparation = 2 * time.Second

func (d changeTimes) began(s *join.Share, pod podresources.Pod) time.Time {
	var last time.Time
	for _, c := range d.changes {
		if c.Gone || !concerns(c, s, pod) {
			continue
		}
		switch {
		case d.within(c.At):
			last = c.At // in order of time: the last one counts
		case !c.At.After(d.after) && d.after.Sub(c.At) <= maxPreparation:
			last = d.after
		}
	}
	if last.IsZero() && s.State == podresources.StateAllocated {
		return d.until
	}
	return d.orMiddle(last)
}

func (d changeTimes) ended(s *join.Share, pod podresources.Pod) time.Time {
	for _, c := range d.changes {
		if c.Gone && d.within(c.At) && concerns(c, s, pod) {
			return c.At
		}
	}
	if d.watched {
		return d.until
	}
	return d.orMiddle(time.Time{})
}

// departures returns the signs of ends.
func (d changeTimes) departures() []podresources.Change {
	var gone []podresources.Change
	for _, c := range d.changes {
		if c.Gone {
			gone = append(gone, c)
		}
	}
	return gone
}

func (d changeTimes) within(t time.Time) bool { return t.After(d.after) && !t.After(d.until) }

func (d changeTimes) orMiddle(t time.Time) time.Time {
	if !t.IsZero() {
		return t
	}
	if gap := d.until.Sub(d.after); gap > 0 && gap <= maxGuess {
		return d.after.Add(gap / 2)
	}
	return d.until
}

// concerns reports whether a change is of the pod, or of a CDI device of the share.
func concerns(c podresources.Change, s *join.Share, pod podresources.Pod) bool {
	if c.PodUID != "" {
		return slices.ContainsFunc(s.Holders, func(h podresources.Holder) bool { return h.Pod == pod && h.UID == c.PodUID })
	}
	return slices.ContainsFunc(s.CDI, func(name string) bool { return slices.Contains(c.CDI, name) })
}

// sameHolding reports whether two answers have the same holders with the same weights.
func sameHolding(a, b []join.Share) bool {
	return slices.EqualFunc(a, b, func(x, y join.Share) bool {
		return x.Weight == y.Weight && x.Admin == y.Admin && x.Compare(y.Allocation) == 0 && slices.Equal(x.Pods, y.Pods)
	})
}

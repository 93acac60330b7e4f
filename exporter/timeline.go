package exporter

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// timeline is who held a device when: segments in order of time, each lasting until the next begins. The first
// begins at the zero time, the last is open.
type timeline []segment

// segment is a span of time in which the holders and their parts did not change. Both lists of parts are empty for a
// free device; else the weights of each sum to 1, and what they use sums with nobody's to 1.
type segment struct {
	from      time.Time
	claims    []part
	pods      []part
	nobody    Use
	byProcess bool // the uses are not the weights, but what processes tell
}

type part struct {
	account *account
	weight  float64
	use     Use
}

// leaveRest leaves to nobody what the claims do not use. Less than rounding leaves is nothing.
func (s *segment) leaveRest() {
	s.nobody = evenly(1)
	for _, p := range s.claims {
		for b := range s.nobody {
			s.nobody[b] -= p.use[b]
		}
	}
	for b := range s.nobody {
		if s.nobody[b] < 1e-12 {
			s.nobody[b] = 0
		}
	}
}

// sameParts tells whether the holders have the same parts in both segments.
func (s *segment) sameParts(other *segment) bool {
	return slices.Equal(s.claims, other.claims) && slices.Equal(s.pods, other.pods)
}

// forgotten tells whether an account of the segment is gone, so that who is left would not make up the whole.
func (s *segment) forgotten() bool {
	gone := func(p part) bool { return p.account.gone }
	return slices.ContainsFunc(s.claims, gone) || slices.ContainsFunc(s.pods, gone)
}

// maxSegments bounds a device's timeline. What a late reading says of the time before the oldest kept segment goes to
// that segment's holders.
const maxSegments = 512

// each calls f for every segment that overlaps from..to, with the overlap; the overlaps make up the whole span. An empty
// span has the segment at to.
func (t timeline) each(from, to time.Time, f func(s *segment, from, to time.Time)) {
	for i := t.at(from); i < len(t); i++ {
		start, end := t[i].from, to
		if i+1 < len(t) && t[i+1].from.Before(to) {
			end = t[i+1].from
		}
		if i == 0 || start.Before(from) { // the first reaches back to whatever came before it
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

// tenure is the span in which one pod held one share. A zero from is "since ever", a zero to is "still".
type tenure struct {
	share    int // index into the change's shares
	pod      podresources.Pod
	from, to time.Time
}

// change is how a device's holders went from one answer of the kubelet to the next.
type change struct {
	shares  []Share // those of the new answer, then those of the old that ended
	tenures []tenure
	times   []time.Time // the moments at which something changed, in order
}

// newChange dates each coming and going between the two answers of the kubelet.
func newChange(old, now []Share, d dating) change {
	c := change{shares: slices.Clone(now)}
	for i, s := range now {
		before := findShare(old, s)
		for _, pod := range s.Pods {
			t := tenure{share: i, pod: pod}
			if before == nil || !slices.Contains(before.Pods, pod) {
				t.from = d.began(&s, pod)
				c.times = append(c.times, t.from)
			}
			c.tenures = append(c.tenures, t)
		}
	}
	for _, s := range old {
		i, after := len(c.shares), findShare(now, s)
		if after == nil {
			c.shares = append(c.shares, s)
		} else {
			i = slices.IndexFunc(now, func(n Share) bool { return n.Compare(s.Allocation) == 0 })
		}
		for _, pod := range s.Pods {
			if after != nil && slices.Contains(after.Pods, pod) {
				continue
			}
			t := tenure{share: i, pod: pod, to: d.ended(&s, pod)}
			c.times = append(c.times, t.to)
			c.tenures = append(c.tenures, t)
		}
	}
	if len(c.times) == 0 { // the same holders in other parts: known from now on
		c.times = append(c.times, d.until)
	}
	slices.SortFunc(c.times, time.Time.Compare)
	c.times = slices.CompactFunc(c.times, time.Time.Equal)
	return c
}

func findShare(shares []Share, s Share) *Share {
	for i := range shares {
		if shares[i].Compare(s.Allocation) == 0 {
			return &shares[i]
		}
	}
	return nil
}

// at returns the shares with the pods that held them at the moment, weighed.
func (c *change) at(moment time.Time) []Share {
	pods := make([][]podresources.Pod, len(c.shares))
	for _, t := range c.tenures {
		if !t.from.After(moment) && (t.to.IsZero() || t.to.After(moment)) {
			pods[t.share] = append(pods[t.share], t.pod)
		}
	}
	var out []Share
	for i, s := range c.shares {
		if len(pods[i]) == 0 {
			continue
		}
		s.Pods, s.Uses = pods[i], nil
		out = append(out, s)
	}
	divide(out)
	return out
}

// dating finds out when, between two answers of the kubelet, a pod began or ended to hold a device: by the pod's
// cgroup or the CDI spec that was seen to come or go in that time, else in the middle, which errs to neither side. When
// the answers are far apart the middle would be a guess, and what is new begins with the answer. What was seen to come
// shortly before the first answer, which did not name it yet, began with that answer. Where the pods are watched, an end
// that was not seen yet was just before the answer that no longer names the pod: its sign is on the way.
type dating struct {
	after, until time.Time
	changes      []podresources.Change
	watched      bool
}

// maxGuess is the longest time between two answers in whose middle an undated change is put.
const maxGuess = 3 * time.Second

// preparing is the longest time from a sign that a pod is about to hold a device to the kubelet's naming it.
const preparing = 2 * time.Second

func (d dating) began(s *Share, pod podresources.Pod) time.Time {
	var last time.Time
	for _, c := range d.changes {
		if c.Gone || !concerns(c, s, pod) {
			continue
		}
		switch {
		case d.within(c.At):
			last = c.At // they are in order: the last that had to happen
		case !c.At.After(d.after) && d.after.Sub(c.At) <= preparing:
			last = d.after
		}
	}
	return d.orGuess(last)
}

func (d dating) ended(s *Share, pod podresources.Pod) time.Time {
	for _, c := range d.changes {
		if c.Gone && d.within(c.At) && concerns(c, s, pod) {
			return c.At
		}
	}
	if d.watched {
		return d.until
	}
	return d.orGuess(time.Time{})
}

// departures returns what was seen to go.
func (d dating) departures() []podresources.Change {
	var gone []podresources.Change
	for _, c := range d.changes {
		if c.Gone {
			gone = append(gone, c)
		}
	}
	return gone
}

func (d dating) within(t time.Time) bool { return t.After(d.after) && !t.After(d.until) }

func (d dating) orGuess(t time.Time) time.Time {
	if !t.IsZero() {
		return t
	}
	if gap := d.until.Sub(d.after); gap > 0 && gap <= maxGuess {
		return d.after.Add(gap / 2)
	}
	return d.until
}

// concerns tells whether a change is of the pod, or of the CDI spec of the share.
func concerns(c podresources.Change, s *Share, pod podresources.Pod) bool {
	if c.PodUID != "" {
		return slices.ContainsFunc(s.Holders, func(h podresources.Holder) bool { return h.Pod == pod && h.UID == c.PodUID })
	}
	return slices.ContainsFunc(s.CDI, func(name string) bool { return slices.Contains(c.CDI, name) })
}

// sameHolding tells whether two answers say the same of who holds a device, and in which parts.
func sameHolding(a, b []Share) bool {
	return slices.EqualFunc(a, b, func(x, y Share) bool {
		return x.Weight == y.Weight && x.Admin == y.Admin && x.Compare(y.Allocation) == 0 && slices.Equal(x.Pods, y.Pods)
	})
}

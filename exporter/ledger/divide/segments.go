package divide

import (
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Holder is what a part of a device is charged to. A dropped one is not charged any more.
type Holder interface {
	comparable
	Dropped() bool
}

// Segments are the holders of a device over time, in order of time. Each segment lasts until the
// next one begins. The first begins at the zero time; the last is open.
type Segments[H Holder] []Segment[H]

// Segment is a span of time in which the holders and their parts did not change. Both lists are
// empty for a free device. Otherwise the weights of each list sum to 1, and the uses of the claims
// and the unattributed part sum to 1.
type Segment[H Holder] struct {
	From         time.Time
	before       int // bytes of all earlier segments; those that are forgotten may be included
	Claims       []Part[H]
	Pods         []Part[H]
	Unattributed join.Use
	Measured     bool // the uses are those of processes or own CPUs, not the weights
	Sampled      bool // the uses are from few samples of processes
	// Attribution is how the device is divided among the claims; Guessed reports that the use of each
	// of them is not known.
	Attribution join.Attribution
	Guessed     bool
	Doubt       podresources.Doubt // of From
	Judged      bool               // the doubt has been added to the affected holders
}

// Part is the part of a device that a holder has.
type Part[H Holder] struct {
	Holder H
	Weight float64
	Use    join.Use
	Own    float64 // the part of the device that could be used: 1, less for own CPUs, or UnknownOwn
}

// Charged are who is charged for a share: its claim, and its pods.
type Charged[H Holder] struct {
	Claim H
	Pods  []H
}

// UnknownOwn means a part of a group of CPUs if it is unknown which CPUs these are. It is not a
// separate field since there are many parts.
const UnknownOwn = -1

// NewSegment returns the segment from a time on in which the shares are charged so.
func NewSegment[H Holder](
	shares []join.Share, charged []Charged[H], divided join.Attribution, from time.Time,
) Segment[H] {
	pods := 0
	for i := range charged {
		pods += len(charged[i].Pods)
	}
	s := Segment[H]{
		From: from, Attribution: divided, Claims: make([]Part[H], 0, len(shares)), Pods: make([]Part[H], 0, pods),
	}
	for i := range shares {
		share := &shares[i]
		if share.Admin {
			continue
		}
		s.Measured = s.Measured || share.ByProcess || share.Own != nil
		s.Sampled = s.Sampled || share.Sampled
		own := 1.0
		switch {
		case share.Own == nil:
		case share.Own.Unknown:
			own, s.Guessed = UnknownOwn, true
		default:
			own = share.Own.Part
		}
		var used join.Use
		for n, h := range charged[i].Pods {
			pod := Part[H]{h, share.Weight / float64(len(charged[i].Pods)), share.PodUse(n), own}
			s.Pods = addPart(s.Pods, pod)
			used.Add(pod.Use)
		}
		if share.Uses == nil && share.Own == nil {
			used = join.Evenly(share.Weight)
		}
		s.Claims = addPart(s.Claims, Part[H]{charged[i].Claim, share.Weight, used, own})
	}
	s.SetUnattributed()
	s.Guessed = s.Guessed || divided.Guessed()
	return s
}

func addPart[H Holder](parts []Part[H], more Part[H]) []Part[H] {
	for i := range parts {
		p := &parts[i]
		if p.Holder != more.Holder {
			continue
		}
		p.add(&more)
		return parts
	}
	return append(parts, more)
}

// add adds another part of the same holder.
func (p *Part[H]) add(more *Part[H]) {
	p.Weight += more.Weight
	p.Use.Add(more.Use)
	if p.Own == UnknownOwn || more.Own == UnknownOwn {
		p.Own = UnknownOwn
	} else {
		p.Own = min(1, p.Own+more.Own)
	}
}

// SetUnattributed sets what the claims do not use. Rounding errors are not unattributed. If parts
// from different ticks sum to more than the device, they are scaled down in proportion.
func (s *Segment[H]) SetUnattributed() {
	var used join.Use
	for _, p := range s.Claims {
		used.Add(p.Use)
	}
	for b, all := range used {
		const rounding = 1e-12
		s.Unattributed[b] = 0
		switch {
		case all > 1+rounding:
			scale(s.Claims, b, 1/all)
			scale(s.Pods, b, 1/all)
		case all < 1-rounding:
			s.Unattributed[b] = 1 - all
		}
	}
}

// scale multiplies the parts' use of one basis by a factor.
func scale[H Holder](parts []Part[H], basis int, by float64) {
	for i := range parts {
		parts[i].Use[basis] *= by
	}
}

// Parts yields the parts of the claims and of the pods.
func (s *Segment[H]) Parts() iter.Seq[*Part[H]] {
	return func(yield func(*Part[H]) bool) {
		for _, parts := range [2][]Part[H]{s.Claims, s.Pods} {
			for i := range parts {
				if !yield(&parts[i]) {
					return
				}
			}
		}
	}
}

// PartOf returns the holder's part, nil if it has none.
func (s *Segment[H]) PartOf(h H) *Part[H] {
	for _, parts := range [2][]Part[H]{s.Claims, s.Pods} {
		for i := range parts {
			if parts[i].Holder == h {
				return &parts[i]
			}
		}
	}
	return nil
}

// UseOf returns the holder's parts of the device's quantities.
func (s *Segment[H]) UseOf(h H) join.Use {
	if p := s.PartOf(h); p != nil {
		return p.Use
	}
	return join.Use{}
}

// Redo replaces the parts.
func (s *Segment[H]) Redo(fresh *Segment[H]) {
	fresh.Doubt, fresh.Judged, fresh.before = s.Doubt, s.Judged, s.before
	*s = *fresh
}

// hasDropped reports whether a holder of the segment was dropped, so that the others do not sum
// to the whole.
func (s *Segment[H]) hasDropped() bool {
	for p := range s.Parts() {
		if p.Holder.Dropped() {
			return true
		}
	}
	return false
}

// SameParts reports whether the holders have the same parts in both segments.
func (s *Segment[H]) SameParts(other *Segment[H]) bool {
	return s.Guessed == other.Guessed && s.Sampled == other.Sampled &&
		slices.Equal(s.Claims, other.Claims) && slices.Equal(s.Pods, other.Pods)
}

// SameHolders reports whether both have the same holders and weights.
func (s *Segment[H]) SameHolders(other *Segment[H]) bool {
	same := func(x, y Part[H]) bool { return x.Holder == y.Holder && x.Weight == y.Weight }
	return slices.EqualFunc(s.Claims, other.Claims, same) && slices.EqualFunc(s.Pods, other.Pods, same)
}

// What segments take, in bytes.
const (
	segmentBytes = 160
	partBytes    = 48
	holderBytes  = 640 // of a holder that ended and is not exported any more
)

// bytes returns what the segment takes, without holders.
func (s *Segment[H]) bytes() int {
	return segmentBytes + (len(s.Claims)+len(s.Pods))*partBytes
}

// Append adds the present segment. Holders that it does not have are kept for those before.
func (t Segments[H]) Append(s Segment[H]) Segments[H] {
	if len(t) == 0 {
		return append(t, s)
	}
	last := t.Last()
	s.before = last.before + last.bytes()
	if !last.SameHolders(&s) {
		for p := range last.Parts() {
			if s.PartOf(p.Holder) == nil {
				s.before += holderBytes
			}
		}
	}
	return append(t, s)
}

// Bytes returns what the past segments take.
func (t Segments[H]) Bytes() int { return t.Last().before - t[0].before }

// Last returns the present segment.
func (t Segments[H]) Last() *Segment[H] { return &t[len(t)-1] }

// At returns the index of the segment that covers the moment.
func (t Segments[H]) At(moment time.Time) int {
	i := len(t) - 1
	for i > 0 && t[i].From.After(moment) {
		i--
	}
	return i
}

// On returns the segment that covers the moment.
func (t Segments[H]) On(moment time.Time) *Segment[H] { return &t[t.At(moment)] }

// Each calls f for every segment that overlaps the span, with the overlap. The overlaps make up the
// span. For an empty span it calls f with the segment at that time.
func (t Segments[H]) Each(from, to time.Time, f func(s *Segment[H], from, to time.Time)) {
	for i := t.At(from); i < len(t); i++ {
		start, end := t[i].From, to
		if i+1 < len(t) && t[i+1].From.Before(to) {
			end = t[i+1].From
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

// Without returns the timeline without its first n segments. What is counted in their time is
// unattributed: a holder that was dropped has it.
func (t Segments[H]) Without(n int, dropped H) Segments[H] {
	lost := Segment[H]{Claims: []Part[H]{{dropped, 1, join.Evenly(1), 1}}, Attribution: join.AttributionExclusive}
	lost.before = t[n].before - lost.bytes()
	return append(Segments[H]{lost}, t[n:]...)
}

// Replace replaces an account by another one.
func (t Segments[H]) Replace(h, by H) {
	for i := range t {
		for p := range t[i].Parts() {
			if p.Holder == h {
				p.Holder = by
			}
		}
	}
}

// Divide divides an amount among the holders by their use of a basis, and returns the rest that
// none of them has. claim and pod are called with each one's part. spread is the possible error of
// the amount; of is the larger amount of which it is a part if who has it is a guess.
func (s *Segment[H]) Divide(
	basis driver.Basis, amount, of, spread float64, guess bool, claim func(h H, part, doubt float64),
	pod func(h H, part float64),
) (left float64) {
	if len(s.Claims) == 0 || s.hasDropped() {
		return amount
	}
	for i := range s.Claims {
		p := &s.Claims[i]
		part := amount * p.Use[basis]
		doubt := spread * p.Use[basis]
		if s.Guessed || guess {
			doubt = spread + max(part, of-part)
		}
		claim(p.Holder, part, doubt)
	}
	for i := range s.Pods {
		pod(s.Pods[i].Holder, amount*s.Pods[i].Use[basis])
	}
	return amount * s.Unattributed[basis]
}

// EachChange calls f for each claim that begins or ceases to hold the device between the two
// segments, or whose known part changes, with the change.
func (s *Segment[H]) EachChange(before *Segment[H], basis driver.Basis, f func(h H, by float64)) {
	for i := range s.Claims {
		p := &s.Claims[i]
		q := before.PartOf(p.Holder)
		switch {
		case q == nil:
			f(p.Holder, s.most(p.Use[basis]))
		case s.Guessed || before.Guessed:
		case p.Use[basis] != q.Use[basis]:
			f(p.Holder, max(p.Use[basis], q.Use[basis])-min(p.Use[basis], q.Use[basis]))
		}
	}
	for i := range before.Claims {
		if p := &before.Claims[i]; s.PartOf(p.Holder) == nil {
			f(p.Holder, before.most(p.Use[basis]))
		}
	}
}

// most returns the largest part of the device that a claim may have used, given the part that it is
// charged.
func (s *Segment[H]) most(part float64) float64 {
	if s.Guessed {
		return 1
	}
	return part
}

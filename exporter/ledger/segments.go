package ledger

import (
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// segments are the holders of a device over time, in order of time. Each lasts until the next one
// begins. The first begins at the zero time; the last is open.
type segments []segment

// segment is a span of time in which the holders and their portions did not change. Both lists are
// empty for a free device. Otherwise the weights of each list sum to 1, and the uses of the claims
// and the unattributed part sum to 1. See mean for exceptions.
type segment struct {
	from         time.Time
	before       int // bytes of all earlier segments; those that are forgotten may be included
	claims       []portion
	pods         []portion
	unattributed join.Use
	measured     bool // the uses are those of processes or own CPUs, not the weights
	sampled      bool // the uses are from few samples of processes
	// attribution is how the device is divided among the claims; guessed reports that the use of each
	// of them is not known.
	attribution join.Attribution
	guessed     bool
	doubt       podresources.Doubt // of from
	judged      bool               // the doubt has been added to the affected accounts
}

type portion struct {
	account *account
	weight  float64
	use     join.Use
	own     float64 // the part of the device that could be used: 1, less for own CPUs, or unknownOwn
}

// unknownOwn means a part of a group of CPUs if it is unknown which CPUs these are. It is not a
// separate field since timelines have many portions.
const unknownOwn = -1

// segmentOf returns the segment with the given shares and their owners from a time on.
func segmentOf(shares []join.Share, owned []owners, divided join.Attribution, from time.Time) segment {
	pods := 0
	for i := range owned {
		pods += len(owned[i].pods)
	}
	s := segment{
		from: from, attribution: divided, claims: make([]portion, 0, len(shares)), pods: make([]portion, 0, pods),
	}
	for i := range shares {
		share := &shares[i]
		if share.Admin {
			continue
		}
		s.measured = s.measured || share.ByProcess || share.Own != nil
		s.sampled = s.sampled || share.Sampled
		own := 1.0
		switch {
		case share.Own == nil:
		case share.Own.Unknown:
			own, s.guessed = unknownOwn, true
		default:
			own = share.Own.Part
		}
		var used join.Use
		for n, account := range owned[i].pods {
			pod := portion{account, share.Weight / float64(len(owned[i].pods)), share.PodUse(n), own}
			s.pods = addPortion(s.pods, pod)
			used.Add(pod.use)
		}
		if share.Uses == nil && share.Own == nil {
			used = join.Evenly(share.Weight)
		}
		s.claims = addPortion(s.claims, portion{owned[i].claim, share.Weight, used, own})
	}
	s.setUnattributed()
	s.guessed = s.guessed || divided.Guessed()
	return s
}

func addPortion(parts []portion, more portion) []portion {
	for i := range parts {
		p := &parts[i]
		if p.account != more.account {
			continue
		}
		p.add(&more)
		return parts
	}
	return append(parts, more)
}

// add adds another portion of the same account.
func (p *portion) add(more *portion) {
	p.weight += more.weight
	p.use.Add(more.use)
	if p.own == unknownOwn || more.own == unknownOwn {
		p.own = unknownOwn
	} else {
		p.own = min(1, p.own+more.own)
	}
}

// setUnattributed sets what the claims do not use. Rounding errors are not unattributed. If parts
// from different ticks sum to more than the device, they are scaled down in proportion.
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

// scale multiplies the parts' use of one basis by a factor.
func scale(parts []portion, basis int, by float64) {
	for i := range parts {
		parts[i].use[basis] *= by
	}
}

// portions yields the portions of the claims and of the pods.
func (s *segment) portions() iter.Seq[*portion] {
	return func(yield func(*portion) bool) {
		for _, parts := range [2][]portion{s.claims, s.pods} {
			for i := range parts {
				if !yield(&parts[i]) {
					return
				}
			}
		}
	}
}

// portionOf returns the account's portion, nil if it has none.
func (s *segment) portionOf(a *account) *portion {
	for _, parts := range [2][]portion{s.claims, s.pods} {
		for i := range parts {
			if parts[i].account == a {
				return &parts[i]
			}
		}
	}
	return nil
}

// hasDropped reports whether an account of the segment was dropped, so that the others do not sum
// to the whole.
func (s *segment) hasDropped() bool {
	for p := range s.portions() {
		if p.account.dropped {
			return true
		}
	}
	return false
}

// samePortions reports whether the holders have the same portions in both segments.
func (s *segment) samePortions(other *segment) bool {
	return s.guessed == other.guessed && s.sampled == other.sampled &&
		slices.Equal(s.claims, other.claims) && slices.Equal(s.pods, other.pods)
}

// sameHolders reports whether both have the same holders and weights.
func (s *segment) sameHolders(other *segment) bool {
	same := func(x, y portion) bool { return x.account == y.account && x.weight == y.weight }
	return slices.EqualFunc(s.claims, other.claims, same) && slices.EqualFunc(s.pods, other.pods, same)
}

// maxSegments and maxPortions limit the segments of a device and the portions in them. A reading
// from before the oldest segment is charged to the holders of that segment. MaxHistory limits those
// of all devices.
const (
	maxSegments = 512
	maxPortions = 1 << 16 // 3 MiB
)

// What parts of the history take, in bytes.
const (
	segmentBytes = 160
	portionBytes = 48
	accountBytes = 640 // of a holder that ended and is not exported any more
)

// bytes returns what the segment takes, without accounts.
func (s *segment) bytes() int {
	return segmentBytes + (len(s.claims)+len(s.pods))*portionBytes
}

// append adds the present segment. The accounts of holders that it does not have are kept for those
// before.
func (t segments) append(s segment) segments {
	if len(t) == 0 {
		return append(t, s)
	}
	last := t.last()
	s.before = last.before + last.bytes()
	if !last.sameHolders(&s) {
		for p := range last.portions() {
			if s.portionOf(p.account) == nil {
				s.before += accountBytes
			}
		}
	}
	return append(t, s)
}

// bytes returns what the past segments take.
func (t segments) bytes() int { return t.last().before - t[0].before }

// last returns the present segment.
func (t segments) last() *segment { return &t[len(t)-1] }

// at returns the index of the segment that covers the moment.
func (t segments) at(moment time.Time) int {
	i := len(t) - 1
	for i > 0 && t[i].from.After(moment) {
		i--
	}
	return i
}

// on returns the segment that covers the moment.
func (t segments) on(moment time.Time) *segment { return &t[t.at(moment)] }

// each calls f for every segment that overlaps the span, with the overlap. The overlaps make up the
// span. For an empty span it calls f with the segment at that time.
func (t segments) each(from, to time.Time, f func(s *segment, from, to time.Time)) {
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

// since returns the timeline without the segments that ended by the moment.
func (t segments) since(moment time.Time) segments {
	i := max(t.at(moment), t.beyond())
	if i <= 0 {
		return t
	}
	return slices.Clone(t[i:])
}

// beyond returns how many of the oldest segments exceed these limits.
func (t segments) beyond() int {
	portions := 0
	for i := range slices.Backward(t) {
		portions += len(t[i].claims) + len(t[i].pods)
		if len(t)-i > maxSegments || portions > maxPortions {
			return min(i+1, len(t)-1)
		}
	}
	return 0
}

// useOf returns the account's present parts of the device's quantities.
func (t segments) useOf(a *account) join.Use {
	if p := t.last().portionOf(a); p != nil {
		return p.use
	}
	return join.Use{}
}

// open adds totals for counters to all accounts in the timeline.
func (t segments) open(counters []*counter) {
	for i := range t {
		for p := range t[i].portions() {
			p.account.open(counters)
		}
	}
}

// replace replaces an account by another one.
func (t segments) replace(a, by *account) {
	for i := range t {
		for p := range t[i].portions() {
			if p.account == a {
				p.account = by
			}
		}
	}
}

// endAccounts ends the accounts that are in past segments, or in segments that were replaced from a
// time on, and not in the last segment.
func (t segments) endAccounts(replaced segments, from time.Time) {
	done := map[*account]bool{}
	for p := range t.last().portions() {
		done[p.account] = true
	}
	end := func(s *segment, until time.Time) {
		for p := range s.portions() {
			if !p.account.aggregated && !done[p.account] {
				done[p.account] = true
				p.account.end(until)
			}
		}
	}
	for i := len(t) - 2; i >= 0; i-- {
		end(&t[i], t[i+1].from)
	}
	for i := range replaced {
		end(&replaced[i], from)
	}
}

// certainty has what the readings say about the error of an amount.
type certainty struct {
	measured bool
	spread   float64 // possible error of the amount, per second
	guessed  bool    // it is a guessed part of a larger amount
}

// charge divides an amount of a counter among the holders, and returns the rest that none of them
// has. of is the larger amount of which amount is a part if its holder is guessed. tick is the time
// of the present tick.
func (s *segment) charge(
	c *counter, amount, of float64, span time.Duration, known certainty, tick time.Time,
) (left float64) {
	if len(s.claims) == 0 || s.hasDropped() {
		return amount
	}
	basis := c.spec.Basis
	spread, measured := known.spread*span.Seconds(), 0.0
	if known.measured {
		measured = span.Seconds()
	}
	for i := range s.claims {
		p := &s.claims[i]
		part := amount * p.use[basis]
		doubt := spread * p.use[basis]
		if s.guessed || known.guessed {
			doubt = spread + max(part, of-part)
		}
		p.account.charge(c, part, tick)
		p.account.judge(c, doubt, measured)
	}
	for i := range s.pods {
		p := &s.pods[i]
		p.account.charge(c, amount*p.use[basis], tick)
	}
	return amount * s.unattributed[basis]
}

// peak records the present value of a gauge for each holder of the segment.
func (s *segment) peak(m *meter, value float64) {
	for p := range s.portions() {
		if !p.account.dropped {
			p.account.peak(m.of(m.peak), value*p.use[m.spec.Basis])
		}
	}
}

// eachHolder calls f once for each claim, pod and workload of young pods of the segment.
func (s *segment) eachHolder(f func(a *account, pod bool)) {
	for i := range s.claims {
		f(s.claims[i].account, false)
	}
	var workloads []*account
	for i := range s.pods {
		a := s.pods[i].account
		w := a.workload
		if a.aggregated {
			w = a
		} else {
			f(a, true)
		}
		if w != nil && !slices.Contains(workloads, w) {
			workloads = append(workloads, w)
			f(w, true)
		}
	}
}

// eachChanged calls f for each claim that begins or ceases to hold the device between the two
// segments, or whose known part changes, with the change.
func (s *segment) eachChanged(before *segment, basis driver.Basis, f func(a *account, by float64)) {
	for i := range s.claims {
		p := &s.claims[i]
		q := before.portionOf(p.account)
		switch {
		case q == nil:
			f(p.account, s.most(p.use[basis]))
		case s.guessed || before.guessed:
		case p.use[basis] != q.use[basis]:
			f(p.account, max(p.use[basis], q.use[basis])-min(p.use[basis], q.use[basis]))
		}
	}
	for i := range before.claims {
		if p := &before.claims[i]; s.portionOf(p.account) == nil {
			f(p.account, before.most(p.use[basis]))
		}
	}
}

// most returns the largest part of the device that a claim may have used, given the part that it is
// charged.
func (s *segment) most(part float64) float64 {
	if s.guessed {
		return 1
	}
	return part
}

package ledger

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// hold is a hold of the device, as a tick has it.
type hold struct {
	*podresources.Hold
	share *join.Share
	pod   podresources.Pod
	uid   string // of the pod; empty: unknown
	by    *charged
}

// charged is what a device has of one of its holds: who is charged for it. All pointers are nil for
// a hold that ended before the decided time.
type charged struct {
	claim, pod *account // nil for admin access
	period     *timeline.Period
	facts      holdFacts          // when the hold was last taken in
	lived      *podresources.Hold // when the claim's life last followed it
	allocated  time.Time
}

// holdFacts are the facts about a hold on which charges depend.
type holdFacts struct {
	to                   time.Time // zero: it holds the device now
	share, claimUID, uid string
	weight               float64 // of the share, which a hold that has ended does not have
	admin                bool
	holders              int
}

func (h *hold) holdFacts() holdFacts {
	if !h.To.IsZero() {
		return holdFacts{to: h.To}
	}
	s, n := h.share, len(h.share.Holders)
	return holdFacts{share: s.ShareID, claimUID: s.ClaimUID, uid: h.uid, weight: s.Weight, admin: s.Admin, holders: n}
}

// holds are the present holds of a device, and those that ended a moment ago.
type holds map[podresources.HoldID]*charged

// holdsIn yields the holds of shares, each of them once: the containers of a pod have the same
// hold, and the UID of the pod may be known for some of them only.
func holdsIn(of ...[]join.Share) iter.Seq[hold] {
	return func(yield func(hold) bool) {
		for _, shares := range of {
			for i := range shares {
				s := &shares[i]
				for j := range s.Holders {
					h := &s.Holders[j]
					uid, first := podUID(s.Holders, j)
					if first && !yield(hold{Hold: h.Hold, share: s, pod: h.Pod, uid: uid}) {
						return
					}
				}
			}
		}
	}
}

// podUID returns the UID of the pod of a hold, if it is known, and whether the holder with that
// index is the first one that has the hold. Holders are sorted by pod.
func podUID(holders []podresources.Holder, index int) (uid string, first bool) {
	of := &holders[index]
	for i := index - 1; i >= 0 && holders[i].Pod == of.Pod; i-- {
		if holders[i].Hold.ID == of.Hold.ID {
			return "", false
		}
	}
	for i := index; i < len(holders) && holders[i].Pod == of.Pod; i++ {
		if holders[i].Hold.ID == of.Hold.ID && holders[i].UID != "" {
			return holders[i].UID, true
		}
	}
	return "", true
}

// sortedHolds returns the holds of present and of ended shares, sorted by share.
func sortedHolds(shares, ended []join.Share) []hold {
	out := make([]hold, 0, len(shares)+len(ended))
	for h := range holdsIn(shares, ended) {
		out = append(out, h)
	}
	slices.SortStableFunc(out, func(a, b hold) int { return a.share.Compare(b.share.Allocation) })
	return out
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

// edgesOf returns the times at which holds begin and end.
func edgesOf(all []hold) []time.Time {
	out := make([]time.Time, 0, 2*len(all))
	for i := range all {
		out = append(out, all[i].From, all[i].To)
	}
	return out
}

// doubtAt returns the possible error of a time if holds begin or end then.
func doubtAt(all []hold, moment time.Time) (doubt podresources.Doubt, edge bool) {
	add := func(at time.Time, of podresources.Doubt) {
		if at.Equal(moment) {
			edge = true
			doubt = podresources.Doubt{Early: max(doubt.Early, of.Early), Late: max(doubt.Late, of.Late)}
		}
	}
	for i := range all {
		add(all[i].From, all[i].FromDoubt)
		add(all[i].To, all[i].ToDoubt)
	}
	return doubt, edge
}

// widened returns the doubt for a time that takes effect later than it was.
func widened(d podresources.Doubt, later time.Duration) podresources.Doubt {
	return podresources.Doubt{Early: d.Early + later, Late: max(0, d.Late-later)}
}

// isOther reports whether the claim or pod of a hold is a different one than the one that was
// charged: its UID was outdated.
func (c *charged) isOther(h *hold) bool {
	other := func(a *account, uid string) bool { return a != nil && uid != "" && a.UID != "" && a.UID != uid }
	return other(c.claim, h.share.ClaimUID) || other(c.pod, h.uid)
}

// nextPeriod returns the period of a hold. A new period begins at begun. Times before decided do
// not change.
func (h *hold) nextPeriod(id driver.ID, divided join.Attribution, begun, decided time.Time) timeline.Period {
	p := timeline.Period{
		Device: id, Pod: h.pod, Attribution: divided, From: begun, Older: h.From.IsZero(),
	}
	by := h.by
	if by.period != nil {
		p = *by.period
	}
	p.Hold, p.Claim, p.ShareID, p.Admin = h.ID, h.share.Claim, h.share.ShareID, h.share.Admin
	p.ClaimUID, p.PodUID = cmp.Or(h.share.ClaimUID, p.ClaimUID), cmp.Or(h.uid, p.PodUID)
	if by.claim != nil {
		p.ClaimUID, p.PodUID = by.claim.UID, by.pod.UID
	}
	if by.period == nil && !h.From.IsZero() {
		p.FromDoubt = widened(h.FromDoubt, begun.Sub(h.From))
	}
	if !h.To.IsZero() && p.To.IsZero() {
		p.To = driver.Later(p.From, driver.Later(h.To, decided))
		p.ToDoubt = widened(h.ToDoubt, p.To.Sub(h.To))
	}
	return p
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
func charge(
	s *segment, c *counter, amount, of float64, span time.Duration, known certainty, tick time.Time,
) (left float64) {
	spread, measured := known.spread*span.Seconds(), 0.0
	if known.measured {
		measured = span.Seconds()
	}
	return s.Divide(c.spec.Basis, amount, of, spread, known.guessed, func(a *account, part, doubt float64) {
		a.charge(c, part, tick)
		a.judge(c, doubt, measured)
	}, func(a *account, part float64) { a.charge(c, part, tick) })
}

// keepPeak records the present value of a gauge for each holder of the segment.
func (m *meter) keepPeak(s *segment, value float64) {
	for p := range s.Parts() {
		if !p.Holder.dropped {
			p.Holder.peak(m.of(m.peak), value*p.Use[m.spec.Basis])
		}
	}
}

// eachHolder calls f once for each claim, pod and workload of young pods of the segment.
func eachHolder(s *segment, f func(a *account, pod bool)) {
	for i := range s.Claims {
		f(s.Claims[i].Holder, false)
	}
	var workloads []*account
	for i := range s.Pods {
		a := s.Pods[i].Holder
		w := a.youth.workload
		if a.Aggregated {
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

// endAccounts ends the accounts that are in past segments, or in segments that were replaced from a
// time on, and not in the last segment.
func endAccounts(t, replaced segments, from time.Time) {
	done := map[*account]bool{}
	for p := range t.Last().Parts() {
		done[p.Holder] = true
	}
	end := func(s *segment, until time.Time) {
		for p := range s.Parts() {
			if !p.Holder.Aggregated && !done[p.Holder] {
				done[p.Holder] = true
				p.Holder.end(until)
			}
		}
	}
	for i := len(t) - 2; i >= 0; i-- {
		end(&t[i], t[i+1].From)
	}
	for i := range replaced {
		end(&replaced[i], from)
	}
}

// endWithout ends an account of a hold that took no time, and so has no segment.
func (a *account) endWithout(t segments, at time.Time) {
	if a.ended.IsZero() && !a.Aggregated && t.Last().PartOf(a) == nil {
		a.end(at)
	}
}

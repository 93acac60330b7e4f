package ledger

import (
	"slices"
	"time"
)

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
		if a.youth.aggregated {
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
			if !p.Holder.youth.aggregated && !done[p.Holder] {
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
	if a.ended.IsZero() && !a.youth.aggregated && t.Last().PartOf(a) == nil {
		a.end(at)
	}
}

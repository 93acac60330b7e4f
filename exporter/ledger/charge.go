package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// certainty is what the readings say of an amount besides itself.
type certainty struct {
	measured bool
	spread   float64 // how far the amount may be off, per second
	guessed  bool    // it is a part of a larger one, by guess
}

// charge divides an amount of a counter, which is of a larger one if it is not known whose it is,
// among the holders, and returns what none of them has. tick is the time of the present tick.
func (s *segment) charge(
	c *counter, amount, of float64, span time.Duration, sure certainty, tick time.Time,
) (left float64) {
	if len(s.claims) == 0 || s.hasDropped() {
		return amount
	}
	basis := c.spec.Basis
	spread, measured := sure.spread*span.Seconds(), 0.0
	if sure.measured {
		measured = span.Seconds()
	}
	for i := range s.claims {
		p := &s.claims[i]
		part := amount * p.use[basis]
		doubt := spread * p.use[basis]
		if s.guessed || sure.guessed {
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

// peak notes the present value of a gauge for each holder of the segment.
func (s *segment) peak(m *meter, value float64) {
	for p := range s.portions() {
		if !p.account.dropped {
			v := p.account.seen(m.peak)
			v.Value = max(v.Value, value*p.use[m.spec.Basis])
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

// eachChanged calls f for each claim that begins or ends to hold the device between the two
// segments, or whose known part of it changes, with the change.
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

// most returns the part of the device that a claim may have used that is charged a part of it.
func (s *segment) most(part float64) float64 {
	if s.guessed {
		return 1
	}
	return part
}

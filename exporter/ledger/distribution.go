package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
)

// claimKey identifies a claim's devices of one driver.
type claimKey struct{ namespace, name, driver string }

// claimDistributions are the distributions of a claim, by quantity.
type claimDistributions struct {
	accounts   []*account // of the claim's devices
	quantities []*distributed
}

// distributed is the distribution of one quantity of a claim, and what is not in it yet: pieces
// wait until those of all devices are known, so that they can be summed.
type distributed struct {
	series    *Series
	histogram distribution.Growing
	summed    time.Time // everything before is in the histogram
	pieces    []piece
	known     []known

	recorded recorded
	shown    bool          // what was written has when it was shown
	keeps    bool          // what is added is written
	observed []observation // that is not written yet
}

// known is the time up to which the value of a device is known.
type known struct {
	account *account
	until   time.Time
}

// piece is a span of time in which a device's value is taken to be the same.
type piece struct {
	from, to time.Time
	value    float64
}

// distributions are those of all claims; nil: none are kept.
type distributions map[claimKey]*claimDistributions

// observation is what was added to a distribution and is not written yet.
type observation struct{ value, seconds float64 }

// maxObservations bounds these: the distribution is written as a whole instead.
const maxObservations = 32

// enter lets a new account take part in the distributions of its claim. What a device plugin gave
// has no claim.
func (all distributions) enter(a *account) {
	if all == nil || a.key.Name == "" {
		return
	}
	key := claimKey{a.key.Namespace, a.key.Name, a.key.Device.Driver}
	a.claim = all[key]
	if a.claim == nil {
		a.claim = &claimDistributions{}
		all[key] = a.claim
	}
	a.claim.accounts = append(a.claim.accounts, a)
}

// leave ends that a dropped account takes part. The last one takes the distributions with it.
func (all distributions) leave(a *account) {
	if a.claim == nil {
		return
	}
	a.claim.accounts = slices.DeleteFunc(a.claim.accounts, func(other *account) bool { return other == a })
	for _, d := range a.claim.quantities {
		d.known = slices.DeleteFunc(d.known, func(k known) bool { return k.account == a })
	}
	if len(a.claim.accounts) == 0 {
		delete(all, claimKey{a.key.Namespace, a.key.Name, a.key.Device.Driver})
	}
}

// observeDistribution adds what a reading says of the time since the reading before to the
// distributions of those who held the device then. The reading stands for all of that time; but
// where the holder changed, that before it for the time up to then. Gaps over maxIntegration count
// nothing. What is divided among partitions is divided by their activity at the time of that
// reading too, as the gauges are: the mean activity up to it would make values that no reading had.
func (d *deviceBook) observeDistribution(m *meter, next driver.Reading) {
	if !m.spec.Distributed || !m.have || next.At.Sub(m.last.At) > maxIntegration {
		return
	}
	last := m.last
	d.eachPiece(last, next, func(s *segment, from, to time.Time) {
		p := piece{from, to, next.Value}
		since, until := next.At, next.At // the time of which the value is
		if to.Before(next.At) {
			p.value = level(last, next, from, to)
			since, until = from, to
			if !from.After(last.At) {
				until = from
			}
		}
		if m.spec.Divided && len(d.parts) > 0 {
			p.value = d.distributeParts(m, p, since, until)
		}
		s.distribute(m, p)
	})
}

// distributeParts adds what the holders of the device's parts have of a value, by the activity of
// the parts in the time of which it is, to their distributions. It returns what is left for the
// holders of the device.
func (d *deviceBook) distributeParts(m *meter, whole piece, since, until time.Time) (left float64) {
	idle := 0.0
	if whole.value > 0 {
		idle = min(1, m.idle/whole.value)
	}
	left = whole.value
	for _, p := range d.weighBy(since, until, whole.from, idle) {
		if !p.Held || p.Share <= 0 {
			continue
		}
		here := piece{whole.from, whole.to, whole.value * p.Fraction}
		left -= here.value
		if !p.book.measuresItself() {
			p.holders.distribute(m, here)
		}
	}
	return max(0, left)
}

// distribute adds a piece of a device's value to the distributions of the claims that hold it.
func (s *segment) distribute(m *meter, p piece) {
	for i := range s.claims {
		holder := &s.claims[i]
		if a := holder.account; a.claim != nil && !a.dropped {
			a.claim.of(m.key, a).add(a, piece{p.from, p.to, p.value * holder.use[m.spec.Basis]})
		}
	}
}

// of returns the distribution of a quantity, a new one if there is none.
func (c *claimDistributions) of(key seriesKey, a *account) *distributed {
	for _, d := range c.quantities {
		if d.series.Quantity == key.quantity {
			return d
		}
	}
	d := &distributed{series: newSeries(key)}
	d.series.Born = a.born
	c.add(d)
	return d
}

func (c *claimDistributions) add(d *distributed) {
	c.quantities = append(c.quantities, d)
	slices.SortFunc(c.quantities, func(a, b *distributed) int { return int(a.series.Quantity) - int(b.series.Quantity) })
}

// add adds a piece of the value of one of the claim's devices. What is of a time that is known
// already is omitted.
func (d *distributed) add(a *account, p piece) {
	i := slices.IndexFunc(d.known, func(k known) bool { return k.account == a })
	if i < 0 {
		i = len(d.known)
		d.known = append(d.known, known{account: a})
	}
	for _, done := range [2]time.Time{d.known[i].until, d.summed} {
		if p.from.Before(done) {
			p.from = done
		}
	}
	if p.from.Before(p.to) {
		d.known[i].until = p.to
		d.pieces = append(d.pieces, p)
	}
}

// settle enters the sums of the claims' pieces into their distributions.
func (all distributions) settle(now time.Time) {
	for _, c := range all {
		for _, d := range c.quantities {
			if len(d.pieces) > 0 {
				d.sum(c.knownUntil(d, now))
				if d.series.Shown.IsZero() {
					s := *d.series
					s.Shown = now
					d.series = &s
				}
			}
		}
	}
}

// knownUntil returns the time up to which the values of all of the claim's devices that are
// measured are known. A device that was not read for maxIntegration is left out from then on.
func (c *claimDistributions) knownUntil(d *distributed, now time.Time) time.Time {
	until := now
	for _, a := range c.accounts {
		m := a.device.findMeter(seriesKey{quantity: d.series.Quantity})
		last := a.born
		if i := slices.IndexFunc(d.known, func(k known) bool { return k.account == a }); i >= 0 {
			last = d.known[i].until
		}
		complete := !a.ended.IsZero() && !last.Before(a.ended)
		if m != nil && !complete && last.Before(until) && now.Sub(last) <= maxIntegration {
			until = last
		}
	}
	return until
}

// sum enters the sums of the pieces up to a time.
func (d *distributed) sum(until time.Time) {
	var room [16]time.Time
	cuts := room[:0]
	for _, p := range d.pieces {
		if p.from.Before(until) {
			cuts = append(cuts, p.from)
		}
		cuts = append(cuts, earlier(p.to, until))
	}
	slices.SortFunc(cuts, time.Time.Compare)
	for i := 1; i < len(cuts); i++ {
		from, to := cuts[i-1], cuts[i]
		sum, known := 0.0, false
		for _, p := range d.pieces {
			if !p.from.After(from) && !p.to.Before(to) {
				sum, known = sum+p.value, true
			}
		}
		if known {
			d.observe(sum, to.Sub(from).Seconds())
		}
	}
	d.pieces = slices.DeleteFunc(d.pieces, func(p piece) bool { return !p.to.After(until) })
	for i := range d.pieces {
		if d.pieces[i].from.Before(until) {
			d.pieces[i].from = until
		}
	}
	if until.After(d.summed) {
		d.summed = until
	}
}

func (d *distributed) observe(value, seconds float64) {
	d.histogram.Observe(value, seconds)
	if d.keeps && len(d.observed) <= maxObservations {
		d.observed = append(d.observed, observation{value, seconds})
	}
}

package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// claimKey identifies a claim's devices of one driver.
type claimKey struct{ namespace, name, driver string }

// distributions has the distributions of all claims; nil: none are kept.
type distributions map[claimKey]*claimDistributions

// maxObservations limits the observations that are not yet persisted; with more, the whole
// distribution is persisted instead.
const maxObservations = 32

// enter adds a new account to the distributions of its claim. An allocation by a device plugin has
// no claim.
func (all distributions) enter(a *account) {
	if all == nil || a.key.Name == "" {
		return
	}
	key := claimKey{a.key.Namespace, a.key.Name, a.key.Device.Driver}
	a.ofClaim.distributions = all[key]
	if a.ofClaim.distributions == nil {
		a.ofClaim.distributions = &claimDistributions{}
		all[key] = a.ofClaim.distributions
	}
	a.ofClaim.distributions.accounts = append(a.ofClaim.distributions.accounts, a)
}

// leave removes a dropped account from its claim's distributions. With the last account, the
// distributions are removed.
func (all distributions) leave(a *account) {
	of := a.ofClaim.distributions
	if of == nil {
		return
	}
	of.accounts = slices.DeleteFunc(of.accounts, func(other *account) bool { return other == a })
	for _, d := range of.quantities {
		d.known = slices.DeleteFunc(d.known, func(k known) bool { return k.account == a })
	}
	if len(of.accounts) == 0 {
		delete(all, claimKey{a.key.Namespace, a.key.Name, a.key.Device.Driver})
	}
}

// observeDistribution adds a reading to the distributions of those who held the device since the
// previous reading. The reading applies to all of that time. If the holder changed, the previous
// reading applies up to the change. Gaps over maxIntegration count nothing. A value divided among
// partitions is divided by their activity at the time of its reading, as gauges are: the mean
// activity would make values that no reading had.
func (d *deviceBook) observeDistribution(m *meter, next driver.Reading) {
	if !m.spec.Distributed || !m.have || next.At.Sub(m.last.At) > readings.MaxIntegration {
		return
	}
	last := m.last
	d.each(last.At, next.At, func(s *segment, from, to time.Time) {
		p := piece{from, to, next.Value}
		since, until := next.At, next.At // the time at which the value was read
		if to.Before(next.At) {
			p.value = readings.Level(last, next, from, to)
			since, until = from, to
			if !from.After(last.At) {
				until = from
			}
		}
		if m.spec.Divided && len(d.parts) > 0 {
			p.value = d.distributeParts(m, p, since, until)
		}
		distribute(s, m, p)
	}, d.departure(last.At, next.At))
}

// distributeParts adds parts of a value to the distributions of those who hold the device's
// partitions, divided by the partitions' activity from since to until. It returns what is left for
// the holders of the device.
func (d *deviceBook) distributeParts(m *meter, whole piece, since, until time.Time) (left float64) {
	return d.divideParts(whole.value, m.idle, whole.from, since, until,
		func(p *deviceBook, s *segment, _ *join.Part, here float64) {
			if !p.measuresItself() {
				distribute(s, m, piece{whole.from, whole.to, here})
			}
		})
}

// distribute adds a piece to the distributions of the claims that hold the device.
func distribute(s *segment, m *meter, p piece) {
	for i := range s.Claims {
		holder := &s.Claims[i]
		if a := holder.Holder; a.ofClaim.distributions != nil && !a.dropped {
			a.ofClaim.distributions.of(m.key, a).add(a, piece{p.from, p.to, p.value * holder.Use[m.spec.Basis]})
		}
	}
}

// of returns the distribution of a quantity, which it creates if necessary.
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

// add adds a piece of the value of one of the claim's devices. It omits time for which a value is
// known.
func (d *distributed) add(a *account, p piece) {
	i := slices.IndexFunc(d.known, func(k known) bool { return k.account == a })
	if i < 0 {
		i = len(d.known)
		d.known = append(d.known, known{account: a})
	}
	p.from = driver.Later(d.summed, driver.Later(d.known[i].until, p.from))
	if p.from.Before(p.to) {
		d.known[i].until = p.to
		d.pieces = append(d.pieces, p)
	}
}

// settle adds the sums of the claims' pieces to their distributions.
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

// knownUntil returns the time up to which the values of all measured devices of the claim are
// known. A device that is not read for longer than maxIntegration is not waited for.
func (c *claimDistributions) knownUntil(d *distributed, now time.Time) time.Time {
	until := now
	for _, a := range c.accounts {
		last := a.born
		if i := slices.IndexFunc(d.known, func(k known) bool { return k.account == a }); i >= 0 {
			last = d.known[i].until
		}
		complete := !a.ended.IsZero() && !last.Before(a.ended)
		if !complete && last.Before(until) && now.Sub(last) <= readings.MaxIntegration &&
			a.device.findMeter(seriesKey{quantity: d.series.Quantity}) != nil {
			until = last
		}
	}
	return until
}

// sum adds the sums of the pieces up to a time.
func (d *distributed) sum(until time.Time) {
	var room [16]time.Time
	cuts := room[:0]
	for _, p := range d.pieces {
		if p.from.Before(until) {
			cuts = append(cuts, p.from)
		}
		cuts = append(cuts, driver.Earlier(p.to, until))
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
	left := d.pieces[:0]
	for _, p := range d.pieces {
		if p.to.After(until) {
			left = append(left, piece{driver.Later(p.from, until), p.to, p.value})
		}
	}
	d.pieces, d.summed = left, driver.Later(d.summed, until)
}

func (d *distributed) observe(value, seconds float64) {
	d.histogram.Observe(value, seconds)
	if d.keeps && len(d.observed) <= maxObservations {
		d.observed = append(d.observed, saved.Observation{Value: value, Seconds: seconds})
	}
}

// noteEnd records the share of a claim that has ended.
func (a *account) noteEnd(s *join.Share) {
	f := a.ofClaim.fit
	if f == nil || f.final {
		return
	}
	f.Several = f.Several || f.ended != nil && f.ended.ShareID != s.ShareID
	f.ended = &join.Share{Allocation: podresources.Allocation{
		ShareID: s.ShareID, Request: s.Request, Admin: s.Admin, Consumed: s.Consumed,
	}}
	f.due = true
}

// observeUse adds a reading to the use of the claims that held the device since the previous
// reading. The reading applies to all of that time. Gaps over MaxIntegration count nothing. rate is
// that of a counter per second. The part of an engine, or of a link between devices, that one of
// several holders has is unknown: each may have all of it.
func (d *deviceBook) observeUse(m *meter, next driver.Reading, rate float64) {
	q := m.key.quantity
	if !m.have || next.At.Sub(m.last.At) > readings.MaxIntegration || q != driver.Utilization && q != driver.MemoryUsed &&
		q != driver.EngineUtilization && q != driver.IOBytes {
		return
	}
	d.each(m.last.At, next.At, func(s *segment, from, to time.Time) {
		seconds := to.Sub(from).Seconds()
		for i := range s.Claims {
			p := &s.Claims[i]
			f := p.Holder.ofClaim.fit
			if f == nil || p.Holder.dropped {
				continue
			}
			part, divided := next.Value*p.Use[m.spec.Basis], len(s.Claims) > 1 && !s.Measured
			switch q {
			case driver.Utilization:
				f.activity.Observe(part, seconds)
			case driver.MemoryUsed:
				f.observeMemory(part, seconds)
				f.Readings += seconds / next.At.Sub(m.last.At).Seconds()
			default:
				f.use(m.key.labels[0], next.Value, rate, seconds)
				divided = false
			}
			f.Divided = f.Divided || divided
		}
	})
}

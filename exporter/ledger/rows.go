package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// rowsOf returns the rows of devices, and the errors counted at this tick.
func rowsOf(devices []*deviceBook, now time.Time) (rows []book.Device, failures []book.Failure) {
	values, ages := 0, 0
	for _, d := range devices {
		ages += d.numValues()
		values += d.numValues() + d.numUnattributed()
	}
	room := deviceRoom{make([]book.Value, 0, values), make([]time.Duration, 0, ages)}
	rows = make([]book.Device, 0, len(devices))
	for _, d := range devices {
		rows = append(rows, d.row(now, &room))
		failures = append(failures, d.failures...)
	}
	return rows, failures
}

// deviceRoom is memory for the values of all devices of a snapshot.
type deviceRoom struct {
	values []book.Value
	ages   []time.Duration
}

// numValues and numUnattributed return the largest possible number of the device's values in a
// snapshot.
func (d *deviceBook) numValues() int {
	return len(d.meters) + len(d.counters) + len(d.unattributed.witnessed)
}

func (d *deviceSeries) numUnattributed() int { return len(d.attributed) + d.gauges }

// take returns room for n elements at the end of a slice with enough capacity.
func take[T any](all *[]T, n int) []T {
	used := len(*all)
	*all = (*all)[:used+n]
	return (*all)[used : used : used+n]
}

func (d *deviceBook) row(now time.Time, room *deviceRoom) book.Device {
	s := book.Device{Device: d.joined, Key: &d.id, Allocated: d.allocated, Born: d.born, LastError: d.lastError}
	s.Used = -1
	if d.watched {
		s.Used = d.inUse
	}
	s.Up, s.Missing = d.up()
	s.Contradiction = d.contradicted
	readable := s.Missing == join.MissingNone
	var ages []time.Duration
	if readable {
		ages = take(&room.ages, d.numValues())[:d.numValues()]
		s.Values, s.Unattributed = take(&room.values, d.numValues()), take(&room.values, d.numUnattributed())
	}
	d.addGauges(&s, now)
	for _, c := range d.counters {
		v := book.Value{Series: c.series, Value: c.total}
		switch {
		case c.seen.Equal(now) && c.divided:
			s.Divided = append(s.Divided, c.series)
		case !readable && s.Up == book.Down && c.spec.Failure: // of a failed device, these are the most interesting
			s.Values = append(s.Values, v)
		case readable && c.seen.Equal(now):
			s.Values = append(s.Values, v)
			if !c.settled.IsZero() {
				ages[len(s.Values)-1] = d.clock.Sub(c.settled)
			}
			if c.index >= 0 {
				v.Value = d.unattributed.total(c).value
				s.Unattributed = append(s.Unattributed, v)
			}
		}
	}
	if readable {
		s.Values = append(s.Values, d.unattributed.witnessed...)
		s.Ages = ages[:len(s.Values)]
	}
	return s
}

// addGauges adds the values that were read now. Health is known without telemetry.
func (d *deviceBook) addGauges(s *book.Device, now time.Time) {
	readable, last := s.Missing == join.MissingNone, d.timeline.Last()
	for _, m := range d.meters {
		switch {
		case !m.seen.Equal(now):
		case m.divided:
			s.Divided = append(s.Divided, m.series)
		case !m.counts && (readable || m.key.quantity == driver.Health):
			v := book.Value{Series: m.series, Value: m.now.Value}
			s.Values = append(s.Values, v)
			if m.gauge >= 0 {
				v.Value *= m.kept*last.Unattributed[m.spec.Basis] + m.lost
				s.Unattributed = append(s.Unattributed, v)
			}
		}
	}
}

// markDown marks devices as down that are held, not readable, and whose driver has had a readable
// device. All other unreadable devices are unsupported.
func (b deviceBooks) markDown(devices []book.Device) {
	read := map[string]bool{}
	for _, d := range b {
		if d.read {
			read[d.id.Driver] = true
		}
	}
	for i := range devices {
		d := &devices[i]
		unread := d.Missing == join.MissingNoMatch || d.Missing == join.MissingNoSource && d.Entry.Kind.Measurable()
		if unread && d.Attribution != join.AttributionNone && read[d.ID.Driver] {
			d.Up = book.Down
		}
	}
}

// rows are the rows of a book's exported accounts. Those of device plugins have no name.
type rows struct{ newest, plugins, earlier, young []book.Holder }

// rows returns the rows of all exported accounts. Current holders have their parts of the device's
// gauges.
func (b *accountBook) rows(now time.Time, retention time.Duration) rows {
	accounts := b.sorted()
	out := rows{newest: make([]book.Holder, 0, len(accounts))}
	n := 0
	for _, l := range accounts {
		for _, a := range l.accounts {
			n += len(a.totals) + len(a.witnessed) + a.device.gauges
		}
	}
	w := rowWriter{
		slab: make([]book.Value, 0, n), distributions: make([]book.Distribution, 0, b.distributions.number()), now: now,
	}
	for _, l := range accounts {
		shown, to := false, &out.newest
		if l.accounts[0].key.Name == "" {
			to = &out.plugins
		}
		for i, a := range slices.Backward(l.accounts) {
			switch {
			case !a.exported(now, retention):
			case a.Young:
				out.young = append(out.young, w.row(a))
			case shown:
				out.earlier = append(out.earlier, w.row(a))
			default:
				shown = true
				*to = append(*to, w.row(a))
				w.complete(&(*to)[len(*to)-1], l, i)
			}
		}
	}
	return out
}

// rowWriter makes rows of accounts.
type rowWriter struct {
	slab          []book.Value
	distributions []book.Distribution
	claim         *claimDistributions // of the previous row
	now           time.Time
}

// row returns the charges of an account alone.
func (w *rowWriter) row(a *account) book.Holder {
	start := len(w.slab)
	w.slab = append(a.appendTotals(a.appendGauges(w.slab, w.now)), a.witnessed...)
	h := book.Holder{
		HolderKey: &a.key, UID: a.UID, Amounts: a.amounts(), Ended: a.ended, Unclaimed: a.unclaimed, LastError: a.lastError,
	}
	h.Values = w.slab[start:len(w.slab):len(w.slab)]
	if a.ended.IsZero() && a.device.measured {
		h.LastActive = a.active
	}
	if a.ofClaim.fit != nil && (a.ended.IsZero() || a.ofClaim.fit.final) {
		h.Advice = a.ofClaim.fit.advice
	}
	return h
}

// complete adds the metrics of the name to the row of its newest exported account, the i-th.
func (w *rowWriter) complete(h *book.Holder, l *lineage, i int) {
	a := l.accounts[i]
	if before := l.before(i); before != nil {
		h.Named = plus(&h.Amounts, before, a)
		for _, e := range slices.Backward(l.accounts[:i]) { // a pod that was replaced may still run
			if e.ended.IsZero() && !e.Young {
				e.addGauges(h.Named, w.now)
			}
		}
	}
	if a.ofClaim.distributions != w.claim {
		w.claim = a.ofClaim.distributions
		h.Distributions = a.ofClaim.distributions.rows(&w.distributions)
	}
}

// appendGauges appends the account's parts of the device's gauges.
func (a *account) appendGauges(out []book.Value, now time.Time) []book.Value {
	if !a.ended.IsZero() {
		return out
	}
	part := a.use()
	for _, m := range a.device.meters {
		if m.seen.Equal(now) && m.gauge >= 0 {
			out = append(out, book.Value{Series: a.gauges[m.gauge], Value: m.now.Value * m.kept * part[m.spec.Basis]})
		}
	}
	return out
}

// addGauges adds the account's gauges to those of a newer account of the name that also holds the
// device.
func (a *account) addGauges(m *book.Amounts, now time.Time) {
	for _, v := range a.appendGauges(nil, now) {
		if i := m.Find(v.Series); i >= 0 {
			m.Values[i].Value += v.Value
		} else {
			m.Values = append(m.Values, v)
		}
	}
}

// use returns the account's parts of the device's quantities.
func (a *account) use() join.Use {
	if !a.Aggregated {
		return a.device.timeline.Last().UseOf(a)
	}
	var sum join.Use
	for _, m := range a.youth.members {
		sum.Add(a.device.timeline.Last().UseOf(m))
	}
	return sum
}

// number returns the number of distributions.
func (all distributions) number() int {
	n := 0
	for _, c := range all {
		n += len(c.quantities)
	}
	return n
}

// rows returns the distributions of a claim. It appends them to all.
func (c *claimDistributions) rows(all *[]book.Distribution) []book.Distribution {
	if c == nil {
		return nil
	}
	out := take(all, len(c.quantities))
	for _, d := range c.quantities {
		out = append(out, book.Distribution{Series: d.series, View: d.histogram.View()})
	}
	return out
}

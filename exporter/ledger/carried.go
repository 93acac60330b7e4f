package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Amounts are what a claim or pod was charged for a device; or what all were that had its name one
// after the other.
type Amounts struct {
	Born      time.Time // when it began to hold the device
	Shown     time.Time // when it ceased to be young, and was first in a snapshot's Pods; zero: it never was young
	Values    []Value
	Allocated float64 // seconds, whoever else held the device
	Share     float64 // seconds, divided among the holders at that time
	// Used are the seconds in which the device was active for it; below 0: that was never measured,
	// or it was never known which of several claims used it.
	Used float64
}

// Metrics returns the amounts that the metrics of the holder's name have: the counters go on from
// those of the holders that had the name before, as long as these were kept.
func (h *Holder) Metrics() *Amounts {
	if h.Named != nil {
		return h.Named
	}
	return &h.Amounts
}

// carried is what was charged to those that had the name of an account before it: counters alone.
type carried struct {
	released *Amounts // to the accounts that are not kept any more; nil: there are none

	// before is of all; nil: not summed yet, or there are none. It does not change, and holds as
	// long as what it was made of stays the same.
	before  *Amounts
	of      *account // the one that had the name before
	deeper  *Amounts // what that had carried
	charged time.Time
	used    float64
}

// carry adds what an account was charged to what the later one of its name has carried: it is about
// to be released.
func (b *accountBook) carry(a *account, now time.Time) {
	if later := b.laterThan(a); later != nil {
		later.release(later.carriedUntil(now))
	}
}

// release sets what was charged to those before the account that are not kept any more, and forgets
// what was summed.
func (a *account) release(all *Amounts) {
	a.carried = nil
	if all != nil {
		a.carried = &carried{released: all}
	}
}

// released returns what was charged to those before the account that are not kept any more, nil if
// nothing was.
func (a *account) released() *Amounts {
	if a.carried == nil {
		return nil
	}
	return a.carried.released
}

// carriedUntil returns what those were charged that had the account's name before it, nil if there
// were none.
func (a *account) carriedUntil(now time.Time) *Amounts {
	e := a.earlier
	if e == nil {
		return a.released()
	}
	if a.carried == nil {
		a.carried = &carried{}
	}
	c, deeper := a.carried, e.carriedUntil(now)
	if c.before == nil || c.of != e || c.deeper != deeper || !c.charged.Equal(e.charged) || c.used != e.used {
		own := e.amounts()
		for i := range e.totals {
			if t := &e.totals[i]; e.show(t, 0, now) {
				own.Values = append(own.Values, Value{t.series, t.value})
			}
		}
		own.Values = append(own.Values, e.counted()...)
		c.before = own.plus(deeper, e)
		c.of, c.deeper, c.charged, c.used = e, deeper, e.charged, e.used
	}
	return c.before
}

// amounts returns what the account was charged, without values.
func (a *account) amounts() Amounts {
	out := Amounts{Born: a.born, Shown: a.matured, Allocated: a.allocated, Share: a.share, Used: -1}
	if a.watched {
		out.Used = a.used
	}
	return out
}

// counted returns the counters among what happened to the device while the account held it.
func (a *account) counted() []Value {
	return slices.DeleteFunc(slices.Clone(a.witnessed), func(v Value) bool { return !a.isCounter(v.Quantity) })
}

func (a *account) isCounter(q driver.Quantity) bool {
	return a.device.catalogue.Spec(q).Type == driver.Counter
}

// plus returns the amounts of an account's name: counters go on from those of before, and gauges
// are the account's.
func (m *Amounts) plus(before *Amounts, a *account) *Amounts {
	out := *m
	if before == nil {
		return &out
	}
	out.Born, out.Shown = before.Born, before.Shown
	out.Allocated += before.Allocated
	out.Share += before.Share
	if before.Used >= 0 {
		out.Used = max(0, m.Used) + before.Used
	}
	out.Values = make([]Value, 0, len(m.Values)+len(before.Values))
	for _, v := range m.Values {
		if i := before.find(v.Series); i >= 0 && a.isCounter(v.Quantity) {
			v.Value += before.Values[i].Value
			if was := before.Values[i].Series; !was.Shown.After(v.Shown) { // else it was charged late
				v.Series = was
			}
		}
		out.Values = append(out.Values, v)
	}
	for _, v := range before.Values {
		if m.find(v.Series) < 0 {
			out.Values = append(out.Values, v)
		}
	}
	return &out
}

// addGauges adds the gauges of another account of the name, which holds the device too.
func (m *Amounts) addGauges(a *account, tick uint64) {
	for _, v := range a.appendGauges(nil, tick) {
		if i := m.find(v.Series); i >= 0 {
			m.Values[i].Value += v.Value
		} else {
			m.Values = append(m.Values, v)
		}
	}
}

// find returns the index of the value of that meaning, -1 if there is none.
func (m *Amounts) find(s *Series) int {
	return slices.IndexFunc(m.Values, func(v Value) bool { return v.Quantity == s.Quantity && v.Labels == s.Labels })
}

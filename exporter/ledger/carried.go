package ledger

import "time"

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

package ledger

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// books are the accounts of claims and of pods.
type books struct {
	claims, pods accountBook

	started     time.Time // time of the first tick: claims allocated later began while this process ran
	answered    time.Time // the first time until which the holders were known: nothing is charged before
	kept        time.Time // end of the earlier process that this ledger continues; zero: none
	corrections int       // of this tick; see [Snapshot.Corrections]
}

// accountBook has the accounts of all claims, or of all pods.
type accountBook struct {
	accounts map[HolderKey]*account // the newest account of each name
	order    []*account             // by key; nil: not sorted yet
	ofPods   bool
	fits     bool // advice is given

	minLifetime time.Duration // younger accounts are young; 0: none is

	distributions distributions
}

// all yields all accounts.
func (b *accountBook) all() iter.Seq[*account] {
	return func(yield func(*account) bool) {
		for _, newest := range b.accounts {
			for a := range newest.andEarlier() {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// sorted returns the newest account of each name, sorted by name and device.
func (b *accountBook) sorted() []*account {
	if b.order == nil {
		b.order = slices.SortedFunc(maps.Values(b.accounts), func(x, y *account) int { return x.key.compare(y.key) })
	}
	return b.order
}

// laterThan returns the next account with the name after a, nil if there is none.
func (b *accountBook) laterThan(a *account) *account {
	var later *account
	for of := range b.accounts[a.key].andEarlier() {
		if of == a {
			break
		}
		later = of
	}
	return later
}

// of returns the account with a UID that is not closed, nil if there is none or the UID is unknown.
func (b *accountBook) of(key HolderKey, uid string) *account {
	if uid == "" {
		return nil
	}
	for a := range b.accounts[key].andEarlier() {
		if a.uid == uid && !a.closed {
			return a
		}
	}
	return nil
}

// begin opens an account.
func (b *accountBook) begin(d *deviceBook, key HolderKey, born, now time.Time) *account {
	a := &account{key: key, device: d, born: born, active: now, young: b.minLifetime > 0}
	if b.fits && key.Name != "" {
		a.fit = &fitting{}
	}
	newest := b.accounts[key]
	if newest != nil && born.Before(newest.born) { // its hold became known late
		a.follows(newest.earlier)
		a.release(newest.released())
		newest.follows(a)
		newest.release(nil)
	} else {
		a.follows(newest)
		b.accounts[key] = a
	}
	b.order = nil
	b.distributions.enter(a)
	a.open(d.attributed)
	return a
}

// reopen makes an account the newest of its name. If it had ended, it continues.
func (b *accountBook) reopen(a *account, now time.Time) {
	if !a.ended.IsZero() {
		a.setEnd(time.Time{})
		a.active = now
	}
	a.open(a.device.attributed)
	later := b.laterThan(a)
	if later == nil {
		return
	}
	later.follows(a.earlier)
	later.release(a.released())
	a.follows(b.accounts[a.key])
	a.release(nil)
	b.accounts[a.key] = a
	b.order = nil
}

// merge adds the charges of an account to another one of the same claim or pod, which replaces it.
func (b *accountBook) merge(a, of *account) {
	a.take(of)
	for _, v := range of.witnessed {
		if a.isCounter(v.Quantity) {
			a.witness(seriesKey{v.Quantity, v.Labels}, v.Value, of.charged)
		}
	}
	a.used += of.used
	a.usedUntil, a.charged = driver.Later(a.usedUntil, of.usedUntil), driver.Later(a.charged, of.charged)
	a.lastError = driver.Later(a.lastError, of.lastError)
	if of.life != nil {
		a.takeLife(of.life)
	}
	a.users, a.partial = append(a.users, of.users...), a.partial || of.partial
	a.changed()
	a.divide(of.attribution)
	b.remove(of)
	of.drop()
}

// take adds the charges of another account, except errors, and replaces it in the device's
// timeline, so that late readings are charged to a.
func (a *account) take(of *account) {
	of.into = a
	a.open(a.device.attributed)
	for i := range of.totals {
		a.totals[i].value += of.totals[i].value
		a.totals[i].doubt += of.totals[i].doubt
		a.totals[i].measured += of.totals[i].measured
	}
	a.allocated += of.allocated
	a.share += of.share
	a.edges += of.edges
	a.unread += of.unread
	for _, v := range of.witnessed {
		if !a.isCounter(v.Quantity) { // a peak
			a.peak(seriesKey{v.Quantity, v.Labels}, v.Value)
		}
	}
	a.device.timeline.Replace(of, a)
}

// release drops accounts that are no longer exported and that no queued reading can charge, after
// calling before for each. Accounts of one name are dropped from the oldest on.
func (b *accountBook) release(now time.Time, retention time.Duration, before func(*account)) {
	for _, newest := range b.accounts {
		b.releaseOldest(newest, now, retention, before)
	}
}

// releaseOldest drops the oldest accounts of a name, and reports whether any is left.
func (b *accountBook) releaseOldest(
	a *account, now time.Time, retention time.Duration, before func(*account),
) (left bool) {
	if a.earlier != nil && b.releaseOldest(a.earlier, now, retention, before) || a.kept(now, retention) {
		return true
	}
	b.carry(a, now)
	before(a)
	a.drop()
	b.remove(a)
	return false
}

// kept reports whether the account is exported, or a queued reading can charge it.
func (a *account) kept(now time.Time, retention time.Duration) bool {
	return a.exported(now, retention) || !a.settled(now) && now.Sub(a.ended) < retention+rememberFor
}

// settled reports whether all readings from before the account's end have been distributed.
func (a *account) settled(now time.Time) bool {
	return !a.ended.IsZero() && !a.device.unsettled(now).Before(a.ended)
}

// carry adds the charges of an account that is about to be released to those carried by the next
// account of its name.
func (b *accountBook) carry(a *account, now time.Time) {
	if later := b.laterThan(a); later != nil {
		later.release(later.carriedUntil(now))
	}
}

// remove removes an account from the book.
func (b *accountBook) remove(a *account) {
	b.distributions.leave(a)
	switch later := b.laterThan(a); {
	case later != nil:
		later.follows(a.earlier)
		if later.released() == nil {
			later.release(a.released())
		}
	case a.earlier != nil:
		b.accounts[a.key] = a.earlier
		b.order = nil
	default:
		delete(b.accounts, a.key)
		b.order = nil
	}
}

// evict removes the dropped accounts from the book, and their rows from the given ones.
func (b *accountBook) evict(rows ...*[]Holder) {
	for _, newest := range b.accounts {
		for a := range newest.andEarlier() {
			if a.dropped {
				b.remove(a)
			}
		}
	}
	for _, of := range rows {
		*of = slices.DeleteFunc(*of, func(h Holder) bool { return b.accounts[*h.HolderKey] == nil })
	}
}

// carried has the charges of earlier accounts of the name: only counters.
type carried struct {
	released *Amounts // charges of accounts that are not kept any more; nil: none

	// before has the charges of all earlier accounts; nil: not summed yet, or there are none. It is
	// immutable, and valid as long as its inputs below stay the same.
	before  *Amounts
	of      *account // the previous account of the name
	deeper  *Amounts // the sum that the previous account carries
	charged time.Time
	used    float64
}

// follows sets the previous account of the name, if that is still kept.
func (a *account) follows(earlier *account) {
	a.earlier = earlier
	a.changed()
}

// release sets the charges of earlier accounts that are not kept any more, and drops the sum.
func (a *account) release(all *Amounts) {
	a.carried = nil
	if all != nil {
		a.carried = &carried{released: all}
	}
	a.changed()
}

// released returns the charges of earlier accounts that are not kept any more, nil for none.
func (a *account) released() *Amounts {
	if a.carried == nil {
		return nil
	}
	return a.carried.released
}

// carriedUntil returns the charges of all earlier accounts of the name, nil if there were none.
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

// plus returns the amounts of an account's name: counters are added to those of before, gauges are
// the account's.
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
			if was := before.Values[i].Series; !was.Shown.After(v.Shown) { // otherwise it was charged late
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

package ledger

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// books are the accounts of claims and of pods.
type books struct {
	claims, pods accountBook

	started     time.Time // time of the first tick: claims allocated later began while this process ran
	answered    time.Time // the first time until which the holders were known: nothing is charged before
	kept        time.Time // end of the earlier process that this ledger continues; zero: none
	corrections int       // of this tick; see [book.Snapshot.Corrections]
}

// accountBook has the accounts of all claims, or of all pods.
type accountBook struct {
	accounts map[book.HolderKey]*account // the newest account of each name
	order    []*account                  // by key; nil: not sorted yet
	names    names
	released map[book.HolderKey]*book.Amounts // charges of earlier accounts of a name that are not kept any more
	ofPods   bool
	fits     bool // advice is given

	minLifetime time.Duration // younger accounts are young; 0: none is

	distributions distributions
}

func newBook() accountBook {
	return accountBook{
		accounts: map[book.HolderKey]*account{}, released: map[book.HolderKey]*book.Amounts{},
		names: names{names: map[fullName]*name{}},
	}
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
		b.order = slices.SortedFunc(maps.Values(b.accounts), func(x, y *account) int { return x.key.Compare(y.key) })
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
func (b *accountBook) of(key book.HolderKey, uid string) *account {
	if uid == "" {
		return nil
	}
	for a := range b.accounts[key].andEarlier() {
		if a.uid == uid && !a.ofClaim.closed {
			return a
		}
	}
	return nil
}

// begin opens an account.
func (b *accountBook) begin(d *device, key book.HolderKey, born, now time.Time) *account {
	a := &account{
		key: key, device: d, born: born, activeTime: activeTime{active: now}, youth: youth{young: b.minLifetime > 0},
	}
	if b.fits && key.Name != "" {
		a.ofClaim.fit = &fitting{}
	}
	newest := b.accounts[key]
	if newest != nil && born.Before(newest.born) { // its hold became known late
		a.follows(newest.earlier)
		newest.follows(a)
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
	a.follows(b.accounts[a.key])
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
	if of.ofClaim.life != nil {
		a.takeLife(of.ofClaim.life)
	}
	a.ofClaim.users = append(a.ofClaim.users, of.ofClaim.users...)
	a.ofClaim.partial = a.ofClaim.partial || of.ofClaim.partial
	a.changed()
	a.divide(of.ofClaim.attribution)
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

// show makes the series of what the accounts have from this tick on. If a counter could not be read
// since an account was opened, its total is absent, not 0.
func (b *accountBook) show(tick uint64, now time.Time) {
	for a := range b.all() {
		for i := range a.totals {
			t := &a.totals[i]
			if t.series == nil && (t.value > 0 || a.ended.IsZero() && t.counter.present == tick) {
				t.series = newSeries(t.counter.key)
				t.series.Born, t.series.Shown = a.born, now
				a.changed()
			}
		}
		if a.ended.IsZero() {
			a.showPresent(tick)
		}
	}
}

// showPresent makes the series of the parts of the device's gauges. It records whether the activity
// of the device is known.
func (a *account) showPresent(tick uint64) {
	for _, m := range a.device.meters {
		if m.gauge < 0 || m.present != tick {
			continue
		}
		for len(a.gauges) <= m.gauge {
			a.gauges = append(a.gauges, nil)
		}
		if a.gauges[m.gauge] == nil {
			a.gauges[m.gauge] = newSeries(m.key)
		}
	}
	if a.device.measured && !a.watched {
		a.watched = true
		a.changed()
	}
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
	if later := b.laterThan(a); later != nil { // the name goes on with its charges
		b.released[a.key] = b.before(later)
	}
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

// before returns the charges of all earlier accounts of an account's name, nil if there were none.
func (b *accountBook) before(a *account) *book.Amounts {
	e := a.earlier
	if e == nil {
		return b.released[a.key]
	}
	own := e.amounts()
	for i := range e.totals {
		if t := &e.totals[i]; t.series != nil {
			own.Values = append(own.Values, book.Value{Series: t.series, Value: t.value})
		}
	}
	own.Values = append(own.Values, e.counted()...)
	return plus(&own, b.before(e), e)
}

// remove removes an account from the book.
func (b *accountBook) remove(a *account) {
	b.distributions.leave(a)
	switch later := b.laterThan(a); {
	case later != nil:
		later.follows(a.earlier)
	case a.earlier != nil:
		b.accounts[a.key] = a.earlier
		b.order = nil
	default:
		delete(b.accounts, a.key)
		delete(b.released, a.key)
		b.order = nil
	}
}

// evict removes the dropped accounts from the book, and their rows from the given ones.
func (b *accountBook) evict(rows ...*[]book.Holder) {
	for _, newest := range b.accounts {
		for a := range newest.andEarlier() {
			if a.dropped {
				b.remove(a)
			}
		}
	}
	for _, of := range rows {
		*of = slices.DeleteFunc(*of, func(h book.Holder) bool { return b.accounts[*h.HolderKey] == nil })
	}
}

// follows sets the previous account of the name, if that is still kept.
func (a *account) follows(earlier *account) {
	a.earlier = earlier
	a.changed()
}

// plus returns the amounts of an account's name: counters are added to those of before, gauges are
// the account's.
func plus(m, before *book.Amounts, a *account) *book.Amounts {
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
	out.Values = make([]book.Value, 0, len(m.Values)+len(before.Values))
	for _, v := range m.Values {
		if i := before.Find(v.Series); i >= 0 && a.isCounter(v.Quantity) {
			v.Value += before.Values[i].Value
			if was := before.Values[i].Series; !was.Shown.After(v.Shown) { // otherwise it was charged late
				v.Series = was
			}
		}
		out.Values = append(out.Values, v)
	}
	for _, v := range before.Values {
		if m.Find(v.Series) < 0 {
			out.Values = append(out.Values, v)
		}
	}
	return &out
}

package ledger

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
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
	accounts map[book.HolderKey]*lineage
	order    []*lineage // by key; nil: not sorted yet
	names    names
	ofPods   bool
	fits     bool // advice is given

	minLifetime time.Duration // younger accounts are young; 0: none is

	distributions distributions
}

// lineage has the accounts of one name for one device.
type lineage struct {
	accounts []*account    // at least one, the oldest first
	released *book.Amounts // charges of earlier ones that are not kept any more; nil: there were none
}

func newBook() accountBook {
	return accountBook{accounts: map[book.HolderKey]*lineage{}, names: names{names: map[fullName]*name{}}}
}

// all yields all accounts.
func (b *accountBook) all() iter.Seq[*account] {
	return func(yield func(*account) bool) {
		for _, l := range b.accounts {
			for _, a := range l.accounts {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// sorted returns all accounts, sorted by name and device.
func (b *accountBook) sorted() []*lineage {
	if b.order == nil {
		b.order = slices.SortedFunc(maps.Values(b.accounts), func(x, y *lineage) int {
			return x.accounts[0].key.Compare(y.accounts[0].key)
		})
	}
	return b.order
}

// newest returns the newest account; nil: there is none.
func (l *lineage) newest() *account {
	if l == nil {
		return nil
	}
	return l.accounts[len(l.accounts)-1]
}

// changedFrom records that the accounts from an index on follow others than before.
func (l *lineage) changedFrom(i int) {
	for _, a := range l.accounts[i:] {
		a.changed()
	}
}

// of returns the account with a UID that is not closed, nil if there is none or the UID is unknown.
func (b *accountBook) of(key book.HolderKey, uid string) *account {
	l := b.accounts[key]
	if uid == "" || l == nil {
		return nil
	}
	for _, a := range slices.Backward(l.accounts) {
		if a.UID == uid && !a.Closed {
			return a
		}
	}
	return nil
}

// lineageOf returns the accounts of a name for a device, which it creates if necessary.
func (b *accountBook) lineageOf(key book.HolderKey) *lineage {
	l := b.accounts[key]
	if l == nil {
		l = &lineage{}
		b.accounts[key], b.order = l, nil
	}
	return l
}

// begin opens an account.
func (b *accountBook) begin(d *device, key book.HolderKey, born, now time.Time) *account {
	a := &account{
		key: key, device: d, born: born, activeTime: activeTime{active: now},
		AccountFacts: saved.AccountFacts{Young: b.minLifetime > 0},
	}
	if b.fits && key.Name != "" {
		a.ofClaim.fit = &fitting{}
	}
	l := b.lineageOf(key)
	i := len(l.accounts)
	if i > 0 && born.Before(l.accounts[i-1].born) { // its hold became known late
		i--
	}
	l.accounts = slices.Insert(l.accounts, i, a)
	l.changedFrom(i)
	b.distributions.enter(a)
	return a
}

// reopen makes an account the newest of its name. If it had ended, it continues.
func (b *accountBook) reopen(a *account, now time.Time) {
	if !a.ended.IsZero() {
		a.setEnd(time.Time{})
		a.active = now
	}
	l := b.accounts[a.key]
	if i := slices.Index(l.accounts, a); i < len(l.accounts)-1 {
		l.accounts = append(slices.Delete(l.accounts, i, i+1), a)
		l.changedFrom(i)
	}
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
	a.Users = append(a.Users, of.Users...)
	a.Partial = a.Partial || of.Partial
	a.changed()
	a.divide(of.Attribution)
	b.remove(of)
	of.drop()
}

// take adds the charges of another account, except errors, and replaces it in the device's
// timeline, so that late readings are charged to a.
func (a *account) take(of *account) {
	of.into = a
	for i := range of.totals {
		t, more := a.total(of.totals[i].counter), &of.totals[i]
		t.value += more.value
		t.doubt += more.doubt
		t.measured += more.measured
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
func (b *accountBook) show(now time.Time) {
	for a := range b.all() {
		if n := len(a.device.attributed); n > 0 && a.ended.IsZero() {
			a.total(a.device.attributed[n-1])
		}
		for i := range a.totals {
			t := &a.totals[i]
			if t.series == nil && (t.value > 0 || a.ended.IsZero() && t.counter.seen.Equal(now)) {
				t.series = newSeries(t.counter.key)
				t.series.Born, t.series.Shown = a.born, now
				a.changed()
			}
		}
		if a.ended.IsZero() {
			a.showPresent(now)
		}
	}
}

// showPresent makes the series of the parts of the device's gauges. It records whether the activity
// of the device is known.
func (a *account) showPresent(now time.Time) {
	for _, m := range a.device.meters {
		if m.gauge < 0 || !m.seen.Equal(now) {
			continue
		}
		for len(a.gauges) <= m.gauge {
			a.gauges = append(a.gauges, nil)
		}
		if a.gauges[m.gauge] == nil {
			a.gauges[m.gauge] = newSeries(m.key)
		}
	}
	if a.device.measured && !a.Watched {
		a.Watched = true
		a.changed()
	}
}

// release drops accounts that are no longer exported and that no queued reading can charge, after
// calling before for each. Accounts of one name are dropped from the oldest on.
func (b *accountBook) release(now time.Time, retention time.Duration, before func(*account)) {
	for _, l := range b.accounts {
		for len(l.accounts) > 0 && !l.accounts[0].kept(now, retention) {
			a := l.accounts[0]
			l.released = l.before(1) // the name goes on with its charges
			before(a)
			a.drop()
			b.remove(a)
		}
	}
}

// kept reports whether the account is exported, or a queued reading can charge it.
func (a *account) kept(now time.Time, retention time.Duration) bool {
	return a.exported(now, retention) || !a.settled(now) && now.Sub(a.ended) < retention+rememberFor
}

// settled reports whether all readings from before the account's end have been distributed.
func (a *account) settled(now time.Time) bool {
	return !a.ended.IsZero() && !a.device.unsettled(now).Before(a.ended)
}

// before returns the charges of all accounts before the n-th, nil if there were none.
func (l *lineage) before(n int) *book.Amounts {
	sum := l.released
	for _, e := range l.accounts[:n] {
		own := e.amounts()
		own.Values = e.appendTotals(nil)
		for _, v := range e.witnessed {
			if e.isCounter(v.Quantity) {
				own.Values = append(own.Values, v)
			}
		}
		sum = plus(&own, sum, e)
	}
	return sum
}

// remove removes an account from the book.
func (b *accountBook) remove(a *account) {
	b.distributions.leave(a)
	l := b.accounts[a.key]
	i := slices.Index(l.accounts, a)
	if l.accounts = slices.Delete(l.accounts, i, i+1); len(l.accounts) == 0 {
		delete(b.accounts, a.key)
		b.order = nil
	}
	l.changedFrom(i)
}

// evict removes the dropped accounts from the book, and their rows from the given ones.
func (b *accountBook) evict(rows ...*[]book.Holder) {
	for _, l := range b.accounts {
		for _, a := range slices.Clone(l.accounts) {
			if a.dropped {
				b.remove(a)
			}
		}
	}
	for _, of := range rows {
		*of = slices.DeleteFunc(*of, func(h book.Holder) bool { return b.accounts[*h.HolderKey] == nil })
	}
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

// resolve determines which accounts are charged for a device's holds. Times before from are
// decided. An account belongs to one UID of a claim or pod. As long as the UID is unknown, the
// account belongs to the name, and to holds without a gap between them. The account stays the same
// when the UID becomes known or unknown.
func (b *books) resolve(d *deviceBook, all []hold, from, now time.Time) {
	known := d.holds
	d.holds, d.present = make(holds, len(all)), 0
	byTime := make([]*hold, 0, len(all))
	for i := range all {
		h := &all[i]
		if h.by = known[h.ID]; h.by == nil {
			h.by = &charged{}
		}
		h.by.facts, h.by.lived, d.holds[h.ID] = h.holdFacts(), nil, h.by
		if h.To.IsZero() {
			d.present++
		}
		byTime = append(byTime, h)
	}
	slices.SortStableFunc(byTime, func(a, b *hold) int { return a.From.Compare(b.From) })
	for i, h := range byTime {
		by := h.by
		if !h.To.IsZero() && !h.To.After(from) && by.period == nil {
			continue
		}
		begun := driver.Later(driver.Later(h.From, from), b.answered)
		switch {
		case h.share.Admin: // earlier charges, from before it had admin access, may be dropped
			by.claim, by.pod = nil, nil
		case h.To.IsZero() || h.To.After(from):
			by.claim = b.claims.accountOf(d, h, byTime[:i], begun, now)
			by.pod = b.pods.accountOf(d, h, byTime[:i], begun, now)
			by.claim.useBy(by.pod)
		}
		by.period = d.periods.Set(by.period, h.nextPeriod(d.id, d.joined.Attribution, begun, from))
	}
	markUnclaimed(byTime)
	for _, h := range byTime { // the account of the current holder is the newest of its name
		if h.To.IsZero() && h.by.claim != nil {
			b.claims.reopen(h.by.claim.present(), now)
			b.pods.reopen(h.by.pod.present(), now)
		}
	}
	for id, by := range known { // holds that do not exist any more
		if d.holds[id] != by && by.period != nil && by.period.To.IsZero() {
			d.periods.End(by.period, from)
		}
	}
}

// markUnclaimed marks the accounts of pods that have the device by a device plugin alone. The mark
// stays: the series of such a pod do not end before its others.
func markUnclaimed(all []*hold) {
	plugged := func(h *hold, is bool) bool { return h.by.pod != nil && h.share.ByPlugin() == is }
	for _, h := range all {
		if plugged(h, true) && !h.by.pod.Aggregated && !slices.ContainsFunc(all, func(o *hold) bool {
			return plugged(o, false) && o.by.pod == h.by.pod
		}) {
			h.by.pod.unclaimed = true
		}
	}
}

// named returns a hold's name in the book, its UID ("": unknown), and its account (nil: none).
func (b *accountBook) named(h *hold) (namespace, name, uid string, present *account) {
	if b.ofPods {
		return h.pod.Namespace, h.pod.Name, h.uid, h.by.pod
	}
	return h.share.Claim.Namespace, h.share.Claim.Name, h.share.ClaimUID, h.by.claim
}

// accountOf returns the account of a hold. A new account begins at begun. before are the holds that
// began earlier.
func (b *accountBook) accountOf(d *deviceBook, h *hold, before []*hold, begun, now time.Time) *account {
	namespace, name, uid, present := b.named(h)
	present = present.present()
	if present != nil && present.Aggregated {
		if !h.To.IsZero() {
			return present
		}
		present = nil
	}
	key := book.HolderKey{Namespace: namespace, Name: name, Device: d.id}
	known := b.of(key, uid)
	a := present
	switch {
	case present != nil && present.dropped, present != nil && uid != "" && present.UID != "" && present.UID != uid:
		a = known
	case present == nil:
		if a = known; a == nil {
			a = b.continued(key, uid, h, before)
		}
	case known != nil && known != present: // its UID became known later
		b.merge(known, present)
		a = known
	}
	if a == nil {
		a = b.begin(&d.device, key, begun, now)
	}
	if uid != "" && uid != a.UID {
		a.UID = uid
		a.changed()
	}
	b.reopen(a, now)
	return a
}

// continued returns the newest account of a name if a new hold may belong to it, since one of
// the UIDs is unknown, and there is no gap before the hold. Allocations by device plugins have
// no UID, and share one account.
func (b *accountBook) continued(key book.HolderKey, uid string, h *hold, before []*hold) *account {
	a := b.accounts[key].newest()
	switch {
	case a == nil, a.UID != "" && uid != "":
		return nil
	case key.Name == "":
		return a
	}
	others, gap := false, true
	for _, o := range before {
		if o.by.claim == a || o.by.pod == a {
			others = true
			gap = gap && !o.To.IsZero() && o.To.Before(h.From)
		}
	}
	if others && gap || !others && !a.ended.IsZero() {
		return nil
	}
	return a
}

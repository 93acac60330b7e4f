package ledger

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// HolderKey names a holder of a device: a claim or a pod by namespace and name. Claims and pods
// that have the name one after the other have different accounts; the counters of the name go on.
type HolderKey struct {
	Namespace, Name string
	Device          driver.ID
}

func (k HolderKey) compare(other HolderKey) int {
	return cmp.Or(
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name), k.Device.Compare(other.Device),
	)
}

// account is what a claim or pod was charged for one device. Its totals are in the order of the
// device's attributed counters; counters that came after it ended are absent.
type account struct {
	key    HolderKey
	uid    string // empty: not known yet
	device *deviceBook

	earlier *account // the one that had the name before and is kept; nil: none
	carried *carried // nil: nothing

	born    time.Time // when it began to hold the device
	ended   time.Time // when it ended; zero: it holds the device
	charged time.Time // the tick at which it was last charged for anything

	allocated float64 // seconds in which it held the device
	share     float64 // the same, divided among the holders at that time
	edges     float64 // of a claim: seconds by which its begins and ends may be off
	unread    float64 // those of them whose readings were charged before these were known
	totals    []total
	gauges    []*Series           // of its parts of the device's gauges, by their numbers
	witnessed []Value             // what happened to the device while it held it, and its peaks
	lastError time.Time           // of the errors among them; zero: none
	claim     *claimDistributions // nil: none are kept

	fit *fitting // nil: there is no advice

	// Of a claim: how the device was divided, by the least certain way so far; it began before the
	// first answer of the kubelet; and what it was charged was reported as a [Closed].
	attribution     join.Attribution
	partial, closed bool
	closedBefore    bool // an earlier process reported it

	dropped    bool // its retention is over, or Evict dropped it
	watched    bool // its own activity was known at some time
	young      bool // a pod that has held the device for less than the book's minLifetime
	aggregated bool // it is of the young pods of a workload

	users []User   // the pods that used it
	life  *life    // nil: nothing is known of it
	into  *account // the one that has taken its place and its amounts; nil: none has

	active    time.Time // when the device was last active while this held it
	used      float64   // seconds in which it was
	usedUntil time.Time // what was before is counted

	matured  time.Time  // when it ceased to be young; zero: it never was
	workload *account   // of a young account: that of its workload; nil: not known yet
	members  []*account // of an aggregated one: those that hold the device now

	recorded recorded
	closedAt uint64 // the turn of the writer at which it was closed; 0: it is not
}

// total is the sum of what an account was charged of one counter.
type total struct {
	counter  *counter
	value    float64
	doubt    float64 // of a claim: how far the value may be off, by the readings
	measured float64 // of a claim: the seconds of which there were readings
	series   *Series // nil: the counter was not read since the account was opened
}

// open adds totals for the device's attributed counters that the account does not have.
func (a *account) open(counters []*counter) {
	if a.dropped {
		return
	}
	for i := len(a.totals); i < len(counters); i++ {
		a.totals = append(a.totals, total{counter: counters[i]})
	}
}

// end ends the account. It has no part of gauges any more.
func (a *account) end(at time.Time) { a.ended, a.gauges = at, nil }

// drop marks the account as dropped, and frees what it was charged: the timeline of the device
// refers to it for a while.
func (a *account) drop() {
	a.dropped, a.totals, a.gauges, a.witnessed, a.users, a.fit = true, nil, nil, nil, nil, nil
}

// charge adds an amount of a counter of its device. tick is the time of the present tick.
func (a *account) charge(c *counter, amount float64, tick time.Time) {
	if c.index < len(a.totals) && amount > 0 {
		a.totals[c.index].value += amount
		a.charged = tick
	}
}

// show reports whether a total is exported. An account that was opened while its counter could not
// be read does not have the value 0.
func (a *account) show(t *total, tick uint64, now time.Time) bool {
	if t.series == nil && (t.value > 0 || a.ended.IsZero() && t.counter.present == tick) {
		key := t.counter.key
		t.series = &Series{
			Quantity: key.quantity, Labels: key.labels, Born: a.born, Shown: now,
		}
	}
	return t.series != nil
}

// gauge returns the series of the account's part of a gauge.
func (a *account) gauge(m *meter) *Series {
	for len(a.gauges) <= m.gauge {
		a.gauges = append(a.gauges, nil)
	}
	s := &a.gauges[m.gauge]
	if *s == nil {
		*s = newSeries(m.key)
	}
	return *s
}

// accountBook has the accounts of all claims, or of all pods.
type accountBook struct {
	accounts map[HolderKey]*account // the newest of each name
	order    []*account             // by key; nil: not sorted yet
	ofPods   bool
	fits     bool // there is advice

	minLifetime time.Duration // accounts that are younger are young; 0: none is

	distributions map[claimKey]*claimDistributions // nil: none are kept
}

// exported reports whether the account's series are exported: while it holds the device, and for
// the retention after its end or its last charge, whichever is later.
func (a *account) exported(now time.Time, retention time.Duration) bool {
	return a.ended.IsZero() || now.Sub(a.ended) < retention || now.Sub(a.charged) < retention
}

// release drops the accounts that are no longer exported and that no queued reading can charge,
// each after a call of before. Of one name they go in the order in which they had it.
func (b *accountBook) release(now time.Time, retention time.Duration, before func(*account)) {
	for _, newest := range b.accounts {
		b.releaseOldest(newest, now, retention, before)
	}
}

// releaseOldest drops the oldest accounts of a name, and returns whether there is one left.
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

// settled reports whether no reading of the time before the account ended is to come.
func (a *account) settled(now time.Time) bool {
	return !a.ended.IsZero() && !a.device.unsettled(now).Before(a.ended)
}

// remove takes an account off the book.
func (b *accountBook) remove(a *account) {
	b.leaveDistributions(a)
	switch later := b.laterThan(a); {
	case later != nil:
		later.earlier = a.earlier
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

// laterThan returns the account that had the name after a, nil if there is none.
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

// evict removes the dropped accounts from the book and their rows from the given ones.
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

// andEarlier yields the account and those that had the name before, the newest first.
func (a *account) andEarlier() iter.Seq[*account] {
	return func(yield func(*account) bool) {
		for a != nil {
			next := a.earlier
			if !yield(a) {
				return
			}
			a = next
		}
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

// sorted returns the newest account of each name, by name and device.
func (b *accountBook) sorted() []*account {
	if b.order == nil {
		b.order = slices.SortedFunc(maps.Values(b.accounts), func(x, y *account) int { return x.key.compare(y.key) })
	}
	return b.order
}

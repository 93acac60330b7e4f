package ledger

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// HolderKey identifies a holder of a device: a claim or a pod by namespace and name. A holder that
// comes back while its account is kept continues it.
type HolderKey struct {
	Namespace, Name string
	Device          driver.ID
}

func (k HolderKey) compare(other HolderKey) int {
	return cmp.Or(
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name), k.Device.Compare(other.Device),
	)
}

// account is what a holder was charged for one device. Its totals are in the order of the device's
// attributed counters; counters that came after it ended are absent.
type account struct {
	key    HolderKey
	device *deviceBook

	born    time.Time // when it began to hold the device
	ended   time.Time // when it ended; zero: it holds the device
	charged time.Time // the tick at which it was last charged for anything

	allocated float64 // seconds in which it held the device
	share     float64 // the same, divided among the holders at that time
	totals    []total
	gauges    []*Series           // of its parts of the device's gauges, by their numbers
	witnessed []Value             // what happened to the device while it held it, and its peaks
	lastError time.Time           // of the errors among them; zero: none
	claim     *claimDistributions // nil: none are kept

	fit *fitting // nil: there is no advice

	dropped bool // its retention is over, or Evict dropped it

	active    time.Time // when the device was last active while this held it
	used      float64   // seconds in which it was
	usedUntil time.Time // what was before is counted
	watched   bool      // its own activity was known at some time

	young    bool      // a pod that has held the device for less than the book's minLifetime
	matured  time.Time // when that was over; zero: it never was young
	workload *account  // of a young account: that of its workload; nil: not known yet

	aggregated bool       // it is of the young pods of a workload
	members    []*account // of those that hold the device now
}

// total is the sum of what an account was charged of one counter.
type total struct {
	counter *counter
	value   float64
	series  *Series // nil: the counter was not read since the account was opened
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
	a.dropped, a.totals, a.gauges, a.witnessed, a.fit = true, nil, nil, nil, nil
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
	accounts map[HolderKey]*account
	order    []*account // by key; nil: not sorted yet
	fits     bool       // there is advice

	minLifetime time.Duration // accounts that are younger are young; 0: none is

	distributions map[claimKey]*claimDistributions // nil: none are kept
}

// account returns the account of a holder of the device. It opens a new one, or reopens one that
// ended.
func (b *accountBook) account(d *deviceBook, namespace, name string, born, now time.Time) *account {
	key := HolderKey{namespace, name, d.id}
	a := b.accounts[key]
	if a == nil {
		a = &account{key: key, device: d, born: born, active: now, young: b.minLifetime > 0}
		if b.fits && name != "" {
			a.fit = &fitting{}
		}
		b.accounts[key] = a
		b.order = nil
		b.distribute(a)
	}
	if !a.ended.IsZero() {
		a.ended, a.active = time.Time{}, now
	}
	a.open(d.attributed)
	return a
}

// exported reports whether the account's series are exported: while it holds the device, and for
// the retention after its end or its last charge, whichever is later.
func (a *account) exported(now time.Time, retention time.Duration) bool {
	return a.ended.IsZero() || now.Sub(a.ended) < retention || now.Sub(a.charged) < retention
}

// release drops the accounts that are no longer exported and that no queued reading can charge.
func (b *accountBook) release(now time.Time, retention time.Duration) {
	for key, a := range b.accounts {
		if a.exported(now, retention) {
			continue
		}
		if a.device.unsettled(now).Before(a.ended) && now.Sub(a.ended) < retention+rememberFor {
			continue
		}
		a.drop()
		delete(b.accounts, key)
		b.leaveDistributions(a)
		b.order = nil
	}
}

// evict removes the dropped accounts from the book and their rows from the given ones.
func (b *accountBook) evict(rows []Holder) []Holder {
	maps.DeleteFunc(b.accounts, func(_ HolderKey, a *account) bool {
		if a.dropped {
			b.leaveDistributions(a)
		}
		return a.dropped
	})
	b.order = nil
	return slices.DeleteFunc(rows, func(h Holder) bool { return b.accounts[*h.HolderKey] == nil })
}

// sorted returns all accounts, including those that ended, by key.
func (b *accountBook) sorted() []*account {
	if b.order == nil {
		b.order = slices.SortedFunc(maps.Values(b.accounts), func(x, y *account) int { return x.key.compare(y.key) })
	}
	return b.order
}

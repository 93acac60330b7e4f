package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// accountKey names a holder of a device: a claim or a pod by namespace and name. One that comes again under the same
// name while its account is kept continues it.
type accountKey struct {
	Namespace, Name string
	Device          driver.ID
}

func (k accountKey) compare(other accountKey) int {
	return cmp.Or(strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name), k.Device.Compare(other.Device))
}

// account is what a holder was charged for one device. Its totals stand in the order of the device's attributed
// counters, and reach as far as the last of them that it was charged for or that existed when it was opened.
type account struct {
	key    accountKey
	device *device
	labels *labels

	born    time.Time // when it began to hold the device
	ended   time.Time // when it ceased to; zero: it holds it now
	charged time.Time // the tick at which it was last charged for anything

	allocated float64 // seconds in which it held the device
	share     float64 // the same, divided among those who held it together
	totals    []total
	gauges    [numAttributedGauges]*Series

	gone bool // dropped: its retention is over, or it was given up for --max-series

	active time.Time // when the device was last seen active while this held it
}

// total is the sum of what an account was charged of one counter.
type total struct {
	counter *counter
	value   float64
	series  *Series // since the first snapshot with it; nil: the counter was not read since the account was opened
}

// open makes room for all of the device's attributed counters.
func (a *account) open(counters []*counter) {
	for i := len(a.totals); i < len(counters); i++ {
		a.totals = append(a.totals, total{counter: counters[i]})
	}
}

func (a *account) charge(c *counter, amount float64) {
	if c.index < len(a.totals) && amount > 0 {
		a.totals[c.index].value += amount
		a.charged = a.device.clock
	}
}

// show tells whether a total is exported. An account that was opened while its counter could not be read does not say 0.
func (a *account) show(t *total, tick uint64, now time.Time) bool {
	if t.series == nil && (t.value > 0 || a.ended.IsZero() && t.counter.present == tick) {
		key := t.counter.key
		t.series = &Series{
			Quantity: key.quantity, Labels: key.labels, Born: a.born, shown: now,
			labels: a.labels.ofQuantity(key),
		}
	}
	return t.series != nil
}

// gauge returns the series of the account's part of a gauge.
func (a *account) gauge(m *meter) *Series {
	s := &a.gauges[m.gauge]
	if *s == nil {
		*s = &Series{Quantity: m.key.quantity, labels: a.labels}
	}
	return *s
}

// book holds the accounts of all claims, or of all pods.
type book struct {
	holder   string // the label that names the holder
	accounts map[accountKey]*account
	order    []*account // by key; nil: to be made anew
}

// account returns the account of a holder of the device, and opens or reopens it where it must.
func (b *book) account(d *device, namespace, name string, born, now time.Time) *account {
	key := accountKey{namespace, name, d.id}
	a := b.accounts[key]
	if a == nil {
		a = &account{key: key, device: d, labels: holderLabels(b.holder, key), born: born, active: now}
		b.accounts[key] = a
		b.order = nil
	}
	if !a.ended.IsZero() {
		a.ended, a.active = time.Time{}, now
	}
	a.open(d.attributed)
	return a
}

// exported tells whether the account's series are shown: while it holds the device, and for the retention after its end and
// after what it was charged last, should that come later.
func (a *account) exported(now time.Time, retention time.Duration) bool {
	return a.ended.IsZero() || now.Sub(a.ended) < retention || now.Sub(a.charged) < retention
}

// release drops the accounts that are no longer exported and that no waiting reading can reach.
func (b *book) release(now time.Time, retention time.Duration) {
	for key, a := range b.accounts {
		if a.exported(now, retention) {
			continue
		}
		if a.device.unsettled(now).Before(a.ended) && now.Sub(a.ended) < retention+forget {
			continue
		}
		a.gone = true
		delete(b.accounts, key)
		b.order = nil
	}
}

// sorted returns the accounts, those that ended too, in the order of their keys.
func (b *book) sorted() []*account {
	if b.order == nil {
		b.order = slices.SortedFunc(maps.Values(b.accounts), func(x, y *account) int { return x.key.compare(y.key) })
	}
	return b.order
}

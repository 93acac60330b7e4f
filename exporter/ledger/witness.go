package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// witness counts an increment of a counter for those who held the device, or a part of it, when it
// happened, for each in full.
func (d *deviceBook) witness(c *counter, amount float64, from, to time.Time) {
	switch {
	case amount <= 0:
	case c.spec.Failure:
		d.witnessErrors(c, amount, from, to)
	case c.spec.Sharing == driver.Witnessed:
		d.witnessTime(c, amount, from, to)
	}
}

// witnessTime counts a duration: for each holder, the part of it that lies in the time in which it
// held the device.
func (d *deviceBook) witnessTime(c *counter, amount float64, from, to time.Time) {
	span := float64(to.Sub(from))
	d.eachBook(func(b *deviceBook) {
		b.timeline.each(from, to, func(s *segment, from, to time.Time) {
			part := 1.0
			if span > 0 {
				part = float64(to.Sub(from)) / span
			}
			s.eachHolder(func(a *account, _ bool) { a.witness(c.key, amount*part, d.clock) })
		})
	})
}

// witnessErrors counts errors. Those that the source told as events hit who held the device at that
// time. Errors of an unknown time hit all who held it within the span: which of them is not known.
func (d *deviceBook) witnessErrors(c *counter, amount float64, from, to time.Time) {
	failure := Failure{Device: d.id, Labels: c.key.labels}
	eachBook := d.eachBook
	if c.spec.Sharing != driver.Witnessed { // they are the device's alone
		eachBook = func(func(*deviceBook)) {}
	}
	for _, e := range d.takeEvents(c.key, amount, to) {
		amount--
		d.failed(failure.at(&e))
		eachBook(func(b *deviceBook) {
			b.timeline[b.timeline.at(e.at)].eachHolder(func(a *account, pod bool) {
				if !e.Named || a.isHit(&e.Event, pod) {
					a.fail(c.key, 1, e.at, d.clock)
				}
			})
		})
	}
	if amount <= 0 {
		return
	}
	failure.Count, failure.From, failure.To = amount, from, to
	d.failed(failure)
	eachBook(func(b *deviceBook) {
		var hit []*account
		b.timeline.each(from, to, func(s *segment, _, _ time.Time) {
			s.eachHolder(func(a *account, _ bool) {
				if !slices.Contains(hit, a) {
					hit = append(hit, a)
					a.fail(c.key, amount, to, d.clock)
				}
			})
		})
	})
}

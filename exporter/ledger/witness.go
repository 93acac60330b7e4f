package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// witness counts an increment of a counter in full for everyone who held the device, or a part of
// it, at that time.
func (d *deviceBook) witness(c *counter, amount float64, from, to time.Time) {
	switch {
	case amount <= 0:
	case c.spec.Failure:
		d.witnessErrors(c, amount, from, to)
	case c.spec.Sharing == driver.Witnessed:
		d.witnessTime(c, amount, from, to)
	}
}

// witnessTime counts a duration: for each holder, the part of it in which it held the device.
func (d *deviceBook) witnessTime(c *counter, amount float64, from, to time.Time) {
	span := float64(to.Sub(from))
	d.eachBook(func(b *deviceBook) {
		b.timeline.Each(from, to, func(s *segment, from, to time.Time) {
			part := 1.0
			if span > 0 {
				part = float64(to.Sub(from)) / span
			}
			eachHolder(s, func(a *account, _ bool) { a.witness(c.key, amount*part, d.clock) })
		})
	})
}

// witnessErrors counts errors. Errors that the source reported as events hit the holders at the
// time of the event. Errors of unknown time hit everyone who held the device within the span.
func (d *deviceBook) witnessErrors(c *counter, amount float64, from, to time.Time) {
	failure := book.Failure{Device: d.id, Labels: c.key.labels}
	eachBook := d.eachBook
	if c.spec.Sharing != driver.Witnessed { // not counted for holders
		eachBook = func(func(*deviceBook)) {}
	}
	for _, e := range d.takeEvents(c.key, amount, to) {
		amount--
		hit := failure
		hit.Count, hit.From, hit.To, hit.Named, hit.Pod, hit.Claims = 1, e.at, e.at, e.Named, e.Pod, e.Claims
		d.failed(hit)
		eachBook(func(b *deviceBook) {
			eachHolder(b.timeline.On(e.at), func(a *account, pod bool) {
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
		b.timeline.Each(from, to, func(s *segment, _, _ time.Time) {
			eachHolder(s, func(a *account, _ bool) {
				if !slices.Contains(hit, a) {
					hit = append(hit, a)
					a.fail(c.key, amount, to, d.clock)
				}
			})
		})
	})
}

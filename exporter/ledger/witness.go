package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// failureLog has the events and the errors of a device.
type failureLog struct {
	events    []queuedEvent
	failures  []book.Failure // of this tick
	lastError time.Time
}

// queuedEvent is an event. It waits until the counter has counted it and its time is settled. Then
// it is kept, so that a repeated event is recognized.
type queuedEvent struct {
	join.Event
	at      time.Time // on the ledger's clock
	counted bool
}

// maxQueuedEvents limits the remembered events of a device.
const maxQueuedEvents = 4 * join.MaxEvents

// queueEvents adds the new events of a tick. Events from before the device was known are in the
// first readings of its counters.
func (l *failureLog) queueEvents(events []join.Event, born, now time.Time) {
	l.events = slices.DeleteFunc(l.events, func(q queuedEvent) bool { return now.Sub(q.at) > rememberFor })
	for _, e := range events {
		known := slices.ContainsFunc(l.events, func(q queuedEvent) bool {
			return q.Quantity == e.Quantity && q.Labels == e.Labels && q.At.Equal(e.At) && q.PID == e.PID
		})
		if !known {
			at := onClock(e.At, now)
			l.events = append(l.events, queuedEvent{Event: e, at: at, counted: at.Before(born)})
		}
	}
	if more := len(l.events) - maxQueuedEvents; more > 0 {
		l.events = slices.Delete(l.events, 0, more)
	}
}

// takeEvents returns the events that a counter has counted until a time, ordered by time, at most
// amount of them.
func (l *failureLog) takeEvents(key seriesKey, amount float64, until time.Time) []queuedEvent {
	var out []queuedEvent
	for i := range l.events {
		e := &l.events[i]
		if e.counted || e.Quantity != key.quantity || e.Labels != key.labels || e.at.After(until) {
			continue
		}
		if float64(len(out)+1) > amount {
			break
		}
		e.counted = true
		out = append(out, *e)
	}
	return out
}

// failed records errors of the device.
func (l *failureLog) failed(f book.Failure) {
	l.lastError = driver.Later(l.lastError, f.To)
	l.failures = append(l.failures, f)
}

// failure returns the failure of an event, given what all of the counter have.
func (e *queuedEvent) failure(f book.Failure) book.Failure {
	f.Count, f.From, f.To, f.Named, f.Pod, f.Claims = 1, e.at, e.at, e.Named, e.Pod, e.Claims
	return f
}

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
		d.failed(e.failure(failure))
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

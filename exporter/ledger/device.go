package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// deviceBook is the ledger's record of one device.
type deviceBook struct {
	id    driver.ID
	seen  time.Time // the last tick in which it occurred
	clock time.Time // the present tick
	born  time.Time

	catalogue driver.Catalogue

	identity   identity  // of the hardware
	identified time.Time // the tick at which it became other hardware; zero: it never did

	joined *join.Device // of the last tick that knew it
	read   bool         // it was read at least once

	shares     []join.Share  // of the last tick
	ended      []join.Share  // likewise
	left       []time.Time   // when processes of those who hold it ended
	known      []knownTick   // by time
	timeline   timeline      // not empty
	late       time.Duration // how much later at most its changes may have been
	owners     map[holdingKey]*owner
	owned      []owners  // of shares, in their order
	periods    []*Period // by when they were known first
	newPeriods bool      // since the timeline took them over
	used       time.Time // the time of the tick before
	usesKnown  bool      // the last segment has parts by process

	meters       []*meter
	counters     []*counter
	attributed   []*counter // those of additive quantities, by index
	gauges       int        // the number of attributed gauges
	unattributed account    // what no holder was charged for
	events       []queuedEvent
	highest      []Value // of gauges that have a peak

	parent   *deviceBook // the device that this one is a part of; nil: none that is known
	parts    []*deviceBook
	activity activity // of a part
	weighed  []part   // of a parent: what weigh returned last

	accrued   time.Time // allocated time is distributed up to here
	allocated float64   // seconds in which it was held
	lastError time.Time
	failures  []Failure // of this tick
	measured  bool      // activity was measured at this tick

	inUse             float64   // seconds in which it was active while it was held
	usedUntil         time.Time // what was before is counted
	watched           bool      // its activity was measured at some time
	spans             []span    // in which it was active, and that are not charged yet
	contradiction     join.Contradiction
	contradictedSince time.Time
	contradicted      join.Contradiction // for long enough

	recorded recorded
	resumed  bool // of an earlier process: who holds it is to be known yet
}

func newDeviceBook(id driver.ID, catalogue driver.Catalogue, now time.Time) *deviceBook {
	d := &deviceBook{
		id: id, catalogue: catalogue, born: now, unattributed: account{born: now},
		timeline: timeline{{unattributed: join.Evenly(1)}},
	}
	d.unattributed.device = d
	return d
}

func (d *deviceBook) find(key seriesKey) *counter {
	for _, c := range d.counters {
		if c.key == key {
			return c
		}
	}
	return nil
}

// unsettled returns the time up to which no reading can be distributed any more.
func (d *deviceBook) unsettled(now time.Time) time.Time {
	oldest := d.accrued
	for _, m := range d.meters {
		if m.have && m.last.At.Before(oldest) && now.Sub(m.last.At) < rememberFor {
			oldest = m.last.At
		}
	}
	if d.parent != nil {
		if of := d.parent.unsettled(now); of.Before(oldest) {
			return of
		}
	}
	return oldest
}

// up returns whether the device is readable, and if it is not, why.
func (d *deviceBook) up() (Up, join.MissingReason) {
	switch missing := d.joined.Missing; {
	case missing == join.MissingNone:
		return UpNow, missing
	case missing == join.MissingUnreadable, d.read && !unreadable(missing):
		return Down, join.MissingUnreadable
	default:
		return UpUnknown, missing
	}
}

// unreadable reports whether a device that is missing for the reason could not be read by any
// source. Such a device is not down, even if it was read before.
func unreadable(r join.MissingReason) bool {
	return r == join.MissingDuplicate || r == join.MissingNotInstantiated || r == join.MissingDriverGone
}

// eachBook calls f for the device and its parts: what happens to a device happens to its parts.
func (d *deviceBook) eachBook(f func(*deviceBook)) {
	f(d)
	for _, p := range d.parts {
		f(p)
	}
}

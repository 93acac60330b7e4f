package ledger

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/divide"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
)

// deviceBook is the ledger's record of one device.
type deviceBook struct {
	born     time.Time
	seen     time.Time // the last tick that had the device
	clock    time.Time // the current tick
	identity identity  // of the hardware
	read     bool      // it has been read at least once

	holders
	device
	usage
	failureLog
	rejected     []driver.Rejection // readings of this tick
	unattributed account            // charges without a holder, and the peaks of the device
	allocated    float64            // seconds in which it was held

	parent   *deviceBook // the device that this one is a part of; nil: none known
	parts    []*deviceBook
	activity divide.Activity // of a partition

	periodsSaved bool // the record of its periods need not be made again
	resumed      bool // restored from an earlier process: the holders are not known yet
}

// holders are the holders of a device and the accounts charged for it.
type holders struct {
	shares    []join.Share // of the last tick
	ended     []join.Share // ended holds, of the last tick
	known     divide.Known
	holds     holds
	present   int             // the number of holds that have not ended
	accounts  []shareAccounts // one for each of shares
	late      time.Duration   // the largest possible delay of a change in it
	used      time.Time       // time of the previous tick
	usesKnown bool            // the last segment has parts by process
	periods   timeline.Periods
}

// partition is a partition of a device and its holders during a span of time without changes.
type partition struct {
	join.Part
	book    *deviceBook
	holders *segment
}

// deviceBooks are the records of all devices.
type deviceBooks map[driver.ID]*deviceBook

// of returns the record of a device, which it creates if necessary.
func (b deviceBooks) of(joined *join.Device, catalogue driver.Catalogue, now time.Time) *deviceBook {
	d := b[joined.ID]
	if d == nil {
		d = newDeviceBook(joined.ID, catalogue, now)
		b[joined.ID] = d
	}
	d.seen, d.joined = now, joined
	return d
}

func newDeviceBook(id driver.ID, catalogue driver.Catalogue, now time.Time) *deviceBook {
	d := &deviceBook{
		device: device{
			id: id, timeline: segments{{Unattributed: join.Evenly(1)}}, deviceSeries: deviceSeries{catalogue: catalogue},
		},
		born: now, unattributed: account{born: now}, holders: holders{holds: holds{}},
	}
	d.unattributed.device = &d.device
	return d
}

// filledBy returns the counter that a meter fills, nil for none. The integral of a gauge fills a
// counter only if no hardware counter does, or recently did.
func (d *deviceBook) filledBy(m *meter, now time.Time) *counter {
	if m.counts {
		return d.counter(m.key, now)
	}
	if !m.sums {
		return nil
	}
	sum := m.of(m.sum)
	hardware := d.findMeter(sum)
	if hardware != nil && !hardware.seen.Before(d.identified) && now.Sub(hardware.now.At) < rememberFor {
		return nil
	}
	return d.counter(sum, now)
}

// dividedCounter returns the counter of the partition's part of a parent's counter.
func (d *deviceBook) dividedCounter(key seriesKey, now time.Time) *counter {
	c := d.find(key)
	if c == nil {
		c = d.counter(key, now)
		c.divided = true
	}
	return c
}

// up returns whether the device is readable, and why not.
func (d *deviceBook) up() (book.Up, join.MissingReason) {
	switch missing := d.joined.Missing; {
	case missing == join.MissingNone:
		return book.UpNow, missing
	case missing == join.MissingRejected:
		return book.Down, missing
	case missing == join.MissingUnreadable, d.read && !unreadable(missing):
		return book.Down, join.MissingUnreadable
	default:
		return book.UpUnknown, missing
	}
}

// unreadable reports whether the reason means that no source can read the device. Such a device is
// not down, even if it was read before.
func unreadable(r join.MissingReason) bool {
	return r == join.MissingDuplicate || r == join.MissingNotInstantiated || r == join.MissingDriverGone
}

// eachBook calls f for the device and its partitions, to which everything happens that happens to
// the device.
func (d *deviceBook) eachBook(f func(*deviceBook)) {
	f(d)
	for _, p := range d.parts {
		f(p)
	}
}

// identity identifies the hardware behind a device's name. Fields that have never been known are
// empty.
type identity struct {
	names [4]string // UUID, PCI address, network interface, RDMA device
	cpus  []int
}

// identityOf returns the identity of hardware. uuid is its probable UUID.
func identityOf(h *driver.Hardware, uuid string) identity {
	if !strings.EqualFold(uuid, h.UUID) {
		uuid = strings.ToLower(h.UUID)
	}
	return identity{[...]string{uuid, h.PCI, h.NetDev, h.RDMADev}, h.CPUs}
}

// replacedBy reports whether other is different hardware. The first name that both have decides,
// else the CPUs.
func (i *identity) replacedBy(other *identity) bool {
	for n, name := range i.names {
		if name != "" && other.names[n] != "" {
			return name != other.names[n]
		}
	}
	return len(i.cpus) > 0 && len(other.cpus) > 0 && !slices.Equal(i.cpus, other.cpus)
}

// learn fills empty fields from other, which is the same hardware.
func (i *identity) learn(other *identity) {
	for n, name := range other.names {
		i.names[n] = cmp.Or(name, i.names[n])
	}
	if len(other.cpus) > 0 {
		i.cpus = other.cpus
	}
}

// identify compares the device's hardware with its earlier one. Different hardware gets new
// baselines: nothing is counted between the last reading of the old hardware and the first of the
// new one. The device's counters and holders continue.
func (d *deviceBook) identify(h *driver.Hardware, now time.Time) {
	present := identityOf(h, d.identity.names[0])
	if !d.identity.replacedBy(&present) {
		d.identity.learn(&present)
		return
	}
	d.identity, d.identified, d.activity = present, now, nil
	for _, m := range d.meters {
		m.replaced, m.idle = true, 0
	}
	for _, c := range d.counters {
		c.idle = 0
	}
}

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

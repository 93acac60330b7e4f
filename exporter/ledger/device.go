package ledger

import (
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// deviceBook is the ledger's record of one device.
type deviceBook struct {
	id       driver.ID
	born     time.Time
	seen     time.Time    // the last tick in which it occurred
	clock    time.Time    // the present tick
	joined   *join.Device // of the last tick that knew it
	identity identity     // of the hardware
	read     bool         // it was read at least once
	measured bool         // activity was measured at this tick

	holders
	deviceSeries
	usage
	failureLog
	unattributed account // what no holder was charged for
	allocated    float64 // seconds in which it was held

	parent   *deviceBook // the device that this one is a part of; nil: none that is known
	parts    []*deviceBook
	activity activity // of a part
	weighed  []part   // of a parent: what weigh returned last

	recorded recorded
	resumed  bool // of an earlier process: who holds it is to be known yet
}

// holders are who holds a device, and who is charged for it.
type holders struct {
	shares    []join.Share // of the last tick
	ended     []join.Share // holds that ended, of the last tick
	left      []time.Time  // when processes of those who hold it ended
	known     knownTicks
	owners    ownership
	owned     []owners      // of shares, in their order
	timeline  timeline      // not empty
	late      time.Duration // how much later at most its changes may have been
	accrued   time.Time     // it is decided up to here; allocated time is distributed
	used      time.Time     // the time of the tick before
	usesKnown bool          // the last segment has parts by process
	periodList
}

// deviceBooks are the records of all devices.
type deviceBooks map[driver.ID]*deviceBook

// of returns the record of a device at a tick, a new one if there is none.
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
		id: id, born: now, deviceSeries: deviceSeries{catalogue: catalogue}, unattributed: account{born: now},
		holders: holders{timeline: timeline{{unattributed: join.Evenly(1)}}},
	}
	d.unattributed.device = d
	return d
}

// counter returns the counter of a series, a new one if there is none: then all who are charged for
// the device have a total of it.
func (d *deviceBook) counter(key seriesKey, now time.Time) *counter {
	c := d.find(key)
	if c == nil {
		c = d.newCounter(key, now)
		d.unattributed.open(d.attributed)
		d.timeline.open(d.attributed)
	}
	return c
}

// filledBy returns the counter that a meter fills, nil if none. The integral of a gauge fills one
// only if no hardware counter does, or did recently.
func (d *deviceBook) filledBy(m *meter, now time.Time) *counter {
	switch hardware := d.findMeter(m.sum); {
	case m.counts:
		return d.counter(m.key, now)
	case !m.sums:
	case hardware != nil && !hardware.seen.Before(d.identified) && now.Sub(hardware.now.At) < rememberFor:
	default:
		return d.counter(m.sum, now)
	}
	return nil
}

// dividedCounter returns the counter of what the holders of a part have of the parent's.
func (d *deviceBook) dividedCounter(key seriesKey, now time.Time) *counter {
	c := d.find(key)
	if c == nil {
		c = d.counter(key, now)
		c.divided = true
	}
	return c
}

// unsettled returns the time up to which no reading can be distributed any more.
func (d *deviceBook) unsettled(now time.Time) time.Time {
	oldest := d.oldest(d.accrued, now)
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

// identity is the hardware behind a device's name, as far as it was ever known. Empty fields are
// unknown.
type identity struct {
	uuid, pci, netdev, rdma string
	cpus                    []int
}

// identityOf returns what identifies hardware. uuid is the UUID that is probably its own.
func identityOf(h *driver.Hardware, uuid string) identity {
	if !strings.EqualFold(uuid, h.UUID) {
		uuid = strings.ToLower(h.UUID)
	}
	return identity{uuid: uuid, pci: h.PCI, netdev: h.NetDev, rdma: h.RDMADev, cpus: h.CPUs}
}

// replacedBy reports whether the other hardware is another one. The first field that is known of
// both decides, in order: UUID, PCI address, network interface, RDMA device, CPUs.
func (i *identity) replacedBy(other *identity) bool {
	for _, field := range [...][2]string{
		{i.uuid, other.uuid}, {i.pci, other.pci}, {i.netdev, other.netdev}, {i.rdma, other.rdma},
	} {
		if field[0] != "" && field[1] != "" {
			return field[0] != field[1]
		}
	}
	return len(i.cpus) > 0 && len(other.cpus) > 0 && !slices.Equal(i.cpus, other.cpus)
}

// learn takes over the fields that the other hardware, which is the same, knows.
func (i *identity) learn(other *identity) {
	for _, field := range []struct {
		to   *string
		from string
	}{{&i.uuid, other.uuid}, {&i.pci, other.pci}, {&i.netdev, other.netdev}, {&i.rdma, other.rdma}} {
		if field.from != "" {
			*field.to = field.from
		}
	}
	if len(other.cpus) > 0 {
		i.cpus = other.cpus
	}
}

// identify compares the hardware behind the device with that of before. Other hardware starts new
// baselines: between the last reading of the old hardware and the first of the new one nothing is
// counted. The device's counters and its holders go on.
func (d *deviceBook) identify(h *driver.Hardware, now time.Time) {
	present := identityOf(h, d.identity.uuid)
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

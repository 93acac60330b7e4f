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
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
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

// contradictedFor is how long evidence must contradict the utilization before it counts: power and
// utilization are read at different times, and are averaged over different times. Another source
// may be half a minute late.
const (
	contradictedFor        = 15 * time.Second
	contradictedBySourceIn = time.Minute
)

// span is a time in which a device was active.
type span struct {
	from, to  time.Time
	activity  float64 // a utilization, or bytes per second
	threshold float64
	all       bool // all holders count as active, since the active one is unknown
}

// usage is the activity of a device.
type usage struct {
	inUse             float64   // seconds in which it was active and held
	usedUntil         time.Time // activity before it has been counted
	watched           bool      // its activity has been measured
	spans             []span    // periods of activity that are not charged yet
	contradiction     join.Contradiction
	contradictedSince time.Time
	contradicted      join.Contradiction // has lasted long enough
}

// markActive records that the device was active in a span of time.
func (u *usage) markActive(from, to time.Time, activity, threshold float64) {
	u.spans = append(u.spans, span{from: from, to: to, activity: activity, threshold: threshold})
}

// contradict records this tick's evidence against the device's utilization, and its consequence for
// the claims that hold the device.
func (u *usage) contradict(found join.Contradiction, holders *segment, now time.Time) {
	if found != u.contradiction {
		u.contradiction, u.contradictedSince = found, now
	}
	u.contradicted = join.NoContradiction
	lasted := now.Sub(u.contradictedSince)
	if found == join.NoContradiction || lasted < contradictedFor ||
		found == join.SourceContradicts && lasted < contradictedBySourceIn {
		return
	}
	u.contradicted = found
	from := driver.Later(u.contradictedSince, now.Add(-readings.MaxIntegration))
	u.spans = append(u.spans, span{from: from, to: now, all: true})
	for _, p := range holders.Claims {
		if f := p.Holder.ofClaim.fit; f != nil {
			f.Conflict = true
		}
	}
}

// chargeActive charges periods of activity to their holders. If the use of processes or own CPUs is
// known, only holders whose part of the activity exceeds the threshold are active; for own CPUs the
// threshold is relative to these CPUs. For unknown own CPUs, the activity of the device decides.
func (u *usage) chargeActive(t segments) {
	slices.SortStableFunc(u.spans, func(a, b span) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
	for i := range u.spans {
		active := &u.spans[i]
		t.Each(active.from, active.to, func(s *segment, from, to time.Time) {
			if len(s.Claims) > 0 {
				u.inUse += uncounted(&u.usedUntil, from, to)
			}
			for _, p := range s.Claims {
				if active.charge(s, &p, from, to) {
					p.Holder.firstActiveIn(from, to, s.Attribution)
				}
			}
			for _, p := range s.Pods {
				active.charge(s, &p, from, to)
			}
		})
	}
	u.spans = u.spans[:0]
}

// charge charges a part of the span to a holder, and reports whether it was active then.
func (a *span) charge(s *segment, p *part, from, to time.Time) bool {
	active := a.of(s, p)
	switch {
	case active:
		p.Holder.activeIn(from, to)
	case s.Sampled:
		p.Holder.perhapsActiveIn(from, to)
	}
	return active
}

// of reports whether a holder was active in the span.
func (a *span) of(s *segment, p *part) bool {
	return a.all || !s.Measured || p.Own == divide.UnknownOwn || a.activity*p.Use[driver.ByTime] > a.threshold*p.Own
}

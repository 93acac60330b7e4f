package ledger

import (
	"cmp"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

// Fields of recordDevice.
const (
	deviceDriver    = 2
	devicePool      = 3
	deviceName      = 4
	deviceBorn      = 5
	deviceUUID      = 6
	devicePCI       = 7
	deviceNetDev    = 8
	deviceRDMA      = 9
	deviceCPU       = 10 // CPU number plus one
	deviceRead      = 11
	deviceWatched   = 12
	deviceLastError = 13
	deviceCounter   = 14
	deviceMeter     = 16
	deviceHighest   = 17

	counterFiller = 8
	counterSums   = 9
	counterIdle   = 10
	counterLimit  = 11
	counterRate   = 12
	counterRead   = 13

	meterSince   = 8
	meterIdle    = 9
	meterDoubted = 10 // value; the time is the next number
	meterLeft    = 12
	meterLeftTo  = 14
	meterLeftSum = 16
)

func (d *deviceBook) fields(m *record) {
	m.string(deviceDriver, &d.id.Driver)
	m.string(devicePool, &d.id.Pool)
	m.string(deviceName, &d.id.Device)
	m.stamp(deviceBorn, &d.born)
	m.stamp(deviceLastError, &d.lastError)
	m.string(deviceUUID, &d.identity.uuid)
	m.string(devicePCI, &d.identity.pci)
	m.string(deviceNetDev, &d.identity.netdev)
	m.string(deviceRDMA, &d.identity.rdma)
	m.bool(deviceRead, &d.read)
	m.bool(deviceWatched, &d.watched)
	m.values(deviceHighest, &d.highest)
}

func (c *counter) fields(m *record) {
	m.stamp(seriesBorn, &c.series.Born)
	m.stamp(seriesShown, &c.series.Shown)
	m.string(seriesSource, &c.series.Source)
	m.string(counterFiller, &c.filler)
	m.bool(counterSums, &c.sums)
	m.float(counterIdle, &c.idle)
	m.float(counterLimit, &c.limit)
	m.rate(counterRate, &c.fastest)
	m.rate(counterRead, &c.read)
}

func (m *meter) fields(r *record) {
	r.string(seriesSource, &m.source)
	r.stamp(meterSince, &m.since)
	r.float(meterIdle, &m.idle)
	r.point(meterDoubted, &m.before.Doubted)
	r.point(meterLeft, &m.before.Left.Point)
	r.point(meterLeftTo, &m.before.Left.To)
	r.float(meterLeftSum, &m.before.Left.Counted)
}

// point is a value and its time, which is written if there is one.
func (m *record) point(number int, p *readings.Point) {
	if m.writer == nil || !p.At.IsZero() {
		m.float(number, &p.Value)
		m.time(number+1, &p.At)
	}
}

func (w *writer) device(d *deviceBook) {
	b := w.append(w.begin(&d.recorded), d)
	for _, cpu := range d.identity.cpus {
		b = wire.Uint(b, deviceCPU, uint64(cpu)+1)
	}
	for c := range d.byIndex() {
		b = wire.Message(b, deviceCounter, func(b []byte) []byte {
			return w.append(c.key.append(b, d.catalogue), c)
		})
	}
	for _, m := range d.meters {
		if !m.persistent() {
			continue
		}
		b = wire.Message(b, deviceMeter, func(b []byte) []byte {
			return w.append(m.key.append(b, d.catalogue), m)
		})
	}
	w.end(recordDevice, &d.recorded, slotSeldom, b)
	w.counts(d)
	w.held(d)
	w.periods(d)
}

// device restores a device. Its counters and meters are in the order in which they were written,
// which the record of its sums uses. Quantities that the catalogue lacks are left out when the sums
// are read.
func (r *reader) device(number uint64, b []byte) error {
	d := newDeviceBook(driver.ID{}, r.ledger.config.Catalogue, r.kept.Time)
	d.seen, d.used, d.clock = r.kept.Time, r.kept.Time, r.kept.Time
	d.born = time.Time{}
	r.orders[d] = &order{}
	m, err := r.parse(b, d)
	for i := 0; i < len(m.fields) && err == nil; i++ {
		switch f := &m.fields[i]; f.Number {
		case deviceCPU:
			d.identity.cpus = append(d.identity.cpus, int(f.Uint())-1)
		case deviceCounter:
			err = r.counter(d, f.Bytes)
		case deviceMeter:
			err = r.meter(d, f.Bytes)
		}
	}
	if err != nil {
		return err
	}
	if d.id.Device == "" || d.born.IsZero() || r.ledger.devices[d.id] != nil {
		return errRecord
	}
	d.unattributed.born, d.unattributed.device = d.born, d
	d.joined = &join.Device{ID: d.id}
	r.devices[number], r.ledger.devices[d.id] = d, d
	return nil
}

func (r *reader) counter(d *deviceBook, b []byte) error {
	m, err := r.record(b)
	key, known := m.key()
	if err != nil || !known || d.find(key) != nil {
		return cmp.Or(err, errRecord)
	}
	c := d.counter(key, r.kept.Time)
	limit := c.limit
	c.series, c.seen = newSeries(key), r.kept.Time
	c.fields(&m)
	c.limit = max(c.limit, limit)
	r.orders[d].counters = append(r.orders[d].counters, c)
	return nil
}

func (r *reader) meter(d *deviceBook, b []byte) error {
	m, err := r.record(b)
	key, known := m.key()
	if err != nil || !known || d.findMeter(key) != nil {
		return cmp.Or(err, errRecord)
	}
	of := d.meter(key)
	of.fields(&m)
	of.have, of.seen, of.series = true, r.kept.Time, of.series.from(of.source)
	r.orders[d].meters = append(r.orders[d].meters, of)
	return nil
}

// persistent reports whether the next process needs the meter's last reading.
func (m *meter) persistent() bool {
	return (m.counts || m.sums || m.spec.Distributed) && m.have && !m.divided
}

func (d *deviceBook) numbers(p *packed) {
	p.float(&d.allocated)
	p.float(&d.inUse)
	p.time(&d.accrued)
	p.time(&d.usedUntil)
}

func (c *counter) numbers(p *packed, d *deviceBook) {
	p.float(&c.total)
	p.time(&c.settled)
	if c.index >= 0 {
		p.float(&d.unattributed.totals[c.index].value)
	}
}

func (m *meter) numbers(p *packed) {
	p.float(&m.last.Value)
	p.time(&m.last.At)
}

func (w *writer) counts(d *deviceBook) {
	p := w.pack()
	d.numbers(p)
	for c := range d.byIndex() {
		c.numbers(p, d)
	}
	for _, m := range d.meters {
		if m.persistent() {
			m.numbers(p)
		}
	}
	w.end(recordCounts, &d.recorded, slotSums, p.append(w.begin(&d.recorded)))
}

func (r *reader) counts(number uint64, b []byte) error {
	p, err := r.unpack(b)
	d := r.devices[number]
	if err != nil || d == nil {
		return cmp.Or(err, errRecord)
	}
	d.numbers(&p)
	for _, c := range r.orders[d].counters {
		c.numbers(&p, d)
	}
	for _, m := range r.orders[d].meters {
		m.last.Quantity, m.last.Labels = m.key.quantity, m.key.labels
		m.numbers(&p)
		m.now = join.Reading{Reading: m.last, Source: m.source}
	}
	return p.err()
}

// Fields of recordHeld: segments, with the numbers of accounts and their weights.
const (
	heldSegment = 2

	segmentFrom   = 1
	segmentClaim  = 2
	segmentPod    = 3
	segmentWeight = 4 // of the preceding account
	segmentGuess  = 5
	segmentHow    = 6 // the attribution
)

// held writes the holders of the device, without the use of their processes, which changes each
// second.
func (w *writer) held(d *deviceBook) {
	b := w.begin(&d.recorded)
	first := d.timeline.at(d.unsettled(d.clock))
	for i := max(first, len(d.timeline)-maxHeld); i < len(d.timeline); i++ {
		s := &d.timeline[i]
		if i > first && s.sameHolders(&d.timeline[i-1]) {
			continue
		}
		b = wire.Message(b, heldSegment, func(b []byte) []byte {
			if i > first {
				b = w.time(b, segmentFrom, s.from)
			}
			b = wire.String(wire.Bool(b, segmentGuess, s.guessed), segmentHow, string(s.attribution))
			for j := range s.claims {
				b = wire.Uint(b, segmentClaim, w.number(&s.claims[j].account.recorded))
				b = wire.Float(b, segmentWeight, s.claims[j].weight)
			}
			for j := range s.pods {
				b = wire.Uint(b, segmentPod, w.number(&s.pods[j].account.recorded))
				b = wire.Float(b, segmentWeight, s.pods[j].weight)
			}
			return b
		})
	}
	w.end(recordHeld, &d.recorded, slotThird, b)
}

// maxHeld limits the written segments of a device.
const maxHeld = 64

func (r *reader) held(number uint64, b []byte) error {
	d := r.devices[number]
	if d == nil {
		return errRecord
	}
	var out timeline
	err := wire.Fields(b, func(f *wire.Field) error {
		if f.Number != heldSegment {
			return nil
		}
		s, err := r.segment(f.Bytes)
		if len(out) == 0 {
			s.from = time.Time{}
		}
		out = out.append(s)
		return err
	})
	if len(out) > 0 {
		d.timeline = out
	}
	return err
}

func (r *reader) segment(b []byte) (segment, error) {
	var s segment
	var last *portion
	add := func(to []portion, number uint64) []portion {
		a := r.accounts[number]
		if a == nil { // it was dropped
			a = &account{dropped: true}
		}
		to = append(to, portion{account: a, own: 1})
		last = &to[len(to)-1]
		return to
	}
	err := wire.Fields(b, func(f *wire.Field) error {
		switch f.Number {
		case segmentFrom:
			s.from = r.time(f.Int())
		case segmentClaim:
			s.claims = add(s.claims, f.Uint())
		case segmentPod:
			s.pods = add(s.pods, f.Uint())
		case segmentGuess:
			s.guessed = f.Bool()
		case segmentHow:
			s.attribution = join.Attribution(f.String())
		case segmentWeight:
			if last == nil {
				return errRecord
			}
			last.weight, last.use = f.Float(), join.Evenly(f.Float())
		}
		return nil
	})
	s.setUnattributed()
	return s, err
}

// Fields of recordPeriods.
const (
	devicePeriod = 2

	periodNamespace   = 1
	periodClaim       = 2
	periodClaimUID    = 3
	periodShare       = 4
	periodPod         = 5
	periodPodUID      = 6
	periodAdmin       = 7
	periodAttribution = 8
	periodFrom        = 9
	periodTo          = 10
	periodOfPod       = 11 // the pod's namespace, if it differs from the claim's
	periodOlder       = 12
	periodFromEarly   = 13 // doubts
	periodFromLate    = 14
	periodToEarly     = 15
	periodToLate      = 16
)

func (p *Period) fields(m *record) {
	m.string(periodNamespace, &p.Claim.Namespace)
	m.string(periodClaim, &p.Claim.Name)
	m.string(periodClaimUID, &p.ClaimUID)
	m.string(periodShare, &p.ShareID)
	m.string(periodPod, &p.Pod.Name)
	m.string(periodPodUID, &p.PodUID)
	m.string(periodOfPod, &p.Pod.Namespace)
	m.bool(periodAdmin, &p.Admin)
	m.string(periodAttribution, (*string)(&p.Attribution))
	m.bool(periodOlder, &p.Older)
	m.duration(periodFromEarly, &p.FromDoubt.Early)
	m.duration(periodFromLate, &p.FromDoubt.Late)
	m.duration(periodToEarly, &p.ToDoubt.Early)
	m.duration(periodToLate, &p.ToDoubt.Late)
	m.time(periodFrom, &p.From)
	m.time(periodTo, &p.To)
}

func (w *writer) periods(d *deviceBook) {
	if !w.due(&d.recorded, slotFourth) {
		return
	}
	b := w.begin(&d.recorded)
	for _, p := range d.periods {
		b = wire.Message(b, devicePeriod, func(b []byte) []byte { return w.append(b, p) })
	}
	w.end(recordPeriods, &d.recorded, slotFourth, b)
}

func (r *reader) periods(number uint64, b []byte) error {
	d := r.devices[number]
	if d == nil {
		return errRecord
	}
	return wire.Fields(b, func(f *wire.Field) error {
		if f.Number != devicePeriod {
			return nil
		}
		p := &Period{Device: d.id}
		_, err := r.parse(f.Bytes, p)
		d.periods, d.newPeriods = append(d.periods, p), true
		return err
	})
}

// resume restores the device's holders until the kubelet's first answer, or makes it free if none
// of the time before is charged.
func (d *deviceBook) resume(ended, now time.Time, alone bool) {
	d.resumed = true
	if d.accrued.IsZero() {
		d.accrued = ended
	}
	if !alone {
		return
	}
	last := d.timeline.last().from
	d.timeline = d.timeline.append(segment{from: driver.Later(ended, last), unattributed: join.Evenly(1)})
	d.accrued = now
	d.timeline.endAccounts(nil, ended)
	for i, p := range d.periods {
		if p.To.IsZero() {
			over := *p
			over.To = driver.Later(p.From, ended)
			d.periods[i] = &over
		}
	}
}

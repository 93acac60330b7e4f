package ledger

import (
	"encoding/json"
	"hash/maphash"
	"iter"
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// What outlives the process is in records, fields of a message by their kind. A record replaces the
// one of its kind and number that came before, except for recordObserved, which adds to a
// distribution. What changes at each tick (sums, the last readings) is apart from what seldom does.
const (
	recordDevice       = 1 // of a device: what it is, and what its counters and meters are
	recordCounts       = 2 // of a device: its sums and last readings, in the order of recordDevice
	recordHeld         = 3 // of a device: who held it in the time whose readings are not charged yet
	recordAccount      = 4
	recordSums         = 5 // of an account, in the order of the device's counters
	recordFit          = 6 // of an account: what is known of its use
	recordDistribution = 7
	recordObserved     = 8 // what is added to a distribution
	recordClaim        = 9 // the name of a claim, and what identifies it
	recordPod          = 10
	recordPeriods      = 11 // of a device: who held it when
	recordGone         = 12 // a number that has no records any more
	recordDoubts       = 13 // of a claim's account: how far what it was charged may be off
	recordLives        = 14 // of a driver: how long its claims took to be prepared and to become active
)

// Fields that all records have.
const fieldNumber = 1

// How often, in ticks, what is known of the use of claims is written, and how far their amounts may
// be off. Both are complete at the end of a process.
const (
	seldom     = 30
	notSoOften = 10
)

// closing is for how many ticks an account that was closed is written as if it was not: its receipt
// may not be on the disk yet. A receipt that is made again is known.
const closing = 10

// recorded is what was written of something: its number, and hashes of its records.
type recorded struct {
	number uint64
	hashes [4]uint64
}

// recordSlots are the records of one thing, by the place of their hashes.
const (
	slotSeldom = iota // what it is
	slotSums
	slotThird
	slotFourth
)

// writer writes the records that have changed.
type writer struct {
	seed    maphash.Seed
	last    uint64          // number that was given
	alive   map[uint64]bool // the numbers that have records: whether they had at this call
	on      bool            // it is used
	whole   bool
	turn    uint64
	out     []byte
	scratch []byte
	packed  packed
	record  record
	clock   func(time.Time) int64
}

// AppendState appends the state of the ledger, in a form that [Ledger.Restore] reads. clock
// converts times.
func (l *Ledger) AppendState(b []byte, clock func(time.Time) int64) []byte {
	return l.write(b, clock, true)
}

// AppendChanges appends what has changed since the last call of it or AppendState.
func (l *Ledger) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	return l.write(b, clock, false)
}

func (l *Ledger) write(b []byte, clock func(time.Time) int64, whole bool) []byte {
	w := &l.writer
	if !w.on {
		w.on, w.seed, w.alive = true, maphash.MakeSeed(), map[uint64]bool{}
	}
	w.out, w.clock, w.whole = b, clock, whole
	w.turn++
	for number := range w.alive {
		w.alive[number] = false
	}
	for _, d := range l.devices {
		w.device(d)
	}
	for _, book := range [2]*accountBook{&l.claims, &l.pods} {
		for a := range book.all() {
			w.account(a, book.ofPods)
		}
		for key, c := range book.distributions {
			w.distributions(key, c)
		}
	}
	for claim, n := range l.names.claims.names {
		w.name(recordClaim, claim.Namespace, claim.Name, n)
	}
	for pod, n := range l.names.pods.names {
		w.name(recordPod, pod.Namespace, pod.Name, n)
	}
	for _, d := range l.byDriver {
		w.lives(d)
	}
	for number, alive := range w.alive {
		if !alive {
			delete(w.alive, number)
			w.out = wire.Uint(w.out, recordGone, number)
		}
	}
	out := w.out
	w.out, w.clock = nil, nil
	return out
}

// number returns the number of something, and notes that it has records.
func (w *writer) number(of *recorded) uint64 {
	if of.number == 0 {
		w.last++
		of.number = w.last
	}
	if _, known := w.alive[of.number]; !known { // it is new, or comes again after it was gone
		of.hashes = [len(of.hashes)]uint64{}
	}
	w.alive[of.number] = true
	return of.number
}

// begin begins a record.
func (w *writer) begin(of *recorded) []byte {
	return wire.Uint(w.scratch[:0], fieldNumber, w.number(of))
}

// end writes a record if it is another one than before.
func (w *writer) end(kind int, of *recorded, slot int, record []byte) {
	w.scratch = record
	hash := maphash.Bytes(w.seed, record)
	if !w.whole && hash == of.hashes[slot] {
		return
	}
	of.hashes[slot] = hash
	w.out = wire.Bytes(w.out, kind, record)
}

// time appends a time on the clock that goes on over restarts of the process.
func (w *writer) time(b []byte, field int, t time.Time) []byte {
	return wire.Int(b, field, w.micros(t))
}

// micros returns such a time in microseconds; 0 for the zero time.
func (w *writer) micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	if at := w.clock(t) / int64(time.Microsecond); at != 0 {
		return at
	}
	return 1
}

// stamp appends a time that others have seen, which is to stay exactly the same.
func stamp(b []byte, field int, t time.Time) []byte {
	if t.IsZero() {
		return b
	}
	return wire.Int(b, field, t.UnixNano())
}

// Fields of a series, and of its value.
const (
	seriesQuantity = 1
	seriesLabel0   = 2
	seriesLabel1   = 3
	seriesSource   = 4
	seriesBorn     = 5
	seriesShown    = 6
	seriesValue    = 7
)

func (k seriesKey) append(b []byte, catalogue driver.Catalogue) []byte {
	b = wire.String(b, seriesQuantity, catalogue.Spec(k.quantity).Name)
	b = wire.String(b, seriesLabel0, k.labels[0])
	return wire.String(b, seriesLabel1, k.labels[1])
}

func (v *Value) append(b []byte, field int, catalogue driver.Catalogue) []byte {
	return wire.Message(b, field, func(b []byte) []byte {
		key := seriesKey{v.Quantity, v.Labels}
		b = key.append(b, catalogue)
		b = stamp(stamp(b, seriesBorn, v.Born), seriesShown, v.Shown)
		return wire.Float(b, seriesValue, v.Value)
	})
}

// Fields of recordDevice.
const (
	deviceDriver       = 2
	devicePool         = 3
	deviceName         = 4
	deviceBorn         = 5
	deviceUUID         = 6
	devicePCI          = 7
	deviceNetDev       = 8
	deviceRDMA         = 9
	deviceCPU          = 10 // one more than its number
	deviceRead         = 11
	deviceWatched      = 12
	deviceLastError    = 13
	deviceCounter      = 14
	deviceUnattributed = 15 // when the total of an attributed counter was shown first, or 1
	deviceMeter        = 16
	deviceHighest      = 17

	counterFiller = 8
	counterSums   = 9
	counterIdle   = 10
	counterLimit  = 11
	counterRate   = 12
	counterRead   = 13

	meterSince = 8
	meterIdle  = 9
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
	for i := range d.highest {
		b = d.highest[i].append(b, deviceHighest, d.catalogue)
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

// rounded returns a rate that is not lower, and changes seldom.
func rounded(rate float64) float64 {
	fraction, exponent := math.Frexp(rate)
	return math.Ldexp(math.Ceil(fraction*64)/64, exponent)
}

// byIndex yields the attributed counters in the order of the totals of accounts, and then the
// others.
func (d *deviceBook) byIndex() iter.Seq[*counter] {
	return func(yield func(*counter) bool) {
		for _, c := range d.attributed {
			if !yield(c) {
				return
			}
		}
		for _, c := range d.counters {
			if c.index < 0 && !yield(c) {
				return
			}
		}
	}
}

// persistent reports whether the meter's last reading is of use to the next process.
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

// Fields of recordHeld: segments, with the numbers of accounts and their weights.
const (
	heldSegment = 2

	segmentFrom   = 1
	segmentClaim  = 2
	segmentPod    = 3
	segmentWeight = 4 // of the account before
	segmentGuess  = 5
	segmentHow    = 6 // the attribution
)

// held writes who held the device. What their processes used is not: that changes each second.
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

// maxHeld bounds the segments of a device that are written.
const maxHeld = 64

// sameHolders reports whether both have the same holders and weights.
func (s *segment) sameHolders(other *segment) bool {
	same := func(x, y []portion) bool {
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if x[i].account != y[i].account || x[i].weight != y[i].weight {
				return false
			}
		}
		return true
	}
	return same(s.claims, other.claims) && same(s.pods, other.pods)
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
	periodOfPod       = 11 // the pod's namespace, if it is another one
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
	b := w.begin(&d.recorded)
	for _, p := range d.periods {
		b = wire.Message(b, devicePeriod, func(b []byte) []byte { return w.append(b, p) })
	}
	w.end(recordPeriods, &d.recorded, slotFourth, b)
}

// Fields of recordAccount.
const (
	accountDevice     = 2
	accountNamespace  = 3
	accountName       = 4
	accountUID        = 5
	accountOfPods     = 6
	accountBorn       = 7
	accountEnded      = 8
	accountMatured    = 9
	accountLastError  = 10
	accountWatched    = 11
	accountYoung      = 12
	accountAggregated = 13
	accountEarlier    = 14
	accountWitnessed  = 15
	accountShown      = 16 // when the total of a counter was shown first; 1: it was not
	accountReleased   = 17
	accountHow        = 18 // the attribution
	accountPartial    = 19
	accountClosed     = 20
	accountUser       = 21
	accountUserUID    = 22 // of the user before
	accountAllocated  = 23 // the life of a claim
	accountWaiting    = 24
	accountPrepared   = 25
	accountFirst      = 26
	accountUnprepared = 27
	accountCounted    = 28 // the driver's distributions have how long it took to be prepared
	accountCountedUse = 29 // and to become active

	amountsBorn      = 1
	amountsShown     = 2
	amountsValue     = 3
	amountsAllocated = 4
	amountsShare     = 5
	amountsUsed      = 6
)

func (a *account) fields(m *record) {
	m.string(accountNamespace, &a.key.Namespace)
	m.string(accountName, &a.key.Name)
	m.string(accountUID, &a.uid)
	m.stamp(accountBorn, &a.born)
	m.time(accountEnded, &a.ended)
	m.stamp(accountMatured, &a.matured)
	m.stamp(accountLastError, &a.lastError)
	m.bool(accountWatched, &a.watched)
	m.bool(accountYoung, &a.young)
	m.bool(accountAggregated, &a.aggregated)
	m.string(accountHow, (*string)(&a.attribution))
	m.bool(accountPartial, &a.partial)
	v := a.known()
	m.stamp(accountAllocated, &v.Allocated)
	m.time(accountWaiting, &v.Waiting)
	m.time(accountPrepared, &v.Prepared)
	m.time(accountFirst, &v.FirstActive)
	m.time(accountUnprepared, &v.Unprepared)
	m.bool(accountCounted, &v.countedPreparation)
	m.bool(accountCountedUse, &v.countedActivity)
	if a.life == nil && v != (life{}) { // it was read
		*a.lived() = v
	}
}

func (w *writer) account(a *account, ofPods bool) {
	if a.dropped {
		return
	}
	if a.closed && a.closedAt == 0 {
		a.closedAt = w.turn
	}
	over := a.closed && (a.closedBefore || w.turn-a.closedAt >= closing)
	if over {
		a.users = nil
	}
	b := w.append(w.begin(&a.recorded), a)
	b = wire.Uint(b, accountDevice, w.number(&a.device.recorded))
	b = wire.Bool(wire.Bool(b, accountOfPods, ofPods), accountClosed, over)
	if a.earlier != nil {
		b = wire.Uint(b, accountEarlier, w.number(&a.earlier.recorded))
	}
	for i := range a.witnessed {
		b = a.witnessed[i].append(b, accountWitnessed, a.device.catalogue)
	}
	for _, u := range a.users {
		b = wire.String(wire.String(b, accountUser, u.Name), accountUserUID, u.UID)
	}
	b = a.appendShown(b)
	if m := a.released(); m != nil {
		b = wire.Message(b, accountReleased, func(b []byte) []byte { return w.amounts(b, m, a.device.catalogue) })
	}
	w.end(recordAccount, &a.recorded, slotSeldom, b)
	w.numbers(a, recordSums, slotSums, (*account).sums)
	if a.fit != nil && (w.whole || a.fit.due || (w.turn+a.recorded.number)%seldom == 0) {
		w.fit(a)
	}
	if !ofPods && (w.whole || !a.ended.IsZero() || (w.turn+a.recorded.number)%notSoOften == 0) {
		w.numbers(a, recordDoubts, slotFourth, (*account).doubts)
	}
}

// appendShown appends when each total was shown first.
func (a *account) appendShown(b []byte) []byte {
	for i := range a.totals {
		if s := a.totals[i].series; s != nil {
			b = stamp(b, accountShown, s.Shown)
		} else {
			b = wire.Int(b, accountShown, 1)
		}
	}
	return b
}

func (a *Amounts) fields(m *record) {
	m.stamp(amountsBorn, &a.Born)
	m.stamp(amountsShown, &a.Shown)
	m.float(amountsAllocated, &a.Allocated)
	m.float(amountsShare, &a.Share)
	m.float(amountsUsed, &a.Used)
}

func (w *writer) amounts(b []byte, of *Amounts, catalogue driver.Catalogue) []byte {
	b = w.append(b, of)
	for i := range of.Values {
		b = of.Values[i].append(b, amountsValue, catalogue)
	}
	return b
}

func (a *account) doubts(p *packed) {
	p.float(&a.edges)
	p.float(&a.unread)
	for i := range a.totals {
		if p.writer != nil || len(p.numbers) > 0 { // counters may have come since it was written
			p.float(&a.totals[i].doubt)
			p.float(&a.totals[i].measured)
		}
	}
}

func (a *account) sums(p *packed) {
	p.float(&a.allocated)
	p.float(&a.share)
	p.float(&a.used)
	p.time(&a.active)
	p.time(&a.usedUntil)
	for i := range a.totals {
		p.float(&a.totals[i].value)
	}
}

func (w *writer) numbers(a *account, kind, slot int, of func(*account, *packed)) {
	p := w.pack()
	of(a, p)
	w.end(kind, &a.recorded, slot, p.append(w.begin(&a.recorded)))
}

// Fields of recordFit. The numbers are packed, in the order of the code.
const (
	fitActivity  = 4
	fitBandwidth = 5
	fitEngine    = 6
	fitDivided   = 7
	fitPartial   = 8
	fitConflict  = 9
	fitSeveral   = 10
	fitEnded     = 11 // what it had when it ended
	fitAdvice    = 12 // that of a claim that ended, in JSON

	endedShareID  = 1
	endedRequest  = 2
	endedAdmin    = 3
	endedConsumed = 4 // a resource
	endedAmount   = 5 // of the resource before
	endedKnown    = 6
)

func (f *fitting) numbers(p *packed) {
	for _, v := range [...]*float64{
		&f.memory, &f.measured, &f.readings, &f.level, &f.grown, &f.near, &f.copies, &f.media, &f.peers,
	} {
		p.float(v)
	}
}

func (f *fitting) fields(m *record) {
	m.string(fitEngine, &f.engine)
	m.bool(fitDivided, &f.divided)
	m.bool(fitPartial, &f.partial)
	m.bool(fitConflict, &f.conflict)
	m.bool(fitSeveral, &f.several)
}

func (w *writer) fit(a *account) {
	f := a.fit
	p := w.pack()
	f.numbers(p)
	b := w.append(p.append(w.begin(&a.recorded)), f)
	b = wire.Message(b, fitActivity, appender(f.activity.AppendBinary))
	b = wire.Message(b, fitBandwidth, appender(f.bandwidth.AppendBinary))
	if f.ended != nil {
		b = wire.Message(b, fitEnded, func(b []byte) []byte { return w.ended(b, f.ended) })
	}
	if f.final {
		text, _ := json.Marshal(f.advice) // it has nothing that can't be encoded; else it is lost
		b = wire.Bytes(b, fitAdvice, text)
	}
	f.due = false
	w.end(recordFit, &a.recorded, slotThird, b)
}

// endedShare is what a claim had of the device when it ended.
type endedShare join.Share

func (s *endedShare) fields(m *record) {
	known := true // the record is not empty
	m.string(endedShareID, &s.ShareID)
	m.string(endedRequest, &s.Request)
	m.bool(endedAdmin, &s.Admin)
	m.bool(endedKnown, &known)
}

func (w *writer) ended(b []byte, s *join.Share) []byte {
	b = w.append(b, (*endedShare)(s))
	for _, c := range s.Consumed {
		b = wire.Float(wire.String(b, endedConsumed, c.Resource), endedAmount, c.Value)
	}
	return b
}

// appender returns a function that appends what can't fail.
func appender(f func([]byte) ([]byte, error)) func([]byte) []byte {
	return func(b []byte) []byte {
		b, _ = f(b) // of a histogram, the error is nil
		return b
	}
}

// Fields of recordDistribution and recordObserved.
const (
	distributionNamespace = 2
	distributionName      = 3
	distributionDriver    = 4
	distributionSeries    = 5
	distributionHistogram = 6

	observedValue   = 2
	observedSeconds = 3
)

// observation is what was added to a distribution and is not written yet.
type observation struct{ value, seconds float64 }

// maxObservations bounds these: the distribution is written as a whole instead.
const maxObservations = 32

func (w *writer) distributions(key claimKey, c *claimDistributions) {
	for _, d := range c.quantities {
		fresh := d.observed
		d.observed, d.keeps = d.observed[:0], true
		if w.whole || len(fresh) > maxObservations || d.recorded.number == 0 || d.shown != !d.series.Shown.IsZero() {
			w.distribution(key, d, c.accounts[0].device.catalogue)
			continue
		}
		w.number(&d.recorded)
		for _, o := range fresh {
			b := wire.Float(w.begin(&d.recorded), observedValue, o.value)
			w.scratch = wire.Float(b, observedSeconds, o.seconds)
			w.out = wire.Bytes(w.out, recordObserved, w.scratch)
		}
	}
}

func (w *writer) distribution(key claimKey, d *distributed, catalogue driver.Catalogue) {
	d.shown = !d.series.Shown.IsZero()
	b := wire.String(w.begin(&d.recorded), distributionNamespace, key.namespace)
	b = wire.String(wire.String(b, distributionName, key.name), distributionDriver, key.driver)
	v := Value{Series: d.series}
	b = v.append(b, distributionSeries, catalogue)
	b = wire.Message(b, distributionHistogram, appender(d.histogram.AppendBinary))
	d.recorded.hashes[slotSeldom] = 0 // it replaces what was observed since
	w.end(recordDistribution, &d.recorded, slotSeldom, b)
}

// Fields of recordLives.
const (
	livesDriver      = 2
	livesBorn        = 3
	livesPreparation = 4 // a histogram
	livesPrepared    = 5 // when it was first in a snapshot
	livesActivity    = 6
	livesActive      = 7
)

func (d *driverLives) fields(m *record) {
	m.string(livesDriver, &d.Driver)
	m.stamp(livesBorn, &d.Born)
	m.stamp(livesPrepared, &d.Preparation.Shown)
	m.stamp(livesActive, &d.FirstActivity.Shown)
}

func (w *writer) lives(d *driverLives) {
	b := w.append(w.begin(&d.recorded), d)
	b = wire.Message(b, livesPreparation, appender(d.Preparation.AppendBinary))
	b = wire.Message(b, livesActivity, appender(d.FirstActivity.AppendBinary))
	w.end(recordLives, &d.recorded, slotSeldom, b)
}

// Fields of recordClaim and recordPod.
const (
	nameNamespace    = 2
	nameName         = 3
	nameUID          = 4
	nameAllocated    = 5
	nameText         = 6 // names and values of labels, in turns
	nameOwnerKind    = 7
	nameOwnerName    = 8
	nameWorkloadKind = 9
	nameWorkloadName = 10
	nameQueue        = 11
	nameMeta         = 12
	nameLabels       = 13
)

func (n *name) fields(m *record) {
	m.string(nameUID, &n.uid)
	m.stamp(nameAllocated, &n.allocatedAt)
}

// podMeta is a PodMeta as a record has it.
type podMeta podresources.PodMeta

func (p *podMeta) fields(m *record) {
	m.string(nameOwnerKind, &p.OwnerKind)
	m.string(nameOwnerName, &p.OwnerName)
	m.string(nameWorkloadKind, &p.WorkloadKind)
	m.string(nameWorkloadName, &p.WorkloadName)
	m.string(nameQueue, &p.Queue)
}

func (w *writer) name(kind int, namespace, text string, n *name) {
	b := wire.String(wire.String(w.begin(&n.recorded), nameNamespace, namespace), nameName, text)
	b = w.append(b, n)
	labels := n.labels
	if m := n.meta; m != nil {
		b = wire.Bool(w.append(b, (*podMeta)(m)), nameMeta, true)
		labels = m.Labels
	}
	b = wire.Bool(b, nameLabels, labels != nil)
	for _, text := range labels {
		b = wire.Bytes(b, nameText, []byte(text))
	}
	w.end(kind, &n.recorded, slotSeldom, b)
}

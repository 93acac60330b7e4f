package ledger

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

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
	accountShown      = 16 // when the total of a counter was first shown; 1: never
	accountReleased   = 17
	accountHow        = 18 // the attribution
	accountPartial    = 19
	accountClosed     = 20
	accountUser       = 21
	accountUserUID    = 22 // of the preceding user
	accountAllocated  = 23 // the life of a claim
	accountWaiting    = 24
	accountPrepared   = 25
	accountFirst      = 26
	accountUnprepared = 27
	accountCounted    = 28 // the preparation time is in the driver's distributions
	accountCountedUse = 29 // and the time to the first activity

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
	if a.life == nil && v != (life{}) { // it has been read
		*a.lived() = v
	}
	m.series(accountWitnessed, &a.witnessed, (*Value).appendSeries)
}

func (w *writer) accountRecords(a *account, ofPods bool) {
	if a.dropped {
		return
	}
	if a.closed && a.closedAt == 0 {
		a.closedAt = w.turn
	}
	if w.due(&a.recorded, slotSeldom) {
		w.account(a, ofPods)
	}
	w.numbers(a, recordSums, slotSums, (*account).sums)
	if a.fit != nil && (w.whole || a.fit.due || (w.turn+a.recorded.number)%seldom == 0) {
		w.fit(a)
	}
	if !ofPods && (w.whole || !a.ended.IsZero() || (w.turn+a.recorded.number)%notSoOften == 0) {
		w.numbers(a, recordDoubts, slotFourth, (*account).doubts)
	}
}

func (w *writer) account(a *account, ofPods bool) {
	over := a.closed && (a.closedBefore || w.turn-a.closedAt >= closingTicks)
	if over {
		a.users = nil
	}
	b := w.append(w.begin(&a.recorded), a)
	b = wire.Uint(b, accountDevice, w.number(&a.device.recorded))
	b = wire.Bool(wire.Bool(b, accountOfPods, ofPods), accountClosed, over)
	if a.earlier != nil {
		b = wire.Uint(b, accountEarlier, w.number(&a.earlier.recorded))
	}
	for _, u := range a.users {
		b = wire.String(wire.String(b, accountUser, u.Name), accountUserUID, u.UID)
	}
	b = a.appendShown(b)
	if m := a.released(); m != nil {
		b = wire.Message(b, accountReleased, func(b []byte) []byte { return w.append(b, m) })
	}
	w.end(recordAccount, &a.recorded, slotSeldom, b)
	a.recorded.current[slotSeldom] = over || !a.closed
}

// appendShown appends when each total was first shown.
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

func (r *reader) account(number uint64, b []byte) error {
	a, ofPods := &account{active: r.kept.Time}, false
	m, err := r.parse(b, a)
	a.device = r.devices[m.uint(accountDevice)]
	if err != nil || a.device == nil || a.born.IsZero() {
		return cmp.Or(err, errRecord)
	}
	a.key.Device = a.device.id
	m.bool(accountOfPods, &ofPods)
	m.bool(accountClosed, &a.closed)
	a.closedBefore = a.closed
	for i := range m.fields {
		switch f := &m.fields[i]; f.Number {
		case accountUser:
			a.users = append(a.users, User{Name: f.String()})
		case accountUserUID:
			if n := len(a.users); n > 0 {
				a.users[n-1].UID = f.String()
			}
		case accountShown:
			if len(a.totals) == len(a.device.attributed) {
				return errRecord
			}
			a.openShown(stamped(f))
		}
	}
	if f := m.last(accountReleased); f != nil {
		released := &Amounts{}
		_, err = r.parse(f.Bytes, released)
		a.release(released)
	}
	if a.charged = a.ended; a.ended.IsZero() {
		a.charged = r.kept.Time
	}
	r.accounts[number], r.earlier[a], r.ofPods[a] = a, m.uint(accountEarlier), ofPods
	return err
}

// openShown adds a total that was first shown at a time.
func (a *account) openShown(at time.Time) {
	t := total{counter: a.device.attributed[len(a.totals)]}
	if at.UnixNano() != 1 {
		t.series = newSeries(t.counter.key)
		t.series.Born, t.series.Shown = a.born, at
	}
	a.totals = append(a.totals, t)
}

func (a *Amounts) fields(m *record) {
	m.stamp(amountsBorn, &a.Born)
	m.stamp(amountsShown, &a.Shown)
	m.float(amountsAllocated, &a.Allocated)
	m.float(amountsShare, &a.Share)
	m.float(amountsUsed, &a.Used)
	m.values(amountsValue, &a.Values)
}

func (a *account) doubts(p *packed) {
	p.float(&a.edges)
	p.float(&a.unread)
	for i := range a.totals {
		if p.writer != nil || len(p.numbers) > 0 { // counters may have been added since
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
	for i := range a.witnessed {
		if p.writer != nil || len(p.numbers) > 0 { // in format 1, values have their series
			p.float(&a.witnessed[i].Value)
		}
	}
}

func (w *writer) numbers(a *account, kind, slot int, of func(*account, *packed)) {
	p := w.pack()
	of(a, p)
	w.end(kind, &a.recorded, slot, p.append(w.begin(&a.recorded)))
}

// numbersOf returns a function that reads numbers of an account.
func (r *reader) numbersOf(numbers func(a *account, p *packed)) func(number uint64, b []byte) error {
	return func(number uint64, b []byte) error {
		p, err := r.unpack(b)
		a := r.accounts[number]
		if err != nil || a == nil {
			return cmp.Or(err, errRecord)
		}
		numbers(a, &p)
		return p.err()
	}
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
	fitEnded     = 11 // its share when it ended
	fitAdvice    = 12 // for an ended claim, in JSON

	endedShareID  = 1
	endedRequest  = 2
	endedAdmin    = 3
	endedConsumed = 4 // a resource
	endedAmount   = 5 // of the preceding resource
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
	m.histogram(fitActivity, &f.activity)
	m.histogram(fitBandwidth, &f.bandwidth)
}

func (w *writer) fit(a *account) {
	f := a.fit
	p := w.pack()
	f.numbers(p)
	b := w.append(p.append(w.begin(&a.recorded)), f)
	if f.ended != nil {
		b = wire.Message(b, fitEnded, func(b []byte) []byte { return w.append(b, (*endedShare)(f.ended)) })
	}
	if f.final {
		text, _ := json.Marshal(f.advice) // cannot fail: all types can be encoded
		b = wire.Bytes(b, fitAdvice, text)
	}
	f.due = false
	w.end(recordFit, &a.recorded, slotThird, b)
}

func (r *reader) fit(number uint64, b []byte) error {
	a := r.accounts[number]
	if a == nil {
		return errRecord
	}
	if !r.ledger.claims.fits {
		return nil
	}
	p, err := r.unpack(b)
	if err != nil {
		return err
	}
	f := &fitting{}
	f.numbers(&p)
	if err := p.err(); err != nil {
		return err
	}
	a.fit = f
	m, err := r.parse(b, f)
	if of := m.last(fitEnded); of != nil && err == nil {
		f.ended = &join.Share{}
		_, err = r.parse(of.Bytes, (*endedShare)(f.ended))
	}
	if of := m.last(fitAdvice); of != nil && err == nil {
		f.final = true
		err = json.Unmarshal(of.Bytes, &f.advice)
	}
	return err
}

// resumeFit restores the use of the account's claim. It is written rarely, but a new peak of the
// memory is written at once.
func (a *account) resumeFit() {
	if a.fit == nil {
		a.fit = &fitting{}
	}
	for _, v := range a.witnessed {
		if v.Quantity == driver.MemoryUsedPeak && !a.fit.final {
			a.fit.memory = max(a.fit.memory, v.Value)
		}
	}
}

// endedShare is a claim's share when it ended.
type endedShare join.Share

func (s *endedShare) fields(m *record) {
	known := true // the record is not empty
	m.string(endedShareID, &s.ShareID)
	m.string(endedRequest, &s.Request)
	m.bool(endedAdmin, &s.Admin)
	m.bool(endedKnown, &known)
	if m.writer != nil {
		for _, c := range s.Consumed {
			m.out = wire.Float(wire.String(m.out, endedConsumed, c.Resource), endedAmount, c.Value)
		}
	}
	for i := range m.fields {
		switch f := &m.fields[i]; {
		case f.Number == endedConsumed:
			s.Consumed = append(s.Consumed, driver.Amount{Resource: f.String()})
		case f.Number == endedAmount && len(s.Consumed) > 0:
			s.Consumed[len(s.Consumed)-1].Value = f.Float()
		}
	}
}

// chain adds the accounts to the books, with the newest account of each name first.
func (r *reader) chain() {
	later := map[*account]bool{} // have a successor
	for _, a := range r.accounts {
		if a.earlier = r.accounts[r.earlier[a]]; a.earlier != nil {
			later[a.earlier] = true
		}
	}
	for _, a := range r.accounts {
		book := &r.ledger.claims
		if r.ofPods[a] {
			book = &r.ledger.pods
		}
		if !later[a] {
			book.accounts[a.key] = a
		}
		if book.fits && a.key.Name != "" {
			a.resumeFit()
		}
		book.distributions.enter(a)
	}
}

// closingTicks is the number of ticks for which a closed account is written as not closed: its
// receipt may not be on the disk yet. A receipt that is made twice is recognized.
const closingTicks = 10

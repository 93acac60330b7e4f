package ledger

import (
	"hash/maphash"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

// Kept is what an earlier process wrote of a ledger.
type Kept struct {
	State   []byte   // see [Ledger.AppendState]
	Changes [][]byte // see [Ledger.AppendChanges]
	Clock   func(int64) time.Time
	Time    time.Time // when it was written last
	// Rebooted says that the machine has started again since: what held devices ended then.
	Rebooted bool
	// Continues says that nothing newer was served. Otherwise counters start at 0, and what claims
	// were charged until then is in their receipts alone.
	Continues bool
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
		w.on, w.seed = true, maphash.MakeSeed()
	}
	w.out, w.clock, w.whole, w.catalogue = b, clock, whole, l.config.Catalogue
	w.turn++
	for _, d := range l.devices {
		w.device(d)
	}
	for _, book := range [2]*accountBook{&l.claims, &l.pods} {
		for a := range book.all() {
			w.accountRecords(a, book.ofPods)
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
	for _, d := range l.lives.byDriver {
		w.lives(d)
	}
	w.forget()
	out := w.out
	w.out, w.clock = nil, nil
	return out
}

// Restore makes an empty ledger go on where an earlier process ended: devices, claims and pods with
// what they were charged, the baselines of counters, peaks, distributions and what is known of the
// use of claims. Who held a device then holds it until the first answer of the kubelet, which says
// who held it all that time.
func (l *Ledger) Restore(k Kept, now time.Time) error {
	if !k.Continues {
		before := New(l.config)
		if err := before.restore(k, now); err != nil {
			return err
		}
		before.endAll(k.Time)
		l.closing.dropped = before.closing.dropped
		return nil
	}
	return l.restore(k, now)
}

// maxAway is how long the process may have been away for what hardware counted meanwhile to be
// charged. What it counted in a longer time is unattributed, and no hold goes on in it.
const maxAway = 10 * time.Minute

func (l *Ledger) restore(k Kept, now time.Time) error {
	r := reader{
		ledger: l, kept: k, records: map[uint64]*records{}, devices: map[uint64]*deviceBook{},
		orders: map[*deviceBook]*order{}, accounts: map[uint64]*account{}, earlier: map[*account]uint64{},
		ofPods: map[*account]bool{},
	}
	for _, b := range append([][]byte{k.State}, k.Changes...) {
		if err := r.collect(b); err != nil {
			return err
		}
	}
	if err := r.build(); err != nil {
		return err
	}
	l.goesOn = !k.Rebooted && now.Sub(k.Time) <= maxAway
	for _, d := range r.devices {
		d.resume(k.Time, now, !l.goesOn)
	}
	l.kept = k.Time
	l.updateTimeline(now)
	return nil
}

// endAll ends and closes all accounts.
func (l *Ledger) endAll(at time.Time) {
	for a := range l.claims.all() {
		if a.ended.IsZero() {
			a.end(at)
		}
		l.closing.closeDropped(a)
	}
}

// Resumed returns, after Restore, the holding periods that go on unless the first answer of the
// kubelet says otherwise. It is false if the ledger knows nothing of the time until then: all
// holds are new.
func (l *Ledger) Resumed() (periods []*Period, goesOn bool) {
	for p := range l.timeline.All() {
		if p.To.IsZero() {
			periods = append(periods, p)
		}
	}
	return periods, l.goesOn
}

// What outlives the process is in records, fields of a message by their kind. A record replaces the
// one of its kind and number that came before, except for recordObserved, which adds to a
// distribution. What changes at each tick (sums, the last readings) is apart from what seldom does.
const (
	recordDevice       = 1 // of a device: what it is, and what its counters and meters are
	recordCounts       = 2 // of a device: its sums and last readings, in the order of recordDevice
	recordHeld         = 3 // of a device: who held it in the time whose readings are not charged yet
	recordAccount      = 4
	recordSums         = 5 // of an account, in the order of the device's counters and of what it witnessed
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

// recordSlots are the records of one thing, by the place of their hashes.
const (
	slotSeldom = iota // what it is
	slotSums
	slotThird
	slotFourth
)

// reader makes a ledger from records.
type reader struct {
	ledger   *Ledger
	kept     Kept
	records  map[uint64]*records
	devices  map[uint64]*deviceBook
	orders   map[*deviceBook]*order
	accounts map[uint64]*account
	earlier  map[*account]uint64 // the number of the one that had the name before
	ofPods   map[*account]bool
}

// records are the newest records of one number.
type records struct {
	byKind   map[int][]byte
	observed []observation
}

// order has the counters and meters of a device in the order in which they were written.
type order struct {
	counters []*counter
	meters   []*meter
}

// collect takes the records of one message.
func (r *reader) collect(b []byte) error {
	return wire.Fields(b, func(f *wire.Field) error {
		if f.Number == recordGone {
			delete(r.records, f.Uint())
			return nil
		}
		kind, record := f.Number, f.Bytes
		number := uint64(0)
		var o observation
		err := wire.Fields(record, func(f *wire.Field) error {
			switch {
			case f.Number == fieldNumber:
				number = f.Uint()
			case kind == recordObserved && f.Number == observedValue:
				o.value = f.Float()
			case kind == recordObserved && f.Number == observedSeconds:
				o.seconds = f.Float()
			}
			return nil
		})
		if err != nil {
			return err
		}
		of := r.records[number]
		if of == nil {
			of = &records{byKind: map[int][]byte{}}
			r.records[number] = of
		}
		switch kind {
		case recordObserved:
			of.observed = append(of.observed, o)
			return nil
		case recordDistribution:
			of.observed = nil
		}
		of.byKind[kind] = record
		return nil
	})
}

// build makes the devices, then their accounts, and then what refers to these.
func (r *reader) build() error {
	steps := []struct {
		kind int
		make func(number uint64, b []byte) error
	}{
		{recordDevice, r.device},
		{recordCounts, r.counts},
		{recordAccount, r.account},
		{recordSums, r.numbersOf((*account).sums)},
		{recordDoubts, r.numbersOf((*account).doubts)},
		{recordFit, r.fit},
		{recordHeld, r.held},
		{recordPeriods, r.periods},
		{recordClaim, r.claim},
		{recordPod, r.pod},
		{recordLives, r.lives},
	}
	for _, step := range steps {
		for number, of := range r.records {
			if b := of.byKind[step.kind]; b != nil {
				if err := step.make(number, b); err != nil {
					return err
				}
			}
		}
	}
	r.chain()
	for number, of := range r.records {
		if b := of.byKind[recordDistribution]; b != nil {
			if err := r.distribution(number, b, of.observed); err != nil {
				return err
			}
		}
	}
	return nil
}

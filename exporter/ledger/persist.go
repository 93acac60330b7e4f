package ledger

import (
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Kept is the persistent state of an earlier process's ledger.
type Kept struct {
	State   []byte   // by [Ledger.AppendState]
	Changes [][]byte // by [Ledger.AppendChanges]
	Clock   func(int64) time.Time
	Time    time.Time // of the last write
	// Rebooted reports that the machine has rebooted since the last write: all holds have ended.
	Rebooted bool
	// Continues reports that no newer values were served. Otherwise, counters start at 0, and earlier
	// charges are only in the claims' receipts.
	Continues bool
}

// AppendState appends the state of the ledger for [Ledger.Restore]. clock converts times.
func (l *Ledger) AppendState(b []byte, clock func(time.Time) int64) []byte {
	return l.write(b, clock, true)
}

// AppendChanges appends the changes since its last call, or since AppendState.
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

// Restore restores an empty ledger from the state of an earlier process: devices, claims and pods
// with their charges, baselines of counters, peaks, distributions, and the use of claims. The last
// holders hold their devices until the kubelet's first answer, which says who held them in all that
// time.
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

// maxAway is the longest absence of the process for which counts of the hardware are charged.
// Counts of a longer absence are unattributed, and no hold continues over it.
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
	l.continues = !k.Rebooted && now.Sub(k.Time) <= maxAway
	for _, d := range r.devices {
		d.resume(k.Time, now, !l.continues)
	}
	l.kept = k.Time
	l.numberHolds()
	l.updateTimeline(now)
	return nil
}

// numberHolds gives numbers to the holds of an earlier process.
func (l *Ledger) numberHolds() {
	id := podresources.HoldID(0)
	for _, device := range slices.SortedFunc(maps.Keys(l.devices), driver.ID.Compare) {
		d := l.devices[device]
		d.holds = holds{}
		for i, p := range d.periods {
			if p.To.IsZero() {
				id++
				open := *p
				open.Hold, d.periods[i] = id, &open
				d.holds[id] = &charged{period: &open}
			}
		}
	}
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

// Resumed returns, after Restore, the holding periods that continue unless the kubelet's first
// answer says otherwise. continues is false if the ledger knows nothing about the time before: then
// all holds are new.
func (l *Ledger) Resumed() (periods []*Period, continues bool) {
	for p := range l.timeline.All() {
		if p.To.IsZero() {
			periods = append(periods, p)
		}
	}
	return periods, l.continues
}

// The persistent state consists of records, which are fields of a message by their kind. A record
// replaces an earlier one of its kind and number, except recordObserved, which adds to a
// distribution. Values that change at each tick (sums, last readings) have records of their own.
const (
	recordDevice       = 1 // of a device: its identity, counters and meters
	recordCounts       = 2 // of a device: sums and last readings, in the order of recordDevice
	recordHeld         = 3 // of a device: holders in the time whose readings are not charged yet
	recordAccount      = 4
	recordSums         = 5 // of an account: sums in the order of the device's counters, and witnessed values
	recordFit          = 6 // of an account: the claim's use
	recordDistribution = 7
	recordObserved     = 8 // additions to a distribution
	recordClaim        = 9 // of a claim: its name and identity
	recordPod          = 10
	recordPeriods      = 11 // of a device: its holding periods
	recordGone         = 12 // a number that has no records from now on
	recordDoubts       = 13 // of a claim's account: possible errors of its charges
	recordLives        = 14 // of a driver: how long its claims took to be prepared and to become active
)

// Field of all records.
const fieldNumber = 1

// The number of ticks between two writes of claims' use, and of possible errors. Both are written
// when a process ends normally.
const (
	seldom     = 30
	notSoOften = 10
)

// recordSlots are the records of one object, by the place of their hashes.
const (
	slotSeldom = iota // its identity
	slotSums
	slotThird
	slotFourth
)

// reader restores a ledger from records.
type reader struct {
	ledger   *Ledger
	kept     Kept
	records  map[uint64]*records
	devices  map[uint64]*deviceBook
	orders   map[*deviceBook]*order
	accounts map[uint64]*account
	earlier  map[*account]uint64 // number of the previous account of the name
	ofPods   map[*account]bool
}

// records has the newest records of one number.
type records struct {
	byKind   map[int][]byte
	observed []observation
}

// order has the counters and meters of a device in the order of their records.
type order struct {
	counters []*counter
	meters   []*meter
}

// collect adds the records of one message.
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

// build makes the devices, then their accounts, then the objects that refer to accounts.
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

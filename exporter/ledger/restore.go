package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// maxAway is how long the process may have been away for what hardware counted meanwhile to be
// charged. What it counted in a longer time is unattributed, and no hold goes on in it.
const maxAway = 10 * time.Minute

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
		l.dropped = before.dropped
		return nil
	}
	return l.restore(k, now)
}

// endAll ends and closes all accounts.
func (l *Ledger) endAll(at time.Time) {
	for a := range l.claims.all() {
		if a.ended.IsZero() {
			a.end(at)
		}
		l.closeDropped(a)
	}
}

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

// resume lets the device be held as it was, until it is known who holds it; or by nobody, if
// nothing of the time is to be charged.
func (d *deviceBook) resume(ended, now time.Time, alone bool) {
	d.resumed = true
	if d.accrued.IsZero() {
		d.accrued = ended
	}
	if !alone {
		return
	}
	last := d.timeline[len(d.timeline)-1].from
	d.timeline = append(d.timeline, segment{from: later(ended, last), unattributed: join.Evenly(1)})
	d.accrued = now
	d.closeAccounts(nil, ended)
	for i, p := range d.periods {
		if p.To.IsZero() {
			over := *p
			over.To = later(p.From, ended)
			d.periods[i] = &over
		}
	}
}

// records are the newest records of one number.
type records struct {
	byKind   map[int][]byte
	observed []observation
}

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

// order has the counters and meters of a device in the order in which they were written.
type order struct {
	counters []*counter
	meters   []*meter
}

var errRecord = errors.New("a record of the ledger is malformed")

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

// time returns a time that writer.micros converted.
func (r *reader) time(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return r.kept.Clock(at * int64(time.Microsecond))
}

// stamped returns a time that stamp wrote.
func stamped(f *wire.Field) time.Time { return time.Unix(0, f.Int()) }

// key reads what a series is of. It is not known if the catalogue does not have it.
func (m *record) key(catalogue driver.Catalogue) (k seriesKey, known bool) {
	name := ""
	m.string(seriesQuantity, &name)
	m.string(seriesLabel0, &k.labels[0])
	m.string(seriesLabel1, &k.labels[1])
	if k.quantity, known = catalogue.Named(name); !known {
		return k, false
	}
	labels := len(catalogue.Spec(k.quantity).Labels)
	return k, labels > 1 || k.labels[1] == "" && (labels > 0 || k.labels[0] == "")
}

// values appends a value, unless the catalogue does not have its quantity.
func (r *reader) values(to []Value, b []byte) ([]Value, error) {
	m, err := r.record(b)
	key, known := m.key(r.ledger.config.Catalogue)
	if err != nil || !known {
		return to, err
	}
	v := Value{Series: newSeries(key)}
	m.stamp(seriesBorn, &v.Born)
	m.stamp(seriesShown, &v.Shown)
	m.float(seriesValue, &v.Value)
	return append(to, v), nil
}

// device makes a device. Its counters and meters are in the order in which they were written, as
// the record of its sums has them; those of quantities that the catalogue does not have are left
// out when that is read.
func (r *reader) device(number uint64, b []byte) error {
	d := newDeviceBook(driver.ID{}, r.ledger.config.Catalogue, r.kept.Time)
	d.seen, d.used, d.clock = r.kept.Time, r.kept.Time, r.kept.Time
	d.born = time.Time{}
	r.orders[d] = &order{}
	fields, err := r.parse(b, d)
	for i := 0; i < len(fields) && err == nil; i++ {
		switch f := &fields[i]; f.Number {
		case deviceCPU:
			d.identity.cpus = append(d.identity.cpus, int(f.Uint())-1)
		case deviceCounter:
			err = r.counter(d, f.Bytes)
		case deviceMeter:
			err = r.meter(d, f.Bytes)
		case deviceHighest:
			d.highest, err = r.values(d.highest, f.Bytes)
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
	key, known := m.key(d.catalogue)
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
	key, known := m.key(d.catalogue)
	if err != nil || !known || d.findMeter(key) != nil {
		return cmp.Or(err, errRecord)
	}
	of := d.meter(key)
	of.fields(&m)
	of.have, of.seen, of.series = true, r.kept.Time, of.series.from(of.source)
	r.orders[d].meters = append(r.orders[d].meters, of)
	return nil
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

func (r *reader) account(number uint64, b []byte) error {
	a := &account{active: r.kept.Time}
	var shown []time.Time
	ofPods := false
	fields, err := r.parse(b, a)
	for i := 0; i < len(fields) && err == nil; i++ {
		switch f := &fields[i]; f.Number {
		case accountDevice:
			a.device = r.devices[f.Uint()]
		case accountOfPods:
			ofPods = f.Bool()
		case accountEarlier:
			r.earlier[a] = f.Uint()
		case accountWitnessed:
			a.witnessed, err = r.values(a.witnessed, f.Bytes)
		case accountShown:
			shown = append(shown, stamped(f))
		case accountClosed:
			a.closed, a.closedBefore = f.Bool(), f.Bool()
		case accountUser:
			a.users = append(a.users, User{Name: f.String()})
		case accountUserUID:
			if n := len(a.users); n > 0 {
				a.users[n-1].UID = f.String()
			}
		case accountReleased:
			var released *Amounts
			released, err = r.amounts(f.Bytes)
			a.release(released)
		}
	}
	if err != nil || a.device == nil || a.born.IsZero() || len(shown) > len(a.device.attributed) {
		return cmp.Or(err, errRecord)
	}
	a.key.Device = a.device.id
	a.openShown(shown)
	if a.charged = a.ended; a.ended.IsZero() {
		a.charged = r.kept.Time
	}
	r.accounts[number], r.ofPods[a] = a, ofPods
	return nil
}

// openShown adds totals, given when each was shown first.
func (a *account) openShown(shown []time.Time) {
	for i, at := range shown {
		t := total{counter: a.device.attributed[i]}
		if at.UnixNano() != 1 {
			t.series = newSeries(t.counter.key)
			t.series.Born, t.series.Shown = a.born, at
		}
		a.totals = append(a.totals, t)
	}
}

func (r *reader) amounts(b []byte) (*Amounts, error) {
	m := &Amounts{}
	fields, err := r.parse(b, m)
	for i := 0; i < len(fields) && err == nil; i++ {
		if f := &fields[i]; f.Number == amountsValue {
			m.Values, err = r.values(m.Values, f.Bytes)
		}
	}
	return m, err
}

// chain enters the accounts into the books: of each name, the newest one and those before it.
func (r *reader) chain() {
	later := map[*account]bool{} // those that another one comes after
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
		book.distribute(a)
	}
}

// resumeFit gives the account what is known of its use. That is written seldom; the peak of the
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

// numbersOf reads numbers of an account.
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
	fields, err := r.parse(b, f)
	for i := 0; i < len(fields) && err == nil; i++ {
		switch of := &fields[i]; of.Number {
		case fitActivity:
			err = f.activity.UnmarshalBinary(of.Bytes)
		case fitBandwidth:
			err = f.bandwidth.UnmarshalBinary(of.Bytes)
		case fitEnded:
			f.ended, err = r.ended(of.Bytes)
		case fitAdvice:
			f.final = true
			err = json.Unmarshal(of.Bytes, &f.advice)
		}
	}
	return err
}

// ended reads what a claim had of the device when it ended.
func (r *reader) ended(b []byte) (*join.Share, error) {
	s := &join.Share{}
	fields, err := r.parse(b, (*endedShare)(s))
	for i := range fields {
		switch f := &fields[i]; {
		case f.Number == endedConsumed:
			s.Consumed = append(s.Consumed, driver.Amount{Resource: f.String()})
		case f.Number == endedAmount && len(s.Consumed) > 0:
			s.Consumed[len(s.Consumed)-1].Value = f.Float()
		}
	}
	return s, err
}

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
		out = append(out, s)
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

// distribution restores the distribution of a claim whose accounts are there.
func (r *reader) distribution(_ uint64, b []byte, observed []observation) error {
	var key claimKey
	var of []Value
	d := &distributed{summed: r.kept.Time}
	err := wire.Fields(b, func(f *wire.Field) (err error) {
		switch f.Number {
		case distributionNamespace:
			key.namespace = f.String()
		case distributionName:
			key.name = f.String()
		case distributionDriver:
			key.driver = f.String()
		case distributionSeries:
			of, err = r.values(nil, f.Bytes)
		case distributionHistogram:
			err = d.histogram.UnmarshalBinary(f.Bytes)
		}
		return err
	})
	c := r.ledger.claims.distributions[key]
	if err != nil || c == nil || len(of) == 0 {
		return err
	}
	for _, o := range observed {
		d.histogram.Observe(o.value, o.seconds)
	}
	d.series, d.summed = of[0].Series, time.Time{}
	c.quantities = append(c.quantities, d)
	slices.SortFunc(c.quantities, func(a, b *distributed) int { return int(a.series.Quantity) - int(b.series.Quantity) })
	return nil
}

// lives restores the distributions of a driver.
func (r *reader) lives(_ uint64, b []byte) error {
	d := &driverLives{}
	fields, err := r.parse(b, d)
	for i := 0; i < len(fields) && err == nil; i++ {
		switch f := &fields[i]; f.Number {
		case livesPreparation:
			err = d.Preparation.UnmarshalBinary(f.Bytes)
		case livesActivity:
			err = d.FirstActivity.UnmarshalBinary(f.Bytes)
		}
	}
	if err == nil && d.Driver != "" {
		r.ledger.byDriver[d.Driver] = d
	}
	return err
}

// named reads a claim or pod and what identifies it.
func (r *reader) named(b []byte, ofPod bool) (namespace, text string, n *name, err error) {
	n = &name{seen: r.kept.Time, kept: r.kept.Time, needed: r.kept.Time}
	meta := &podresources.PodMeta{}
	var labels []string
	m, err := r.record(b)
	m.string(nameNamespace, &namespace)
	m.string(nameName, &text)
	n.fields(&m)
	(*podMeta)(meta).fields(&m)
	if m.last(nameMeta) != nil {
		n.meta = meta
	}
	if m.last(nameLabels) != nil {
		labels = []string{}
	}
	for i := range m.fields {
		if m.fields[i].Number == nameText {
			labels = append(labels, m.fields[i].String())
		}
	}
	if len(labels)%2 != 0 {
		err = cmp.Or(err, errRecord)
	}
	if ofPod {
		meta.Labels = labels
	} else {
		n.labels = labels
	}
	return namespace, text, n, err
}

func (r *reader) claim(_ uint64, b []byte) error {
	namespace, text, n, err := r.named(b, false)
	r.ledger.names.claims.names[podresources.Claim{Namespace: namespace, Name: text}] = n
	return err
}

func (r *reader) pod(_ uint64, b []byte) error {
	namespace, text, n, err := r.named(b, true)
	r.ledger.names.pods.names[podresources.Pod{Namespace: namespace, Name: text}] = n
	return err
}

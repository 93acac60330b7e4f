package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Kept is the persistent state of an earlier process's ledger.
type Kept struct {
	State   []byte   // by [Ledger.AppendState]
	Changes [][]byte // by [Ledger.AppendChanges]
	Former  bool     // a program before format 3 wrote both
	Clock   func(int64) time.Time
	Time    time.Time // of the last write
	// Rebooted reports that the machine has rebooted since the last write: all holds have ended.
	Rebooted bool
	// Continues reports that no newer values were served. Otherwise, counters start at 0, and earlier
	// charges are only in the claims' receipts.
	Continues bool
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
	r := restorer{ledger: l, kept: k, devices: map[uint32]*deviceBook{}, accounts: map[uint32]*account{}}
	if err := r.restore(); err != nil {
		return err
	}
	l.continues = !k.Rebooted && now.Sub(k.Time) <= maxAway
	for _, d := range r.devices {
		d.resume(k.Time, now, !l.continues)
	}
	l.kept = k.Time
	l.resumeHolds()
	l.update(l.devices, l.config.History, now)
	return nil
}

// resumeHolds makes the holds of the periods that have not ended. It gives a number to those of an
// earlier program, which had none.
func (l *Ledger) resumeHolds() {
	last := podresources.HoldID(0)
	for _, d := range l.devices {
		for _, p := range d.periods.All() {
			last = max(last, p.Hold)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(l.devices), driver.ID.Compare) {
		d := l.devices[id]
		for _, p := range d.periods.All() {
			if !p.To.IsZero() {
				continue
			}
			if p.Hold == 0 {
				last++
				numbered := *p
				numbered.Hold = last
				p = d.periods.Set(p, numbered)
			}
			d.holds[p.Hold] = &charged{period: p}
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

// Resumed returns, after Restore, the holds that continue unless the kubelet's first answer says
// otherwise, each as an allocation with one holder. continues is false if the ledger knows nothing
// about the time before: then all holds are new.
func (l *Ledger) Resumed() (holds []podresources.Allocation, continues bool) {
	for p := range l.timeline.All() {
		if !p.To.IsZero() {
			continue
		}
		hold := &podresources.Hold{ID: p.Hold, From: p.From}
		holds = append(holds, podresources.Allocation{
			Device: p.Device, Claim: p.Claim, ShareID: p.ShareID, ClaimUID: p.ClaimUID, Admin: p.Admin,
			Holders: []podresources.Holder{{Pod: p.Pod, UID: p.PodUID, Hold: hold}},
		})
	}
	return holds, l.continues
}

// restorer makes a ledger's objects from records.
type restorer struct {
	*saved.State
	ledger   *Ledger
	kept     Kept
	devices  map[uint32]*deviceBook
	accounts map[uint32]*account
	err      error
}

var errRecord = errors.New("a record of the ledger is malformed")

// restore reads the records. It makes the devices, then their accounts, then the objects that refer
// to accounts. It returns an error if a record lacks something, or refers to another one that is
// not there.
func (r *restorer) restore() (err error) {
	defer func() {
		if lacks := recover(); lacks != nil {
			err = fmt.Errorf("%w: %v", errRecord, lacks)
		}
	}()
	read := saved.Read
	if r.kept.Former {
		read = saved.ReadFormer
	}
	if r.State, err = read(r.kept.State, r.kept.Changes); err != nil {
		return err
	}
	each(r.Devices, r.device)
	each(r.Accounts, r.account)
	each(r.Fits, r.fit)
	each(r.Held, r.held)
	each(r.Periods, r.periods)
	r.chain()
	each(r.Distributions, r.distribution)
	each(r.Lives, r.lives)
	r.names(&r.ledger.claims, r.Claims)
	r.names(&r.ledger.pods, r.Pods)
	return r.err
}

// each calls f for each record of a kind.
func each[T any](records map[uint32]T, f func(number uint32, s T)) {
	for number, s := range records {
		f(number, s)
	}
}

// histogram reads a histogram from its binary form.
func (r *restorer) histogram(b []byte) (h distribution.Histogram) {
	r.err = errors.Join(r.err, h.UnmarshalBinary(b))
	return h
}

// at returns a time that saver.at has converted.
func (r *restorer) at(m saved.Moment) time.Time {
	if m == 0 {
		return time.Time{}
	}
	return r.kept.Clock(int64(m) * int64(time.Microsecond))
}

func stamped(s saved.Stamp) time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(s))
}

func originOf(s *saved.Series) join.Origin {
	return join.ParseOrigin(s.Source).With(join.Computed(s.Computed))
}

// series returns a series. known is false if the catalogue lacks its quantity.
func (r *restorer) series(s *saved.Series) (out *book.Series, known bool) {
	q, known := r.ledger.config.Catalogue.Named(s.Quantity)
	if !known {
		return nil, false
	}
	out = &book.Series{
		Quantity: q, Labels: driver.Labels{s.Label0, s.Label1, s.Label2}, Origin: originOf(s), Born: stamped(s.Born),
		Shown: stamped(s.Shown),
	}
	own := len(r.ledger.config.Catalogue.Spec(q).Labels)
	return out, !slices.ContainsFunc(out.Labels[own:], func(value string) bool { return value != "" })
}

// knownSeries returns a series whose quantity must be known.
func (r *restorer) knownSeries(s *saved.Series) *book.Series {
	out, known := r.series(s)
	if !known {
		panic(s.Quantity + " is unknown")
	}
	return out
}

// values returns the values whose quantities are known.
func (r *restorer) values(of []saved.Series) (out []book.Value) {
	for i := range of {
		if s, known := r.series(&of[i]); known {
			out = append(out, book.Value{Series: s, Value: of[i].Value})
		}
	}
	return out
}

// device restores a device with its counters and meters, which are in the order of its counts.
func (r *restorer) device(number uint32, s saved.Device) {
	now, counts := r.kept.Time, r.Counts[number]
	d := newDeviceBook(driver.ID{Driver: s.Driver, Pool: s.Pool, Device: s.Name}, r.ledger.config.Catalogue, now)
	d.seen, d.used, d.clock = now, now, now
	d.born, d.lastError, d.read, d.watched = stamped(s.Born), stamped(s.LastError), s.Read, s.Watched
	d.identity = identity{[...]string{s.UUID, s.PCI, s.NetDev, s.RDMA}, s.CPUs}
	d.allocated, d.inUse = counts.Allocated, counts.InUse
	d.accrued, d.usedUntil = r.at(counts.Accrued), r.at(counts.UsedUntil)
	for i, v := range counts.Highest {
		s.Highest[i].Value = v
	}
	d.unattributed.witnessed = r.values(s.Highest)
	for i := range s.Counters {
		r.counter(d, &s.Counters[i], &counts.Totals, counts.Settled[i])
	}
	for i := range s.Meters {
		r.meter(d, &s.Meters[i], counts.Values[i], r.at(counts.At[i]))
	}
	d.unattributed.born, d.unattributed.device = d.born, &d.device
	d.joined = &join.Device{ID: d.id}
	r.devices[number], r.ledger.devices[d.id] = d, d
}

// counter restores a counter, and takes its totals.
func (r *restorer) counter(d *deviceBook, s *saved.Counter, totals *[]float64, settled saved.Moment) {
	series := r.knownSeries(&s.Series)
	c := d.counter(seriesKey{series.Quantity, series.Labels}, r.kept.Time)
	c.series, c.seen, c.settled = series, r.kept.Time, r.at(settled)
	c.idle, c.limit = s.Idle, max(s.Limit, c.limit)
	c.fastest, c.read, c.widest = s.Fastest, s.Read, s.Widest
	c.divided = series.Origin.Computed&(join.Divided|join.DividedByShare) != 0
	to := []*float64{&c.total}
	if c.index >= 0 {
		to = append(to, &d.unattributed.total(c).value)
	}
	for i, v := range to {
		*v = (*totals)[i]
	}
	*totals = (*totals)[len(to):]
}

func (r *restorer) meter(d *deviceBook, s *saved.Meter, last float64, at time.Time) {
	series := r.knownSeries(&s.Series)
	m := d.addMeter(seriesKey{series.Quantity, series.Labels})
	m.series, m.have = series, true
	m.since, m.idle, m.seen = stamped(s.Since), s.Idle, r.kept.Time
	m.last = driver.Reading{Quantity: series.Quantity, Labels: series.Labels, Value: last, At: at}
	m.now = join.Reading{Reading: m.last, Origin: series.Origin}
	if m.counts {
		l := &s.Left
		m.before.Doubted = r.point(s.Doubted)
		m.before.Left = readings.Line{Point: r.point(l.From), To: r.point(l.To), Counted: l.Counted}
	}
}

func (r *restorer) point(p saved.Point) readings.Point {
	return readings.Point{Value: p.Value, At: r.at(p.At)}
}

func (r *restorer) account(number uint32, s saved.Account) {
	d, sums, doubts := r.devices[s.Device], r.Sums[number], r.Doubts[number]
	a := &account{
		AccountFacts: s.AccountFacts, device: &d.device,
		key:  book.HolderKey{Namespace: s.Namespace, Name: s.Name, Device: d.id},
		born: stamped(s.Born), ended: r.at(s.Ended), charged: r.at(s.Ended),
		accountSums: accountSums{
			allocated: sums.Allocated, share: sums.Share, edges: doubts.Edges, unread: doubts.Unread,
			lastError: stamped(s.LastError),
		},
		activeTime: activeTime{active: r.at(sums.Active), used: sums.Used, usedUntil: r.at(sums.UsedUntil)},
		youth:      youth{matured: stamped(s.Matured)},
	}
	if a.ended.IsZero() {
		a.charged = r.kept.Time
	}
	if s.Closed {
		a.written.closedAt = -closingTurns
	}
	v := life{
		book.Life{
			Allocated: stamped(s.Allocated), Waiting: r.at(s.Waiting), Prepared: r.at(s.Prepared),
			FirstActive: r.at(s.FirstActive), Unprepared: r.at(s.Unprepared),
		}, s.CountedPreparation, s.CountedActivity,
	}
	if v != (life{}) {
		*a.lived() = v
	}
	for i, shown := range s.Shown {
		t := total{counter: d.attributed[i], value: sums.Totals.At(i)}
		if shown != saved.Never {
			t.series = newSeries(t.counter.key)
			t.series.Born, t.series.Shown = a.born, stamped(shown)
		}
		if i < len(doubts.Totals) { // counters may have been added since
			t.doubt, t.measured = doubts.Totals[i].Doubt, doubts.Totals[i].Measured
		}
		a.totals = append(a.totals, t)
	}
	for i := range s.Witnessed {
		s.Witnessed[i].Value = sums.Witnessed.At(i)
	}
	a.witnessed = r.values(s.Witnessed)
	r.accounts[number] = a
}

func (r *restorer) fit(number uint32, s saved.Fit) {
	if !r.ledger.claims.fits {
		return
	}
	f := &fitting{
		activity: r.histogram(s.Activity), bandwidth: r.histogram(s.Bandwidth), FitFacts: s.FitFacts, Use: s.Use,
	}
	r.accounts[number].ofClaim.fit = f
	if e := s.Ended; e != nil {
		f.ended = &join.Share{Allocation: podresources.Allocation{ShareID: e.ShareID, Request: e.Request, Admin: e.Admin}}
		for _, c := range e.Consumed {
			f.ended.Consumed = append(f.ended.Consumed, driver.Amount{Resource: c.Resource, Value: c.Value})
		}
	}
	if s.Advice != nil {
		f.final = true
		r.err = errors.Join(r.err, json.Unmarshal(s.Advice, &f.advice))
	}
}

// resumeFit restores the use of the account's claim. It is written rarely, but a new peak of the
// memory is written at once.
func (a *account) resumeFit() {
	if a.ofClaim.fit == nil {
		a.ofClaim.fit = &fitting{}
	}
	for _, v := range a.witnessed {
		if v.Quantity == driver.MemoryUsedPeak && !a.ofClaim.fit.final {
			a.ofClaim.fit.Memory = max(a.ofClaim.fit.Memory, v.Value)
		}
	}
}

func (r *restorer) held(number uint32, s saved.Held) {
	var out segments
	for _, of := range s.Segments {
		next := segment{
			From: r.at(of.From), Claims: r.parts(of.Claims), Pods: r.parts(of.Pods), Guessed: of.Guessed,
			Attribution: of.Attribution,
		}
		next.SetUnattributed()
		if len(out) == 0 {
			next.From = time.Time{}
		}
		out = out.Append(next)
	}
	if len(out) > 0 {
		r.devices[number].timeline = out
	}
}

func (r *restorer) parts(of []saved.Part) (out []part) {
	for _, p := range of {
		a := r.accounts[p.Account]
		if a == nil { // it was dropped
			a = &account{dropped: true}
		}
		out = append(out, part{Holder: a, Weight: p.Weight, Use: join.Evenly(p.Weight), Own: 1})
	}
	return out
}

func (r *restorer) periods(number uint32, s saved.Periods) {
	d := r.devices[number]
	for _, p := range s.Periods {
		d.periods.Set(nil, timeline.Period{
			Hold: podresources.HoldID(p.Hold), Device: d.id, ClaimUID: p.ClaimUID, ShareID: p.ShareID, PodUID: p.PodUID,
			Claim: podresources.Claim{Namespace: p.Namespace, Name: p.Claim}, Older: p.Older, From: r.at(p.From),
			Pod: podresources.Pod{Namespace: p.PodNamespace, Name: p.Pod}, Admin: p.Admin, To: r.at(p.To),
			Attribution: p.Attribution, FromDoubt: podresources.Doubt{Early: p.FromEarly, Late: p.FromLate},
			ToDoubt: podresources.Doubt{Early: p.ToEarly, Late: p.ToLate},
		})
	}
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
	last := d.timeline.Last().From
	d.timeline = d.timeline.Append(segment{From: driver.Later(ended, last), Unattributed: join.Evenly(1)})
	d.accrued = now
	endAccounts(d.timeline, nil, ended)
	for _, p := range d.periods.All() {
		if p.To.IsZero() {
			d.periods.End(p, ended)
		}
	}
}

// chain adds the accounts to the books.
func (r *restorer) chain() {
	later := map[uint32]bool{} // have a successor
	for _, s := range r.Accounts {
		later[s.Earlier] = true
	}
	for number := range r.Accounts {
		if !later[number] {
			r.enter(number)
		}
	}
	if len(r.accounts) > 0 { // they follow each other in a circle
		r.err = errors.Join(r.err, errRecord)
	}
}

// enter adds an account to its book, after the earlier ones of its name.
func (r *restorer) enter(number uint32) {
	a, s := r.accounts[number], r.Accounts[number]
	if a == nil {
		return
	}
	delete(r.accounts, number)
	r.enter(s.Earlier)
	of := &r.ledger.claims
	if s.OfPod {
		of = &r.ledger.pods
	}
	l := of.lineageOf(a.key)
	l.accounts = append(l.accounts, a)
	if m := s.Released; m != nil {
		l.released = &book.Amounts{
			Born: stamped(m.Born), Shown: stamped(m.Shown), Values: r.values(m.Values), Allocated: m.Allocated,
			Share: m.Share, Used: m.Used,
		}
	}
	if of.fits && a.key.Name != "" {
		a.resumeFit()
	}
	of.distributions.enter(a)
}

// distribution restores the distribution of a claim. The claim's accounts must exist.
func (r *restorer) distribution(_ uint32, s *saved.Distribution) {
	c, h := r.ledger.claims.distributions[claimKey{s.Namespace, s.Name, s.Driver}], r.histogram(s.Histogram)
	series, known := r.series(&s.Series)
	if c == nil || !known {
		return
	}
	for _, o := range s.Observed {
		h.Observe(o.Value, o.Seconds)
	}
	c.add(&distributed{series: series, histogram: distribution.NewGrowing(&h)})
}

// lives restores the distributions of a driver.
func (r *restorer) lives(_ uint32, s saved.Lives) {
	r.ledger.lives.byDriver[s.Driver] = &driverLives{DriverLives: book.DriverLives{
		Driver: s.Driver, Born: stamped(s.Born),
		Preparation:   book.Durations{Histogram: r.histogram(s.Preparation), Shown: stamped(s.Prepared)},
		FirstActivity: book.Durations{Histogram: r.histogram(s.Activity), Shown: stamped(s.Active)},
	}}
}

// names restores the names of claims or of pods.
func (r *restorer) names(of *accountBook, records map[uint32]saved.Name) {
	at := r.kept.Time
	for _, s := range records {
		n := &name{
			key: fullName{s.Namespace, s.Name}, uid: s.UID, allocatedAt: stamped(s.Allocated), seen: at, kept: at, needed: at,
		}
		of.names.names[n.key] = n
		if !s.Labelled {
			s.Labels = nil
		} else if s.Labels == nil {
			s.Labels = []string{}
		}
		if !of.ofPods {
			n.labels = s.Labels
		} else if s.Known {
			n.meta = &s.PodMeta
		}
	}
}

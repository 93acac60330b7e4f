package ledger

import (
	"encoding/json"
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The number of turns between two writes of claims' use, and of possible errors. Both are written
// when a process ends normally.
const (
	seldom     = 30
	notSoOften = 10
)

// closingTurns is the number of turns for which a closed account is written as not closed: its
// receipt may not be on the disk yet. A receipt that is made twice is recognized.
const closingTurns = 10

// maxHeld limits the written segments of a device.
const maxHeld = 64

// saver converts the ledger's objects to records, and writes those that have changed.
type saver struct {
	saved.Writer
	turn      int
	clock     func(time.Time) int64
	catalogue driver.Catalogue

	// Memory for records, which is used again for each of their kind.
	records struct {
		device       saved.Device
		counts       saved.Counts
		held         saved.Held
		periods      saved.Periods
		account      saved.Account
		sums         saved.Sums
		doubts       saved.Doubts
		fit          saved.Fit
		distribution saved.Distribution
		name         saved.Name
	}
	parts     []saved.Part
	histogram distribution.Histogram
}

// at returns a time on the clock that continues over restarts.
func (w *saver) at(t time.Time) saved.Moment {
	if t.IsZero() {
		return 0
	}
	if at := w.clock(t) / int64(time.Microsecond); at != 0 {
		return saved.Moment(at)
	}
	return 1
}

func stamp(t time.Time) saved.Stamp {
	if t.IsZero() {
		return 0
	}
	return saved.Stamp(t.UnixNano())
}

// series returns a series without its source.
func (w *saver) series(s *book.Series, value float64) saved.Series {
	return saved.Series{
		Quantity: w.catalogue.Spec(s.Quantity).Name, Label0: s.Labels[0], Label1: s.Labels[1], Label2: s.Labels[2],
		Born: stamp(s.Born), Shown: stamp(s.Shown), Value: value,
	}
}

func setOrigin(to *saved.Series, o join.Origin) { to.Source, to.Computed = o.Source, uint8(o.Computed) }

func (w *saver) values(to []saved.Series, values []book.Value) []saved.Series {
	for _, v := range values {
		to = append(to, w.series(v.Series, v.Value))
	}
	return to
}

// binary returns a histogram's binary form in the memory of b.
func binary(b []byte, h *distribution.Histogram) []byte {
	b, _ = h.AppendBinary(b[:0]) // the error is always nil
	return b
}

// rounded rounds a rate up, so that it rarely changes.
func rounded(rate float64) float64 {
	fraction, exponent := math.Frexp(rate)
	return math.Ldexp(math.Ceil(fraction*64)/64, exponent)
}

// persistent reports whether the next process needs the meter's last reading.
func (m *meter) persistent() bool {
	return (m.counts || m.sums || m.spec.Distributed) && m.have && !m.divided && !m.replaced
}

// before adds what the readings of a counter before the last one say.
func (w *saver) before(to *saved.Meter, c *readings.Counter) {
	if p := c.Doubted; !p.At.IsZero() {
		to.Doubted = saved.Point{Value: p.Value, At: w.at(p.At)}
	}
	if l := &c.Left; !l.At.IsZero() {
		to.Left = saved.Line{
			From: saved.Point{Value: l.Value, At: w.at(l.At)}, To: saved.Point{Value: l.To.Value, At: w.at(l.To.At)},
			Counted: l.Counted,
		}
	}
}

func (w *saver) device(d *deviceBook) {
	r, c, names := &w.records.device, &w.records.counts, &d.identity.names
	*r = saved.Device{
		Driver: d.id.Driver, Pool: d.id.Pool, Name: d.id.Device, Born: stamp(d.born), UUID: names[0], PCI: names[1],
		NetDev: names[2], RDMA: names[3], Read: d.read, Watched: d.watched, LastError: stamp(d.lastError),
		CPUs: d.identity.cpus, Counters: r.Counters[:0], Meters: r.Meters[:0], Highest: r.Highest[:0],
	}
	*c = saved.Counts{
		Allocated: d.allocated, InUse: d.inUse, Accrued: w.at(d.accrued), UsedUntil: w.at(d.usedUntil),
		Totals: c.Totals[:0], Settled: c.Settled[:0], Values: c.Values[:0], At: c.At[:0],
		Highest: c.Highest[:0],
	}
	for _, v := range d.unattributed.witnessed {
		r.Highest, c.Highest = append(r.Highest, w.series(v.Series, 0)), append(c.Highest, v.Value)
	}
	for _, of := range d.attributed {
		w.counter(of)
		c.Totals = append(c.Totals, d.unattributed.total(of).value)
	}
	for _, of := range d.counters {
		if of.index < 0 {
			w.counter(of)
		}
	}
	for _, m := range d.meters {
		if !m.persistent() {
			continue
		}
		meter := saved.Meter{Series: w.series(newSeries(m.key), 0), Since: stamp(m.since), Idle: m.idle}
		setOrigin(&meter.Series, m.series.Origin)
		if m.counts {
			w.before(&meter, m.before)
		}
		r.Meters = append(r.Meters, meter)
		c.Values, c.At = append(c.Values, m.last.Value), append(c.At, w.at(m.last.At))
	}
	w.Put(saved.KindDevice, &d.object, r)
	w.Put(saved.KindCounts, &d.object, c)
	w.held(d)
	if w.Whole() || !d.periodsSaved {
		d.periodsSaved = true
		w.periods(d)
	}
}

// counter adds a counter to the records of its device.
func (w *saver) counter(of *counter) {
	r, c := &w.records.device, &w.records.counts
	counter := saved.Counter{
		Series: w.series(of.series, 0), Idle: of.idle, Limit: of.limit,
		Fastest: rounded(of.fastest), Read: rounded(of.read), Widest: of.widest,
	}
	setOrigin(&counter.Series, of.series.Origin)
	r.Counters = append(r.Counters, counter)
	c.Totals, c.Settled = append(c.Totals, of.total), append(c.Settled, w.at(of.settled))
}

// held writes the holders of the device, without the use of their processes, which changes each
// second.
func (w *saver) held(d *deviceBook) {
	r := &w.records.held
	r.Segments, w.parts = r.Segments[:0], w.parts[:0]
	first := d.timeline.At(d.unsettled(d.clock))
	for i := max(first, len(d.timeline)-maxHeld); i < len(d.timeline); i++ {
		s := &d.timeline[i]
		if i > first && s.SameHolders(&d.timeline[i-1]) {
			continue
		}
		segment := saved.Segment{
			Claims: w.partsOf(s.Claims), Pods: w.partsOf(s.Pods), Guessed: s.Guessed, Attribution: s.Attribution,
		}
		if i > first {
			segment.From = w.at(s.From)
		}
		r.Segments = append(r.Segments, segment)
	}
	w.Put(saved.KindHeld, &d.object, r)
}

func (w *saver) partsOf(of []part) []saved.Part {
	first := len(w.parts)
	for i := range of {
		w.parts = append(w.parts, saved.Part{Account: w.Number(&of[i].Holder.written.object), Weight: of[i].Weight})
	}
	return w.parts[first:]
}

func (w *saver) periods(d *deviceBook) {
	r := &w.records.periods
	r.Periods = r.Periods[:0]
	for _, p := range d.periods.All() {
		r.Periods = append(r.Periods, saved.Period{
			Namespace: p.Claim.Namespace, Claim: p.Claim.Name, ClaimUID: p.ClaimUID, ShareID: p.ShareID,
			Pod: p.Pod.Name, PodNamespace: p.Pod.Namespace, PodUID: p.PodUID, Admin: p.Admin, Older: p.Older,
			Attribution: p.Attribution, Hold: uint64(p.Hold), From: w.at(p.From), To: w.at(p.To),
			FromEarly: p.FromDoubt.Early, FromLate: p.FromDoubt.Late, ToEarly: p.ToDoubt.Early, ToLate: p.ToDoubt.Late,
		})
	}
	w.Put(saved.KindPeriods, &d.object, r)
}

func (w *saver) accountAndSums(l *lineage, i int, of *accountBook) {
	a := l.accounts[i]
	if a.Closed && a.written.closedAt == 0 {
		a.written.closedAt = w.turn
	}
	number := w.Number(&a.written.object)
	if w.Whole() || !a.written.current {
		w.account(l, i, of)
	}
	w.Put(saved.KindSums, &a.written.object, w.sumsOf(a))
	if a.ofClaim.fit != nil && (w.Whole() || a.ofClaim.fit.due || (w.turn+int(number))%seldom == 0) {
		w.fit(a)
	}
	if !of.ofPods && (w.Whole() || !a.ended.IsZero() || (w.turn+int(number))%notSoOften == 0) {
		w.Put(saved.KindDoubts, &a.written.object, w.doubtsOf(a))
	}
}

func (w *saver) account(l *lineage, i int, of *accountBook) {
	a := l.accounts[i]
	over := a.Closed && w.turn-a.written.closedAt >= closingTurns
	v := a.known()
	r := &w.records.account
	*r = saved.Account{
		AccountFacts: a.AccountFacts, Witnessed: r.Witnessed[:0], Shown: r.Shown[:0],
		Device: w.Number(&a.device.object), Namespace: a.key.Namespace, Name: a.key.Name, OfPod: of.ofPods,
		Born: stamp(a.born), Ended: w.at(a.ended), Matured: stamp(a.youth.matured), LastError: stamp(a.lastError),
		Allocated: stamp(v.Allocated), Waiting: w.at(v.Waiting), Prepared: w.at(v.Prepared),
		FirstActive: w.at(v.FirstActive), Unprepared: w.at(v.Unprepared),
		CountedPreparation: v.countedPreparation, CountedActivity: v.countedActivity,
	}
	r.Closed = over
	for i := range a.witnessed {
		r.Witnessed = append(r.Witnessed, w.series(a.witnessed[i].Series, 0))
	}
	for i := range a.totals {
		shown := saved.Never
		if s := a.totals[i].series; s != nil {
			shown = stamp(s.Shown)
		}
		r.Shown = append(r.Shown, shown)
	}
	if i > 0 {
		r.Earlier = w.Number(&l.accounts[i-1].written.object)
	} else if m := l.released; m != nil {
		r.Released = &saved.Amounts{
			Born: stamp(m.Born), Shown: stamp(m.Shown), Values: w.values(nil, m.Values), Allocated: m.Allocated,
			Share: m.Share, Used: m.Used,
		}
	}
	w.Put(saved.KindAccount, &a.written.object, r)
	a.written.current = over || !a.Closed
}

func (w *saver) sumsOf(a *account) *saved.Sums {
	r := &w.records.sums
	*r = saved.Sums{
		Allocated: a.allocated, Share: a.share, Used: a.used, Active: w.at(a.active), UsedUntil: w.at(a.usedUntil),
		Totals: r.Totals[:0], Witnessed: r.Witnessed[:0],
	}
	for i := range a.totals {
		r.Totals = r.Totals.Append(a.totals[i].value)
	}
	for i := range a.witnessed {
		r.Witnessed = r.Witnessed.Append(a.witnessed[i].Value)
	}
	return r
}

func (w *saver) doubtsOf(a *account) *saved.Doubts {
	r := &w.records.doubts
	*r = saved.Doubts{Edges: a.edges, Unread: a.unread, Totals: r.Totals[:0]}
	for i := range a.totals {
		r.Totals = append(r.Totals, saved.Doubt{Doubt: a.totals[i].doubt, Measured: a.totals[i].measured})
	}
	return r
}

func (w *saver) fit(a *account) {
	f, r := a.ofClaim.fit, &w.records.fit
	*r = saved.Fit{
		Activity: binary(r.Activity, &f.activity), Bandwidth: binary(r.Bandwidth, &f.bandwidth),
		FitFacts: f.FitFacts, Use: f.Use,
	}
	if s := f.ended; s != nil {
		r.Ended = &saved.Share{ShareID: s.ShareID, Request: s.Request, Admin: s.Admin}
		for _, c := range s.Consumed {
			r.Ended.Consumed = append(r.Ended.Consumed, saved.Amount{Resource: c.Resource, Value: c.Value})
		}
	}
	if f.final {
		r.Advice, _ = json.Marshal(f.advice) // cannot fail: all types can be encoded
	}
	f.due = false
	w.Put(saved.KindFit, &a.written.object, r)
}

func (w *saver) distributions(key claimKey, c *claimDistributions) {
	for _, d := range c.quantities {
		fresh := d.observed
		d.observed, d.keeps = d.observed[:0], true
		if w.Whole() || len(fresh) > maxObservations || w.Fresh(&d.object) || d.shown != !d.series.Shown.IsZero() {
			d.shown = !d.series.Shown.IsZero()
			d.histogram.View().Read(&w.histogram)
			r := &w.records.distribution
			*r = saved.Distribution{
				Namespace: key.namespace, Name: key.name, Driver: key.driver, Series: w.series(d.series, 0),
				Histogram: binary(r.Histogram, &w.histogram),
			}
			w.Put(saved.KindDistribution, &d.object, r)
			continue
		}
		w.Number(&d.object)
		for i := range fresh {
			w.Observe(&d.object, &fresh[i])
		}
	}
}

func (w *saver) lives(d *driverLives) {
	w.Put(saved.KindLives, &d.object, &saved.Lives{
		Driver: d.Driver, Born: stamp(d.Born), Prepared: stamp(d.Preparation.Shown), Active: stamp(d.FirstActivity.Shown),
		Preparation: binary(nil, &d.Preparation.Histogram), Activity: binary(nil, &d.FirstActivity.Histogram),
	})
}

func (w *saver) name(ofPods bool, n *name) {
	r, kind := &w.records.name, saved.KindClaim
	*r = saved.Name{
		Namespace: n.key.Namespace, Name: n.key.Name, UID: n.uid, Allocated: stamp(n.allocatedAt),
		PodMeta: podresources.PodMeta{Labels: n.labels}, Known: n.meta != nil,
	}
	if r.Known {
		r.PodMeta = *n.meta
	}
	r.Labelled = r.Labels != nil
	if ofPods {
		kind = saved.KindPod
	}
	w.Put(kind, &n.object, r)
}

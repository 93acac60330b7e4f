package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Ledger keeps who held each device when, and the sum of each counter: for the device, for each
// claim and pod that held it, and unattributed. It is the only state behind the metrics.
//
// It is not safe for concurrent use.
type Ledger struct {
	config  Config
	devices deviceBooks
	present []*deviceBook // of this tick, in the order of the join
	books
	infos infos // of the last snapshot
	history
	closing   closing
	advisor   advisor
	lives     livesBook
	saver     saver // persists the state
	continues bool  // it continues the holds of an earlier process
}

// New returns an empty ledger.
func New(config Config) *Ledger {
	config.Catalogue = config.catalogue()
	config.History = cmp.Or(config.History, MaxHistory)
	l := &Ledger{
		config: config, devices: deviceBooks{}, advisor: advisor{config: config.Fit},
		lives: livesBook{byDriver: map[string]*driverLives{}},
	}
	l.claims = newBook()
	l.claims.fits = config.Advise
	l.pods = newBook()
	l.pods.ofPods, l.pods.minLifetime = true, config.MinLifetime
	if !config.WithoutDistributions {
		l.claims.distributions = distributions{}
	}
	return l
}

// Advance adds the result of a tick and returns the new snapshot. now must be after that of the
// previous call. Each step needs the results of the earlier ones:
//
//  1. The timeline of each device is updated by the holds. The readings of this tick are queued in
//     its meters. A new counter is opened for the present holders of the device.
//  2. Partitions are linked to their parents. This follows step 1, since a parent's counts are
//     divided by the timelines and the activity of its partitions.
//  3. The queued readings of each device, and its allocated time, are distributed up to the time
//     until which its holders are known.
//  4. The present values of parents are divided, using the idle power found so far.
//  5. Values over several devices of a claim are summed: distributions, and lives.
//  6. Names get the identities of claims and pods. Then pods become mature or are added to their
//     workload's row, and records whose retention is over are dropped.
//  7. The results are computed: periods, advice, the snapshot.
func (l *Ledger) Advance(r join.Result, now time.Time) *book.Snapshot {
	l.begin(&r, now)
	ended := byDevice(r.Ended)
	for _, d := range l.present {
		l.follow(d, d.joined.Shares, ended[d.id], r.View.At, now)
		d.observe(now)
	}
	for id, d := range l.devices { // those that are neither held nor listed any more
		if !d.seen.Equal(now) {
			l.follow(d, nil, ended[id], r.View.At, now)
		}
	}
	l.devices.link(l.present)
	for _, d := range l.present {
		l.settle(d, &r.View, now)
	}
	l.settleAbsent(&r.View, now)
	for _, d := range l.present {
		d.dividePresent(now, &l.config)
	}
	l.claims.distributions.settle(now)
	l.lives.observe(&l.claims, l.started, now)
	l.observeNames(&r, now)
	l.release(now)
	l.update(l.devices, l.config.History, now)
	l.advisor.advise(&l.claims, r.Devices, now)
	return l.snapshot(&r, now)
}

// begin begins a tick.
func (l *Ledger) begin(r *join.Result, now time.Time) {
	l.corrections = 0
	if l.started.IsZero() {
		l.started = now
	}
	if l.answered.IsZero() {
		l.answered = r.View.At
	}
	l.present = l.present[:0]
	for i := range r.Devices {
		l.present = append(l.present, l.devices.of(&r.Devices[i], l.config.Catalogue, now))
	}
}

// settle distributes a device's readings and its time up to the time until which the holders are
// known.
func (l *Ledger) settle(d *deviceBook, view *podresources.View, now time.Time) {
	until := d.knownUntil(driver.Later(view.At, view.Settled), view.Waiting)
	d.settle(until, now, &l.config)
	d.accrue(until)
}

// settleAbsent settles devices that are neither held nor listed any more, and drops those whose
// accounts are all gone.
func (l *Ledger) settleAbsent(view *podresources.View, now time.Time) {
	for id, d := range l.devices {
		if d.seen.Equal(now) {
			continue
		}
		l.settle(d, view, now)
		d.forget(now)
		if now.Sub(d.seen) > l.config.Retention+2*rememberFor { // later than all of its accounts
			l.timeline = l.timeline.With(map[driver.ID][]*timeline.Period{id: nil})
			delete(l.devices, id)
		}
	}
}

// release makes pods mature, shows what is new, and drops records whose retention is over.
func (l *Ledger) release(now time.Time) {
	l.pods.aggregate(now)
	l.claims.show(now)
	l.pods.show(now)
	l.claims.release(now, l.config.Retention, l.closing.closeDropped)
	l.pods.release(now, l.config.Retention, func(*account) {})
	l.claims.keepNames(now, l.config.Retention)
	l.pods.keepNames(now, l.config.Retention)
}

func (l *Ledger) snapshot(r *join.Result, now time.Time) *book.Snapshot {
	s := &book.Snapshot{
		Time: now, Catalogue: l.config.Catalogue, Corrections: l.corrections, Sources: r.Sources, Timeline: l.timeline,
		Forgotten: l.lost, Closed: l.closing.close(&l.claims, now), Lives: l.lives.snapshot(),
	}
	for _, d := range l.present {
		s.Rejected = append(s.Rejected, d.rejected...)
		d.rejected = d.rejected[:0]
	}
	s.Devices, s.Failures = rowsOf(l.present, now)
	l.devices.markDown(s.Devices)
	claims, pods := l.claims.rows(now, l.config.Retention), l.pods.rows(now, l.config.Retention)
	s.Plugins, s.Claims = claims.plugins, claims.newest
	s.EarlierClaims, s.Young, s.Pods, s.EarlierPods = claims.earlier, pods.young, pods.newest, pods.earlier
	s.ClaimInfos, s.PodInfos = l.infos.of(&l.books, r.Topology, now, &l.config)
	return s
}

// AppendState appends the state of the ledger for [Ledger.Restore]. clock converts times.
func (l *Ledger) AppendState(b []byte, clock func(time.Time) int64) []byte {
	return l.save(b, clock, true)
}

// AppendChanges appends the changes since its last call, or since AppendState.
func (l *Ledger) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	return l.save(b, clock, false)
}

func (l *Ledger) save(b []byte, clock func(time.Time) int64, whole bool) []byte {
	w := &l.saver
	w.Begin(b, whole)
	w.clock, w.catalogue = clock, l.config.Catalogue
	w.turn++
	for _, d := range l.devices {
		w.device(d)
	}
	for _, book := range [2]*accountBook{&l.claims, &l.pods} {
		for _, l := range book.accounts {
			for i := range l.accounts {
				w.accountAndSums(l, i, book)
			}
		}
		for key, c := range book.distributions {
			w.distributions(key, c)
		}
		for _, n := range book.names.names {
			w.name(book.ofPods, n)
		}
	}
	for _, d := range l.lives.byDriver {
		w.lives(d)
	}
	w.clock = nil
	return w.End()
}

// Evict drops ended claims and pods before their retention is over, in the order of their ends, as
// long as drop returns true. until is when the retention of h would be over. Evict removes them
// from the ledger and from s, which must be the ledger's newest snapshot and not be in use yet.
func (l *Ledger) Evict(s *book.Snapshot, drop func(h *book.Holder, pod bool, until time.Time) bool) {
	type candidate struct {
		row  *book.Holder
		book *accountBook
	}
	var ended []candidate
	find := func(rows []book.Holder, book *accountBook) {
		for i := range rows {
			if h := &rows[i]; !h.Ended.IsZero() {
				ended = append(ended, candidate{h, book})
			}
		}
	}
	find(s.Claims, &l.claims)
	find(s.Pods, &l.pods)
	slices.SortStableFunc(ended, func(a, b candidate) int { return a.row.Ended.Compare(b.row.Ended) })
	dropped := false
	for _, c := range ended {
		if !drop(c.row, c.book.ofPods, c.row.Ended.Add(l.config.Retention)) {
			break
		}
		dropped = true
		for _, a := range c.book.accounts[*c.row.HolderKey].accounts {
			if !c.book.ofPods {
				l.closing.closeDropped(a)
			}
			a.drop()
		}
	}
	if dropped {
		l.claims.evict(&s.Claims, &s.EarlierClaims)
		l.pods.evict(&s.Pods, &s.EarlierPods)
	}
}

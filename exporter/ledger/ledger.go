package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Config configures a [Ledger].
type Config struct {
	Retention        time.Duration // how long the counters of an ended claim or pod stay
	IdleThreshold    float64       // a device with a utilization above it is active
	NetworkThreshold float64       // bytes per second; a network or RDMA device with traffic above it is active

	WithoutErrors bool // errors and throttled time are not counted for claims and pods
	WithoutPeaks  bool // highest values are not kept
	// WithoutDistributions says that how the gauges of claims were distributed over time is not kept.
	WithoutDistributions bool

	Advise bool       // the smallest fit for each claim is found
	Fit    fit.Config // of that

	// MinLifetime is how long a pod must have held a device to have a row of its own; 0: none. Until
	// then, and for ever if it ended before, it is in the row of its workload. Pods that the kubelet
	// names in its first answer are older than is known, and have rows.
	MinLifetime time.Duration

	Catalogue driver.Catalogue // of the readings' quantities; nil: the standard one
}

// Ledger keeps who held each device when, and what each counter amounts to for the device, for each
// claim and pod that held it, and unattributed. It is the only state behind the metrics.
//
// It is used by one goroutine at a time.
type Ledger struct {
	config  Config
	tick    uint64
	started time.Time
	// answered is the time until which it was known first who holds what.
	answered    time.Time
	corrections int // of this tick
	devices     map[driver.ID]*deviceBook
	claims      accountBook
	pods        accountBook
	names       names
	timeline    *Timeline // of the last tick
	forgotten   time.Time // when periods that ended long ago were forgotten last
	advised     time.Time // when advice was renewed last
	dropped     []Closed  // accounts that were dropped, of claims that are not closed yet
	byDriver    map[string]*driverLives
	lives       []DriverLives // copies of them; nil: to be made
	writer      writer        // of what outlives the process
	kept        time.Time     // when an earlier process ended, whose state this goes on with; zero: none
	goesOn      bool          // with its holds
}

// New returns an empty ledger.
func New(config Config) *Ledger {
	config.Catalogue = slices.Clone(config.Catalogue.OrStandard())
	for i := range config.Catalogue {
		spec := &config.Catalogue[i]
		if config.WithoutErrors && spec.Sharing == driver.Witnessed && spec.Type == driver.Counter {
			spec.Sharing = driver.Intensive
		}
		if config.WithoutPeaks {
			spec.Peak = ""
		}
		spec.Distributed = spec.Distributed && !config.WithoutDistributions
	}
	return &Ledger{
		config:  config,
		devices: map[driver.ID]*deviceBook{},
		claims: accountBook{
			accounts: map[HolderKey]*account{}, distributions: newDistributions(!config.WithoutDistributions),
			fits: config.Advise,
		},
		pods: accountBook{
			accounts: map[HolderKey]*account{}, ofPods: true, minLifetime: config.MinLifetime,
		},
		names: newNames(), byDriver: map[string]*driverLives{},
	}
}

// maxViewAge is how long readings wait for an answer of the kubelet that covers their time. After
// that the last known holders are assumed to hold on: what is said of that time later is a late
// correction.
const maxViewAge = 2 * time.Second

// rememberFor is how long the ledger keeps devices that are neither in the inventory nor held,
// counters that are not read any more, and the history of holders, for readings that come late.
const rememberFor = 10 * time.Minute

// Advance adds the result of a tick and returns the new snapshot. now must not be before that of
// the previous call.
func (l *Ledger) Advance(r join.Result, now time.Time) *Snapshot {
	l.tick++
	l.corrections = 0
	if l.started.IsZero() {
		l.started = now
	}
	if l.answered.IsZero() {
		l.answered = r.View.At
	}
	ended := byDevice(r.Ended)
	horizon := later(r.View.At, now.Add(-maxViewAge))
	for i := range r.Devices {
		joined := &r.Devices[i]
		d := l.device(joined, now)
		l.follow(d, joined.Shares, ended[joined.ID], r.View.At, now)
		d.identify(&joined.Entry.Hardware, now)
		d.observe(joined.Readings, l.tick, now)
		d.queueEvents(joined.Events, now)
		d.prune(now)
	}
	l.link(r.Devices)
	for i := range r.Devices {
		d := l.devices[r.Devices[i].ID]
		until := d.knownUntil(horizon, r.View.Waiting)
		d.settle(until, now, l.config)
		d.accrue(until)
	}
	l.releaseDevices(&r.View, ended, horizon, now)
	for i := range r.Devices {
		l.devices[r.Devices[i].ID].dividePresent(l.tick, now, l.config)
	}
	l.claims.settleDistributions(now)
	l.observeLives(now)
	l.names.observe(&r, now)
	l.release(now)
	l.updateTimeline(now)
	l.advise(r.Devices, now)
	return l.snapshot(r, now)
}

// device returns the record of a device, a new one if there is none.
func (l *Ledger) device(joined *join.Device, now time.Time) *deviceBook {
	d := l.devices[joined.ID]
	if d == nil {
		d = newDeviceBook(joined.ID, l.config.Catalogue, now)
		l.devices[joined.ID] = d
	}
	d.seen, d.joined = now, joined
	return d
}

// releaseDevices ends the holding of devices that are neither held nor in the inventory any more,
// and drops them when all of their accounts are gone.
func (l *Ledger) releaseDevices(
	view *podresources.View, ended map[driver.ID][]join.Share, horizon, now time.Time,
) {
	for id, d := range l.devices {
		if d.seen.Equal(now) {
			continue
		}
		l.follow(d, nil, ended[id], view.At, now)
		until := d.knownUntil(horizon, view.Waiting)
		d.settle(until, now, l.config)
		d.accrue(until)
		d.forget(now)
		if now.Sub(d.seen) > l.config.Retention+2*rememberFor { // after all of its accounts
			l.timeline = l.timeline.with(map[driver.ID][]*Period{id: nil})
			delete(l.devices, id)
		}
	}
}

// release makes pods mature, and drops records whose retention is over.
func (l *Ledger) release(now time.Time) {
	l.pods.aggregate(&l.names.pods, now)
	l.claims.release(now, l.config.Retention, l.closeDropped)
	l.pods.release(now, l.config.Retention, func(*account) {})
	l.names.keep(&l.claims, &l.pods, now, l.config.Retention)
	l.names.release(now, l.config.Retention)
}

// Evict drops claims and pods that ended before their retention is over: in the order of their
// ends, as long as drop returns true. until is when the retention of h would be over. Evict removes
// them from the ledger and from s, which must be its newest snapshot and not be in use yet.
func (l *Ledger) Evict(s *Snapshot, drop func(h *Holder, pod bool, until time.Time) bool) {
	type candidate struct {
		row  *Holder
		book *accountBook
	}
	var ended []candidate
	for _, of := range []struct {
		rows []Holder
		book *accountBook
	}{{s.Claims, &l.claims}, {s.Pods, &l.pods}} {
		for i := range of.rows {
			if h := &of.rows[i]; !h.Ended.IsZero() {
				ended = append(ended, candidate{h, of.book})
			}
		}
	}
	slices.SortStableFunc(ended, func(a, b candidate) int { return a.row.Ended.Compare(b.row.Ended) })
	n := 0
	for n < len(ended) && drop(ended[n].row, ended[n].book == &l.pods, ended[n].row.Ended.Add(l.config.Retention)) {
		for a := range ended[n].book.accounts[*ended[n].row.HolderKey].andEarlier() {
			if ended[n].book == &l.claims {
				l.closeDropped(a)
			}
			a.drop()
		}
		n++
	}
	if n > 0 {
		l.claims.evict(&s.Claims, &s.EarlierClaims)
		l.pods.evict(&s.Pods, &s.EarlierPods)
	}
}

// updateTimeline takes over what changed at this tick.
func (l *Ledger) updateTimeline(now time.Time) {
	forget := now.Sub(l.forgotten) >= forgetEvery
	if forget {
		l.forgotten = now
	}
	changed := map[driver.ID][]*Period{}
	for id, d := range l.devices {
		if forget {
			d.forgetPeriods(now)
		}
		if d.newPeriods {
			changed[id], d.newPeriods = slices.Clip(d.periods), false
		}
	}
	l.timeline = l.timeline.with(changed)
}

// forgetEvery is how often periods that ended long ago are forgotten.
const forgetEvery = time.Minute

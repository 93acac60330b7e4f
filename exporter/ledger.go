package exporter

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// LedgerConfig are the ledger's settings.
type LedgerConfig struct {
	Retention        time.Duration // how long the counters of an ended claim or pod stay
	IdleThreshold    float64       // a device with a utilization above it is active
	NetworkThreshold float64       // bytes per second; a network or RDMA device with traffic above it is active
	MaxSeries        int           // 0: no limit
}

// Ledger keeps what accumulates: who held each device when, and what each counter came to for the device, for
// each claim and pod that held it, and for nobody. It is the only state behind the metrics.
//
// Advance is called by one goroutine.
type Ledger struct {
	config  LedgerConfig
	tick    uint64
	view    time.Time // when the holders were last known
	started time.Time
	devices map[driver.ID]*device
	claims  book
	pods    book
	names   names
	limit   limiter
	labels  *labelCache
}

// NewLedger returns an empty ledger.
func NewLedger(config LedgerConfig) *Ledger {
	return &Ledger{
		config:  config,
		devices: map[driver.ID]*device{},
		claims:  book{holder: "resourceclaim_name", accounts: map[accountKey]*account{}},
		pods:    book{holder: "pod", accounts: map[accountKey]*account{}},
		names:   newNames(),
		limit:   limiter{max: config.MaxSeries},
		labels:  newLabelCache(),
	}
}

// patience is how long readings wait for an answer of the kubelet that covers them; after that the last known holders
// are taken to hold still.
const patience = 2 * time.Second

// forget is how long a device that neither inventory nor claims know any more, or a counter that is not read any
// more, holds back what depends on it; and how far back it is known who held a device, for counters that are read late
// or for the first time and tell since when they count.
const forget = 10 * time.Minute

// Advance takes the result of a tick into the books and returns the new snapshot. Time does not run backwards: now is
// not before that of the call before.
func (l *Ledger) Advance(r Result, now time.Time) *Snapshot {
	l.tick++
	if l.started.IsZero() {
		l.started = now
	}
	when := dating{after: l.view, until: r.View.At, changes: r.View.Changes, watched: r.View.Watched}
	departures := when.departures()
	horizon := r.View.At
	if late := now.Add(-patience); late.After(horizon) {
		horizon = late
	}
	for i := range r.Devices {
		joined := &r.Devices[i]
		d := l.device(joined, now)
		l.hold(d, joined.Shares, when, now)
		l.use(d, joined.Shares, now)
		d.observe(joined.Readings, l.tick, now)
		d.prune(now)
		d.departures = departures
		d.settle(horizon, now, l.config)
		d.accrue(horizon)
	}
	l.view = r.View.At
	l.labels.tick(now)
	l.names.observe(r.Devices, now)
	l.release(horizon, now)
	return l.snapshot(r, now)
}

// device returns the books of a device, and opens them when it is new.
func (l *Ledger) device(joined *JoinedDevice, now time.Time) *device {
	d := l.devices[joined.ID]
	if d == nil {
		d = newDevice(joined.ID, now)
		l.devices[joined.ID] = d
	}
	d.seen, d.joined = now, joined
	return d
}

// hold brings the device's timeline up to date. What is held at the first answer of the kubelet was held before:
// readings from before that answer are nobody else's.
func (l *Ledger) hold(d *device, shares []Share, when dating, now time.Time) {
	if len(d.timeline) == 0 {
		d.timeline = timeline{{nobody: evenly(1)}}
		if l.view.IsZero() && !when.until.IsZero() {
			d.timeline[0] = l.segment(d, shares, time.Time{}, when.until, now)
			d.shares = shares
			return
		}
	}
	if sameHolding(d.shares, shares) {
		d.shares = shares // facts such as a request may have changed
		return
	}
	c := newChange(d.shares, shares, when)
	for _, t := range c.times {
		if last := d.timeline[len(d.timeline)-1].from; t.Before(last) {
			t = last
		}
		d.timeline = append(d.timeline, l.segment(d, c.at(t), t, t, now))
	}
	// Whatever the dates said, who holds the device now is what the kubelet says.
	last := &d.timeline[len(d.timeline)-1]
	*last = l.segment(d, shares, last.from, last.from, now)
	d.timeline = d.timeline.since(now.Add(-forget))
	d.shares = shares
	d.closeAccounts()
}

// segment makes the segment of the given shares and opens accounts for those who had none.
func (l *Ledger) segment(d *device, shares []Share, from, born, now time.Time) segment {
	s := segment{from: from}
	for i := range shares {
		share := &shares[i]
		if share.Admin {
			continue
		}
		s.byProcess = s.byProcess || share.ByProcess
		var used Use
		for n, p := range share.Pods {
			pod := part{l.pods.account(d, p.Namespace, p.Name, born, now), share.Weight / float64(len(share.Pods)), share.use(n)}
			s.pods = addPart(s.pods, pod)
			used.add(pod.use)
		}
		if share.Uses == nil {
			used = evenly(share.Weight)
		}
		s.claims = addPart(s.claims, part{l.claims.account(d, share.Claim.Namespace, share.Claim.Name, born, now), share.Weight, used})
	}
	s.leaveRest()
	return s
}

func addPart(parts []part, more part) []part {
	for i := range parts {
		if parts[i].account == more.account {
			parts[i].weight += more.weight
			parts[i].use.add(more.use)
			return parts
		}
	}
	return append(parts, more)
}

// use brings the present holders' parts up to date where processes tell them: what they tell now is of the time since the
// tick before.
func (l *Ledger) use(d *device, shares []Share, now time.Time) {
	since := d.used
	d.used = now
	known := slices.ContainsFunc(shares, func(s Share) bool { return s.Uses != nil })
	if !known && !d.usesKnown {
		return
	}
	d.usesKnown = known
	last := &d.timeline[len(d.timeline)-1]
	fresh := l.segment(d, shares, last.from, last.from, now)
	switch {
	case last.sameParts(&fresh):
	case since.After(last.from):
		fresh.from = since
		d.timeline = append(d.timeline, fresh)
	default:
		*last = fresh
	}
	if len(d.timeline) > 2*maxSegments {
		d.timeline = d.timeline.since(now.Add(-forget))
	}
}

// release ends the holding of devices that neither kubelet nor inventory know any more, and drops the books whose
// retention is over.
func (l *Ledger) release(horizon, now time.Time) {
	for id, d := range l.devices {
		if d.seen.Equal(now) {
			continue
		}
		l.hold(d, nil, dating{until: now}, now)
		d.settle(horizon, now, l.config)
		d.accrue(horizon)
		if now.Sub(d.seen) > l.config.Retention+2*forget { // after all of its accounts
			delete(l.devices, id)
		}
	}
	l.claims.release(now, l.config.Retention)
	l.pods.release(now, l.config.Retention)
	l.names.keep(&l.claims, &l.pods, now, l.config.Retention)
	l.names.release(now, l.config.Retention)
}

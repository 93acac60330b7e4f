package ledger

import (
	"slices"
	"sort"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

// Snapshot is all that is known of the devices of the node at one time. It is immutable and safe
// for concurrent use.
type Snapshot struct {
	Time    time.Time
	Devices []Device // sorted by ID
	// Claims are a row a name and device, sorted; those that ended within the retention too. Where
	// claims have had the name one after the other, the row is of the newest.
	Claims []Holder
	Pods   []Holder // likewise
	// EarlierClaims and EarlierPods ended within the retention, and another one has their name.
	EarlierClaims, EarlierPods []Holder
	// Young are pods that have held a device for less than Config.MinLifetime. In place of them, Pods
	// have a row for each workload and device, whose Name is an [AggregatedName]: with their parts of
	// gauges, and with all that those were charged that ended young. So Pods sum to Claims in gauges,
	// and together with Young in counters.
	Young []Holder
	// Plugins are the allocations of device plugins, which have no claim: a row a namespace and
	// device, without a name. Together with them the claims' parts sum to the pods'.
	Plugins []Holder

	ClaimInfos []ClaimInfo
	PodInfos   []PodInfo

	Sources []join.SourceState // of telemetry

	// Corrections are how many holds began or ended, as this tick learned, before a time whose
	// readings were charged already. They count from that time on.
	Corrections int

	// Closed are the claims whose hold ended on all of their devices, once each, when what was counted
	// until then is known.
	Closed []Closed
	// Lives are how long claims took to be prepared and to become active, by driver.
	Lives []DriverLives

	// Stalled says of the claims' devices that can be busy and draw power whether they do nothing. The
	// flight recorder fills it.
	Stalled map[*HolderKey]stall.Verdict
	// Incidents are those that are open and hit a claim on a device, of each kind the one that began
	// last. The flight recorder fills them.
	Incidents map[*HolderKey][]OpenIncident

	Timeline *Timeline // who held what when
	Failures []Failure // the errors that were counted at this tick

	Catalogue driver.Catalogue // of the values' quantities; nil: the standard one
}

// OpenIncident is an incident that hit a claim.
type OpenIncident struct {
	Kind  string
	Onset time.Time
}

// Up reports whether a device is readable.
type Up int8

// UpUnknown is for devices that no source supports or that were never realised.
const (
	UpUnknown Up = -1
	Down      Up = 0
	UpNow     Up = 1
)

// Device is the state of a device.
type Device struct {
	*join.Device
	Key     *driver.ID // points to ID; the same pointer in all snapshots
	Up      Up
	Missing join.MissingReason
	Values  []Value // gauges and counters that could be read
	// Ages are how long ago each of Values, if it is a counter, was what it is: what its readings have
	// counted since is not known yet. nil: no time.
	Ages         []time.Duration
	Unattributed []Value // what no holder was charged for, and the unattributed parts of gauges
	// Divided are the quantities that the device, a partition, does not measure, and of which its
	// holders have parts of the parent's. Their sources say how they were divided.
	Divided   []*Series
	Allocated float64 // seconds in which it was held since Born
	Used      float64 // those of them in which it was active; below 0: that was never measured
	Born      time.Time
	LastError time.Time // zero: none seen
	// Contradiction is what says that it works although its utilization says that it does not.
	Contradiction join.Contradiction
}

// Holder is what a claim or a pod, one of its name, has, or had, of a device.
type Holder struct {
	*HolderKey        // the same pointer in all snapshots, and another one for each UID
	UID        string // empty: unknown
	Amounts           // its own
	// Named are the amounts of its name, which the metrics have; nil: its own, as no other one had the
	// name before while it was kept. Metrics returns them.
	Named      *Amounts
	Ended      time.Time // zero: it holds the device now
	LastActive time.Time // when the device was last active while held; zero: it is not measured
	LastError  time.Time // when an error last hit it; zero: none did
	// Distributions are those of a claim, over all of its devices of one driver. The row of the first
	// of these devices has them.
	Distributions []Distribution
	// Advice is the smallest fit for a claim in place of the device; nil: it is not asked for, has
	// yet to be found, or the claim ended.
	Advice *fit.Advice
}

// Value is a number and what it means.
type Value struct {
	*Series
	Value float64
}

// Series is what a number means. It is immutable, belongs to one device or one holder, and is the
// same pointer in all snapshots as long as its meaning stays, so that the pointer identifies it.
type Series struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Source   string    // of a device's own values
	Born     time.Time // of counters: since when it counts
	Shown    time.Time // of counters: when it was first in a snapshot
}

func (l *Ledger) snapshot(r join.Result, now time.Time) *Snapshot {
	s := &Snapshot{
		Time: now, Catalogue: l.config.Catalogue, Devices: make([]Device, 0, len(r.Devices)), Corrections: l.corrections,
		Sources: r.Sources, Closed: l.close(now), Lives: l.driverLives(),
	}
	room := l.roomFor(r.Devices)
	for i := range r.Devices {
		d := l.devices[r.Devices[i].ID]
		s.Devices = append(s.Devices, d.snapshot(l.tick, &room))
		s.Failures = append(s.Failures, d.failures...)
	}
	l.markDown(s.Devices)
	claims, pods := l.claims.rows(l.tick, now, l.config.Retention), l.pods.rows(l.tick, now, l.config.Retention)
	s.Plugins, s.Claims = splitPlugins(claims.newest)
	s.EarlierClaims, s.Young, s.Pods, s.EarlierPods = claims.earlier, pods.young, pods.newest, pods.earlier
	s.Timeline = l.timeline
	s.ClaimInfos, s.PodInfos = l.names.snapshot(r.Topology, now, &l.config)
	return s
}

// Claim returns the row of a claim and device; nil: there is none.
func (s *Snapshot) Claim(key *HolderKey) *Holder {
	if n, found := sort.Find(len(s.Claims), func(i int) int { return key.compare(*s.Claims[i].HolderKey) }); found {
		return &s.Claims[n]
	}
	return nil
}

// deviceRoom is memory for the values of all devices of a snapshot.
type deviceRoom struct {
	values []Value
	ages   []time.Duration
}

func (l *Ledger) roomFor(devices []join.Device) deviceRoom {
	values, ages := 0, 0
	for i := range devices {
		d := l.devices[devices[i].ID]
		ages += d.numValues()
		values += d.numValues() + d.numUnattributed()
	}
	return deviceRoom{make([]Value, 0, values), make([]time.Duration, 0, ages)}
}

// numValues and numUnattributed bound how many values of the device a snapshot has.
func (d *deviceBook) numValues() int       { return len(d.meters) + len(d.counters) + len(d.highest) }
func (d *deviceBook) numUnattributed() int { return len(d.attributed) + d.gauges }

// take returns room for n elements at the end of a slice that has it.
func take[T any](all *[]T, n int) []T {
	used := len(*all)
	*all = (*all)[:used+n]
	return (*all)[used : used : used+n]
}

func (d *deviceBook) snapshot(tick uint64, room *deviceRoom) Device {
	s := Device{Device: d.joined, Key: &d.id, Allocated: d.allocated, Born: d.born, LastError: d.lastError}
	s.Used = -1
	if d.watched {
		s.Used = d.inUse
	}
	s.Up, s.Missing = d.up()
	s.Contradiction = d.contradicted
	s.Divided = d.divided(tick)
	if s.Missing != join.MissingNone {
		s.Values = d.health(tick)
		if s.Up == Down {
			s.Values = d.withFailures(s.Values)
		}
		return s
	}
	last := &d.timeline[len(d.timeline)-1]
	ages := take(&room.ages, d.numValues())[:d.numValues()]
	s.Values = take(&room.values, d.numValues())
	s.Unattributed = take(&room.values, d.numUnattributed())
	for _, m := range d.meters {
		if m.present != tick || m.counts || m.divided {
			continue
		}
		v := Value{m.series, m.now.Value}
		s.Values = append(s.Values, v)
		if m.gauge >= 0 {
			v.Value *= m.kept*last.unattributed[m.spec.Basis] + m.lost
			s.Unattributed = append(s.Unattributed, v)
		}
	}
	for _, c := range d.counters {
		if c.present != tick || c.divided {
			continue
		}
		v := Value{c.series, c.total}
		s.Values = append(s.Values, v)
		if !c.settled.IsZero() {
			ages[len(s.Values)-1] = d.clock.Sub(c.settled)
		}
		if c.index >= 0 {
			v.Value = d.unattributed.totals[c.index].value
			s.Unattributed = append(s.Unattributed, v)
		}
	}
	s.Values = append(s.Values, d.highest...)
	s.Ages = ages[:len(s.Values)]
	return s
}

// up returns whether the device is readable, and if it is not, why.
func (d *deviceBook) up() (Up, join.MissingReason) {
	switch missing := d.joined.Missing; {
	case missing == join.MissingNone:
		return UpNow, missing
	case missing == join.MissingUnreadable, d.read && !unreadable(missing):
		return Down, join.MissingUnreadable
	default:
		return UpUnknown, missing
	}
}

// unreadable reports whether a device that is missing for the reason could not be read by any
// source. Such a device is not down, even if it was read before.
func unreadable(r join.MissingReason) bool {
	return r == join.MissingDuplicate || r == join.MissingNotInstantiated || r == join.MissingDriverGone
}

// health returns the health of a device that has no other telemetry.
func (d *deviceBook) health(tick uint64) []Value {
	var values []Value
	for _, m := range d.meters {
		if m.present == tick && m.key.quantity == driver.Health {
			values = append(values, Value{m.series, m.now.Value})
		}
	}
	return values
}

// withFailures appends the counters of errors of a device that can't be read: they hold, since a
// device that fails is the one whose errors somebody looks for.
func (d *deviceBook) withFailures(values []Value) []Value {
	for _, c := range d.counters {
		if c.spec.Failure {
			values = append(values, Value{c.series, c.total})
		}
	}
	return values
}

// markDown marks devices as down that are held, not readable, and of a driver of which another
// device is or was readable. All others are unsupported.
func (l *Ledger) markDown(devices []Device) {
	read := map[string]bool{}
	for _, d := range l.devices {
		if d.read {
			read[d.id.Driver] = true
		}
	}
	for i := range devices {
		d := &devices[i]
		unread := d.Missing == join.MissingNoMatch || d.Missing == join.MissingNoSource && d.Entry.Kind.Measurable()
		if unread && d.Attribution != join.AttributionNone && read[d.ID.Driver] {
			d.Up = Down
		}
	}
}

// splitPlugins separates the rows of device plugins, which have no name, from those of claims. The
// order is kept.
func splitPlugins(rows []Holder) (plugins, claims []Holder) {
	for i := range rows {
		if rows[i].Name == "" {
			plugins = append(plugins, rows[i])
		}
	}
	if len(plugins) > 0 {
		rows = slices.DeleteFunc(rows, func(h Holder) bool { return h.Name == "" })
	}
	return plugins, rows
}

// rows are the rows of the exported accounts of a book.
type rows struct{ newest, earlier, young []Holder }

// rows returns the rows of all exported accounts. The present holders have their part of the
// device's gauges.
func (b *accountBook) rows(tick uint64, now time.Time, retention time.Duration) rows {
	accounts := b.sorted()
	out := rows{newest: make([]Holder, 0, len(accounts))}
	n := 0
	for _, newest := range accounts {
		for a := newest; a != nil; a = a.earlier {
			n += len(a.totals) + len(a.witnessed) + a.device.gauges
		}
	}
	w := rowWriter{slab: make([]Value, 0, n), copies: b.copyDistributions(), tick: tick, now: now}
	for _, newest := range accounts {
		shown := false
		for a := newest; a != nil; a = a.earlier {
			switch {
			case !a.exported(now, retention):
			case a.young:
				out.young = append(out.young, w.row(a))
			case shown:
				out.earlier = append(out.earlier, w.row(a))
			default:
				shown = true
				out.newest = append(out.newest, w.row(a))
				w.complete(&out.newest[len(out.newest)-1], a)
			}
		}
	}
	return out
}

// rowWriter makes rows of accounts.
type rowWriter struct {
	slab   []Value
	copies distributionCopies
	claim  *claimDistributions // of the row before
	tick   uint64
	now    time.Time
}

// row returns what an account was charged itself.
func (w *rowWriter) row(a *account) Holder {
	start := len(w.slab)
	w.slab = a.appendValues(w.slab, w.tick, w.now)
	if a.ended.IsZero() && a.device.measured {
		a.watched = a.watched || a.device.joined.Attribution.Certain()
	}
	h := Holder{HolderKey: &a.key, UID: a.uid, Amounts: a.amounts(), Ended: a.ended, LastError: a.lastError}
	h.Values = w.slab[start:len(w.slab):len(w.slab)]
	if a.ended.IsZero() && a.device.measured {
		h.LastActive = a.active
	}
	if a.fit != nil && (a.ended.IsZero() || a.fit.final) {
		h.Advice = a.fit.advice
	}
	return h
}

// complete adds to the row of the newest account of a name what the metrics of the name have.
func (w *rowWriter) complete(h *Holder, a *account) {
	if before := a.carriedUntil(w.now); before != nil {
		h.Named = h.plus(before, a)
		for e := range a.earlier.andEarlier() { // a pod that was replaced may still run
			if e.ended.IsZero() && !e.young {
				h.Named.addGauges(e, w.tick)
			}
		}
	}
	if a.claim != w.claim {
		w.claim = a.claim
		h.Distributions = w.copies.of(a.claim)
	}
}

func (a *account) appendValues(out []Value, tick uint64, now time.Time) []Value {
	out = a.appendGauges(out, tick)
	for i := range a.totals {
		t := &a.totals[i]
		if !a.show(t, tick, now) {
			continue
		}
		out = append(out, Value{t.series, t.value})
	}
	return append(out, a.witnessed...)
}

// appendGauges appends the account's present parts of the device's gauges.
func (a *account) appendGauges(out []Value, tick uint64) []Value {
	if !a.ended.IsZero() {
		return out
	}
	part := a.use()
	for _, m := range a.device.meters {
		if m.present == tick && m.gauge >= 0 {
			out = append(out, Value{a.gauge(m), m.now.Value * m.kept * part[m.spec.Basis]})
		}
	}
	return out
}

// use returns the account's present parts of the device's quantities.
func (a *account) use() join.Use {
	if !a.aggregated {
		return a.device.useOf(a)
	}
	var sum join.Use
	for _, m := range a.members {
		sum.Add(a.device.useOf(m))
	}
	return sum
}

// useOf returns the account's present parts of the device's quantities.
func (d *deviceBook) useOf(a *account) join.Use {
	last := &d.timeline[len(d.timeline)-1]
	for _, parts := range [2][]portion{last.claims, last.pods} {
		for _, p := range parts {
			if p.account == a {
				return p.use
			}
		}
	}
	return join.Use{}
}

// Allocations returns the number of shares that hold the device, without admin access.
func (d *Device) Allocations() int {
	n := 0
	for i := range d.Shares {
		if !d.Shares[i].Admin {
			n++
		}
	}
	return n
}

package exporter

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Snapshot is all that the exporter knows of the node's devices at a moment. It never changes once it is made; any
// number of scrapes, pages and requests read it at the same time.
type Snapshot struct {
	Time    time.Time
	Devices []DeviceSnapshot // sorted by ID
	Claims  []HolderSnapshot // a row a claim and device, sorted; those that ended within the retention too
	Pods    []HolderSnapshot // a row a pod and device, likewise
	// Plugins are what pods hold through device plugins, and no claim: a row a namespace and device, without a name. With
	// these the claims' parts sum to the pods'.
	Plugins []HolderSnapshot

	ClaimInfos []ClaimInfo
	PodInfos   []PodInfo

	Series  int // exported, without the exporter's own
	Dropped int // not exported, for --max-series
	keep    int // families of a lower rank are dropped
	labels  *labelCache
}

// Up says whether a device is readable.
type Up int8

// Unknown is for devices that no source supports or that were never realised.
const (
	UpUnknown Up = -1
	Down      Up = 0
	UpNow     Up = 1
)

// DeviceSnapshot is a device at the moment.
type DeviceSnapshot struct {
	*JoinedDevice
	Up           Up
	Gap          Gap
	Values       []Value // gauges and counters that could be read
	Unattributed []Value // what nobody was charged for, and the parts of gauges that nobody holds
	Allocated    float64 // seconds in which somebody held it since Born
	Born         time.Time
	LastError    time.Time // zero: none seen
	labels       *labels
}

// HolderSnapshot is what a claim or a pod has of a device, and had.
type HolderSnapshot struct {
	Namespace, Name string
	Device          driver.ID
	Born            time.Time
	Ended           time.Time // zero: it holds the device now
	Values          []Value
	Allocated       float64   // seconds of its own
	Share           float64   // seconds, divided among those who held the device together
	LastActive      time.Time // of claims; zero: the device is not measured
	labels          *labels
}

// Value is one number with its meaning.
type Value struct {
	*Series
	Value float64
}

// Series is what a number means, from snapshot to snapshot. It never changes once it is in one.
type Series struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Source   string    // of a device's own values
	Born     time.Time // of counters: since when it counts
	shown    time.Time // of counters: when it was first exported
	labels   *labels
}

func (l *Ledger) snapshot(r Result, now time.Time) *Snapshot {
	s := &Snapshot{Time: now, labels: l.labels, Devices: make([]DeviceSnapshot, 0, len(r.Devices))}
	for i := range r.Devices {
		d := l.devices[r.Devices[i].ID]
		s.Devices = append(s.Devices, d.snapshot(l.tick))
	}
	l.supported(s.Devices)
	s.Plugins, s.Claims = splitPlugins(l.claims.snapshot(l.tick, now, l.config.Retention))
	s.Pods = l.pods.snapshot(l.tick, now, l.config.Retention)
	s.ClaimInfos, s.PodInfos = l.names.snapshot(now, l.config.Retention)
	l.limit.apply(l, s)
	return s
}

func (d *device) snapshot(tick uint64) DeviceSnapshot {
	s := DeviceSnapshot{
		JoinedDevice: d.joined, Up: UpUnknown, Gap: d.joined.Gap, Allocated: d.allocated, Born: d.born,
		LastError: d.lastError, labels: d.labels,
	}
	switch {
	case s.Gap == GapNone:
		s.Up = UpNow
	case s.Gap == GapUnreadable, d.read && !s.Gap.unreal():
		s.Up, s.Gap = Down, GapUnreadable
	}
	if s.Gap != GapNone {
		s.Values = d.health(tick)
		return s
	}
	last := &d.timeline[len(d.timeline)-1]
	s.Values = make([]Value, 0, len(d.meters)+len(d.counters))
	s.Unattributed = make([]Value, 0, len(d.attributed)+numAttributedGauges)
	for _, m := range d.meters {
		if m.present != tick || m.counts {
			continue
		}
		v := Value{m.series, m.now.Value}
		s.Values = append(s.Values, v)
		if m.gauge >= 0 {
			v.Value *= last.nobody[basisOf(m.key.quantity)]
			s.Unattributed = append(s.Unattributed, v)
		}
	}
	for _, c := range d.counters {
		if c.present != tick {
			continue
		}
		v := Value{c.series, c.total}
		s.Values = append(s.Values, v)
		if c.index >= 0 {
			v.Value = d.nobody.totals[c.index].value
			s.Unattributed = append(s.Unattributed, v)
		}
	}
	return s
}

// unreal tells whether a device that was read before is now none that could be read.
func (g Gap) unreal() bool { return g == GapDuplicate || g == GapNotInstantiated || g == GapDriverGone }

// health returns what is known of the health of a device that is not measured.
func (d *device) health(tick uint64) []Value {
	var values []Value
	for _, m := range d.meters {
		if m.present == tick && m.key.quantity == driver.Health {
			values = append(values, Value{m.series, m.now.Value})
		}
	}
	return values
}

// supported tells down from unsupported: a device that is held and not readable is down if the same driver's other
// devices are readable, or were.
func (l *Ledger) supported(devices []DeviceSnapshot) {
	read := map[string]bool{}
	for _, d := range l.devices {
		if d.read {
			read[d.id.Driver] = true
		}
	}
	for i := range devices {
		d := &devices[i]
		unread := d.Gap == GapNoMatch || d.Gap == GapNoSource && d.Entry.Kind.Measurable()
		if unread && d.Attribution != AttributionNone && read[d.ID.Driver] {
			d.Up = Down
		}
	}
}

// splitPlugins tells the rows of device plugins, which have no name, from those of claims. The order stays.
func splitPlugins(rows []HolderSnapshot) (plugins, claims []HolderSnapshot) {
	for i := range rows {
		if rows[i].Name == "" {
			plugins = append(plugins, rows[i])
		}
	}
	if len(plugins) > 0 {
		rows = slices.DeleteFunc(rows, func(h HolderSnapshot) bool { return h.Name == "" })
	}
	return plugins, rows
}

const numAttributedGauges = 3

// attributedGauge numbers the gauges that appear per claim and pod too; -1 for others.
func attributedGauge(q driver.Quantity) int {
	switch q {
	case driver.Utilization:
		return 0
	case driver.MemoryUsed:
		return 1
	case driver.Power:
		return 2
	default:
		return -1
	}
}

// snapshot returns the rows of all accounts that are exported. The present holders have their part of the device's gauges.
func (b *book) snapshot(tick uint64, now time.Time, retention time.Duration) []HolderSnapshot {
	accounts := b.sorted()
	out := make([]HolderSnapshot, 0, len(accounts))
	n := 0
	for _, a := range accounts {
		n += len(a.totals) + numAttributedGauges
	}
	slab := make([]Value, 0, n)
	for _, a := range accounts {
		if !a.exported(now, retention) {
			continue
		}
		start := len(slab)
		slab = a.appendValues(slab, tick, now)
		h := HolderSnapshot{
			Namespace: a.key.Namespace, Name: a.key.Name, Device: a.key.Device, Born: a.born, Ended: a.ended,
			Values: slab[start:len(slab):len(slab)], Allocated: a.allocated, Share: a.share, labels: a.labels,
		}
		if a.ended.IsZero() && a.device.measured {
			h.LastActive = a.active
		}
		out = append(out, h)
	}
	return out
}

func (a *account) appendValues(out []Value, tick uint64, now time.Time) []Value {
	if a.ended.IsZero() {
		part := a.device.part(a)
		for _, m := range a.device.meters {
			if m.present == tick && m.gauge >= 0 {
				out = append(out, Value{a.gauge(m), m.now.Value * part[basisOf(m.key.quantity)]})
			}
		}
	}
	for i := range a.totals {
		t := &a.totals[i]
		if !a.show(t, tick, now) {
			continue
		}
		out = append(out, Value{t.series, t.value})
	}
	return out
}

// part returns the parts of the device's quantities that an account has now.
func (d *device) part(a *account) Use {
	last := &d.timeline[len(d.timeline)-1]
	for _, parts := range [2][]part{last.claims, last.pods} {
		for _, p := range parts {
			if p.account == a {
				return p.use
			}
		}
	}
	return Use{}
}

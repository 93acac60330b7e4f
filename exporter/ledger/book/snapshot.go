package book

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Snapshot is the knowledge about the node's devices at one time. It is immutable and safe for
// concurrent use.
type Snapshot struct {
	Time    time.Time
	Devices []Device // sorted by ID
	// Claims has one row per name and device, sorted, including claims that ended within the
	// retention. If several claims had the name, the row is that of the newest one.
	Claims []Holder
	Pods   []Holder // the same for pods
	// EarlierClaims and EarlierPods ended within the retention, and a newer one has their name.
	EarlierClaims, EarlierPods []Holder
	// Young are pods that have held a device for less than Config.MinLifetime. In their place, Pods
	// has a row for each workload and device, named [AggregatedName]: with their parts of gauges, and
	// with all charges of those that ended young. So gauges of Pods sum to those of Claims, and so do
	// counters of Pods and Young together.
	Young []Holder
	// Plugins are allocations by device plugins, which have no claim: one row without a name per
	// namespace and device. Together with them, the claims' parts sum to the pods'.
	Plugins []Holder

	ClaimInfos []ClaimInfo
	PodInfos   []PodInfo

	Sources []join.SourceState // states of the sources of telemetry

	// Corrections is the number of holds whose start or end became known in this tick, after the
	// readings of that time had been charged. These changes apply from the charged time on.
	Corrections int
	// Forgotten is the number of entries of who held which device when that were lost in this tick,
	// since there were too many ([MaxHistory]).
	Forgotten int

	// Closed are claims that have ended on all of their devices and whose counts until then are known.
	// Each claim is in one snapshot.
	Closed []Closed
	// Lives has the times that claims took to be prepared and to become active, by driver.
	Lives []DriverLives

	// Stalled has a verdict for each claim's device that can be busy and draw power: whether the claim
	// does nothing. The flight recorder fills it.
	Stalled map[*HolderKey]stall.Verdict
	// Incidents are the open incidents that hit each claim's device; for each kind, the one that began
	// last. The flight recorder fills them.
	Incidents map[*HolderKey][]OpenIncident

	// Rejected are readings of this tick that can't be, by those before. The join has rejected others.
	Rejected []driver.Rejection

	Timeline timeline.Timeline // who held which device when
	Failures []Failure         // errors counted in this tick

	Catalogue driver.Catalogue // of the values' quantities; nil: the standard one
}

// Evicter is a ledger whose ended claims and pods a limit may drop before their retention is over.
type Evicter interface {
	Evict(s *Snapshot, drop func(h *Holder, pod bool, until time.Time) bool)
}

// Claim returns the row of a claim and device, nil if there is none.
func (s *Snapshot) Claim(key *HolderKey) *Holder {
	if n, found := sort.Find(len(s.Claims), func(i int) int { return key.Compare(*s.Claims[i].HolderKey) }); found {
		return &s.Claims[n]
	}
	return nil
}

// IndexOf returns the index of a device in Devices, -1 if it is not there.
func (s *Snapshot) IndexOf(id driver.ID) int {
	n, found := sort.Find(len(s.Devices), func(i int) int { return id.Compare(s.Devices[i].ID) })
	if !found {
		return -1
	}
	return n
}

// Contradicted returns the number of devices with evidence against their utilization.
func (s *Snapshot) Contradicted() int {
	n := 0
	for i := range s.Devices {
		if s.Devices[i].Contradiction != join.NoContradiction {
			n++
		}
	}
	return n
}

// Device is the state of a device.
type Device struct {
	*join.Device
	Key     *driver.ID // points to ID; the same pointer in all snapshots
	Up      Up
	Missing join.MissingReason
	Values  []Value // gauges and counters with current readings
	// Ages has, for each counter in Values, the time since its last distributed reading: later counts
	// are not known yet. nil: no time.
	Ages         []time.Duration
	Unattributed []Value // charges without a holder, and unattributed parts of gauges
	// Divided are the quantities that the device, a partition, does not measure, and for which its
	// holders get parts of the parent's values. Their sources name the kind of division.
	Divided   []*Series
	Allocated float64 // seconds since Born in which it was held
	Used      float64 // seconds of Allocated in which it was active; negative: never measured
	Born      time.Time
	LastError time.Time // zero: none
	// Contradiction is the evidence that it works although its utilization is 0.
	Contradiction join.Contradiction
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

// Up reports whether a device is readable.
type Up int8

// UpUnknown is for devices that no source supports or that were never realised.
const (
	UpUnknown Up = -1
	Down      Up = 0
	UpNow     Up = 1
)

// Holder is a claim's or pod's part of a device.
type Holder struct {
	*HolderKey        // the same pointer in all snapshots, and a different one for each UID
	UID        string // empty: unknown
	Amounts           // its own charges
	// Named are the amounts of its name, which metrics show; nil: its own, as no earlier one of the
	// name was kept. Metrics returns them.
	Named      *Amounts
	Ended      time.Time // zero: it holds the device now
	Unclaimed  bool      // it is a pod that holds the device only by a device plugin
	LastActive time.Time // when the device was last active while it held the device; zero: not measured
	LastError  time.Time // time of the last error that hit it; zero: none
	// Distributions are those of a claim, over all of its devices of one driver. The row of the first
	// of these devices has them.
	Distributions []Distribution
	// Advice is the smallest fit for the claim's device; nil: not wanted, not computed yet, or the
	// claim has ended.
	Advice *fit.Advice
}

// Metrics returns the amounts of the holder's name, for metrics: counters continue those of earlier
// holders of the name, as long as these were kept.
func (h *Holder) Metrics() *Amounts {
	if h.Named != nil {
		return h.Named
	}
	return &h.Amounts
}

// HolderKey identifies a holder of a device by namespace and name. Successive claims or pods of a
// name have separate accounts, but the counters of the name continue.
type HolderKey struct {
	Namespace, Name string
	Device          driver.ID
}

// Compare orders holders by name, then by device.
func (k HolderKey) Compare(other HolderKey) int {
	return cmp.Or(
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name), k.Device.Compare(other.Device),
	)
}

// aggregatedName begins the names of aggregated holders. No pod's name has a slash.
const aggregatedName = "aggregated/"

// AggregatedName returns the name of the row for the young pods of a workload:
// aggregated/KIND/NAME, or aggregated/ for pods without a known workload.
func AggregatedName(meta *podresources.PodMeta) string {
	if meta == nil || meta.WorkloadName == "" {
		return aggregatedName
	}
	return aggregatedName + meta.WorkloadKind + "/" + meta.WorkloadName
}

// IsAggregated reports whether a row of [Snapshot.Pods] is for the young pods of a workload.
func (k HolderKey) IsAggregated() bool { return strings.HasPrefix(k.Name, aggregatedName) }

// Amounts are the charges of a claim or pod for a device, or those of all holders of its name.
type Amounts struct {
	Born      time.Time // when the hold began
	Shown     time.Time // when it ceased to be young, and was first in a snapshot's Pods; zero: it never was young
	Values    []Value
	Allocated float64 // seconds, regardless of other holders
	Share     float64 // seconds, divided among the holders at that time
	// Used is the number of seconds in which the device was active for it, or, while it is unknown for
	// which holder it is active, for anyone; negative: never measured.
	Used float64
}

// Find returns the index of the value with an identity, -1 if there is none.
func (m *Amounts) Find(s *Series) int {
	return slices.IndexFunc(m.Values, func(v Value) bool { return v.Quantity == s.Quantity && v.Labels == s.Labels })
}

// ClaimInfo is a claim that holds a device, or did within the retention.
type ClaimInfo struct {
	podresources.Claim
	UID         string
	AllocatedAt time.Time // zero: unknown
	Labels      []string  // selected by flags: alternating names and values
	Ended       bool
}

// Equal reports whether both are equal.
func (c ClaimInfo) Equal(other ClaimInfo) bool {
	return c.Claim == other.Claim && c.UID == other.UID && c.AllocatedAt.Equal(other.AllocatedAt) &&
		c.Ended == other.Ended && slices.Equal(c.Labels, other.Labels)
}

// PodInfo is a pod that holds a device, or did within the retention.
type PodInfo struct {
	podresources.Pod
	UID   string
	Meta  *podresources.PodMeta // nil: unknown
	Ended bool
	// Young reports that it has not held a device for Config.MinLifetime, and so has no row in
	// Snapshot.Pods.
	Young bool
	// Topology is the proximity of its devices; zero: unknown, or it has one device.
	Topology join.Topology
}

// Failure is a group of errors that a device has counted, with the holders that they hit: by the
// timeline, those of the device and its partitions at the time of the errors.
type Failure struct {
	Device   driver.ID
	Labels   driver.Labels // kind and code
	Count    float64
	From, To time.Time // time of the errors; equal if it is known exactly
	// Named reports that the errors' process belongs to a known pod: then they hit only that pod and
	// these claims.
	Named  bool
	Pod    podresources.Pod
	Claims []podresources.Claim
}

// OpenIncident is an incident that hit a claim.
type OpenIncident struct {
	Kind  string
	Onset time.Time
}

// Distribution is the distribution over time of the sum of a claim's parts of a gauge, over its
// devices of one driver, since the claim began to hold them. Its series has no labels.
type Distribution struct {
	*Series
	distribution.View
}

// DriverLives has the durations between states of a driver's claims, in seconds, since the ledger
// began. It is immutable.
type DriverLives struct {
	Driver        string
	Born          time.Time // start of the distributions
	Preparation   Durations
	FirstActivity Durations
}

// Durations is a distribution of durations, in seconds. Each duration counts once.
type Durations struct {
	distribution.Histogram
	Shown time.Time // when it was first in a snapshot; zero: it is empty
}

// Series is the identity of a value. It is immutable and belongs to one device or holder. The same
// identity has the same pointer in all snapshots.
type Series struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Origin   join.Origin // for values of a device
	Born     time.Time   // for counters: since when it counts
	Shown    time.Time   // for counters: when it was first in a snapshot
}

// Value is a number and its identity.
type Value struct {
	*Series
	Value float64
}

// From returns the series with another origin; the same series if it has that one.
func (s *Series) From(origin join.Origin) *Series {
	if s.Origin == origin {
		return s
	}
	other := *s
	other.Origin = origin
	return &other
}

// DividedFrom returns the series for parts of a parent's value. activity is that of the partition.
func (s *Series) DividedFrom(parent join.Origin, activity float64) *Series {
	if activity < 0 {
		return s.From(parent.With(join.DividedByShare))
	}
	return s.From(parent.With(join.Divided))
}

// Closed is the charge of a claim for a device, from the start to the end of its hold.
type Closed struct {
	HolderKey
	UID   string // of the claim; empty: unknown
	Model string // of the device

	Born, Ended time.Time
	// Partial reports that the claim held the device before the kubelet's first answer. It is charged
	// from that answer on.
	Partial bool
	// Attribution is the least certain way in which the device was divided while several claims held
	// it, else exclusive.
	Attribution join.Attribution

	Life  Life
	Users []User // sorted by name

	Held      float64 // seconds
	HeldBound float64 // largest error of Held, in seconds
	Amounts   []Amount
	Witnessed []Value // events of the device during the hold, and the highest values of its gauges
}

// User is a pod that used a claim.
type User struct {
	Name string
	UID  string // empty: unknown
}

// Amount is a claim's charge for one counter.
type Amount struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Origin   join.Origin
	Value    float64
	Bound    float64 // largest error of the value
	Measured float64 // seconds of the hold with readings
}

// ClaimID identifies a claim.
type ClaimID struct{ Namespace, Name, UID string }

// Claim identifies the claim.
func (c *Closed) Claim() ClaimID { return ClaimID{c.Namespace, c.Name, c.UID} }

// ClosedClaims yields the devices of each claim.
func (s *Snapshot) ClosedClaims() iter.Seq[[]Closed] {
	return func(yield func([]Closed) bool) {
		for all := s.Closed; len(all) > 0; {
			n := 1
			for n < len(all) && all[n].Claim() == all[0].Claim() {
				n++
			}
			if !yield(all[:n:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// Life has the times at which a claim, or its part of one device, reached its states. Zero:
// unknown, or not yet.
type Life struct {
	Allocated   time.Time // from its object, to the second
	Waiting     time.Time // since when it has been allocated and a pod of this node has waited for it
	Prepared    time.Time // the driver has prepared it
	FirstActive time.Time // first use of the device
	LastActive  time.Time // last use; only for a claim that has ended
	Ended       time.Time
	Unprepared  time.Time // its CDI spec was removed
}

// Preparation returns the time for which pods waited for the driver.
func (l *Life) Preparation() (took time.Duration, known bool) { return between(l.Waiting, l.Prepared) }

// FirstActivity returns the time from the preparation to the first activity.
func (l *Life) FirstActivity() (took time.Duration, known bool) {
	return between(l.Prepared, l.FirstActive)
}

// Activity returns the time from the first to the last activity.
func (l *Life) Activity() (took time.Duration, known bool) {
	return between(l.FirstActive, l.LastActive)
}

// IdleEnd returns the time from the last activity to the end.
func (l *Life) IdleEnd() (took time.Duration, known bool) { return between(l.LastActive, l.Ended) }

// Unpreparation returns the time from the end to the removal of the CDI spec.
func (l *Life) Unpreparation() (took time.Duration, known bool) {
	return between(l.Ended, l.Unprepared)
}

// between returns the time between two moments. It is unknown if a moment is, or if they are in
// reverse order.
func between(from, to time.Time) (took time.Duration, known bool) {
	if from.IsZero() || to.IsZero() || to.Before(from) {
		return 0, false
	}
	return to.Sub(from), true
}

// LifeOf returns the life of a claim with several devices. It begins with the first device, and is
// prepared and ends with the last one. A time that is unknown for one device is unknown, except
// activity: devices without any are ignored.
func LifeOf(devices []Closed) Life {
	out := devices[0].Life
	for i := range devices[1:] {
		out.Join(&devices[1:][i].Life)
	}
	return out
}

// Join completes the life with that of another device of the claim: see [LifeOf].
func (l *Life) Join(other *Life) {
	l.Allocated = driver.Later(l.Allocated, other.Allocated)
	l.Waiting = bothKnown(l.Waiting, other.Waiting, driver.Earlier)
	l.Prepared = bothKnown(l.Prepared, other.Prepared, driver.Later)
	l.Ended = bothKnown(l.Ended, other.Ended, driver.Later)
	l.Unprepared = bothKnown(l.Unprepared, other.Unprepared, driver.Later)
	if l.FirstActive.IsZero() || !other.FirstActive.IsZero() && other.FirstActive.Before(l.FirstActive) {
		l.FirstActive = other.FirstActive
	}
	l.LastActive = driver.Later(l.LastActive, other.LastActive)
}

// bothKnown combines two times. The result is zero if one of them is.
func bothKnown(x, y time.Time, by func(x, y time.Time) time.Time) time.Time {
	if x.IsZero() || y.IsZero() {
		return time.Time{}
	}
	return by(x, y)
}

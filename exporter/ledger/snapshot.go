package ledger

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Snapshot is all that is known of the devices of the node at one time. It is immutable and safe
// for concurrent use.
type Snapshot struct {
	Time    time.Time
	Devices []Device // sorted by ID
	// Claims are a row a name and device, sorted; those that ended within the retention too. Where
	// claims have had the name one after the other, the row is of the newest.
	Claims []Holder
	Pods   []Holder // the same of pods
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

// Claim returns the row of a claim and device; nil: there is none.
func (s *Snapshot) Claim(key *HolderKey) *Holder {
	if n, found := sort.Find(len(s.Claims), func(i int) int { return key.compare(*s.Claims[i].HolderKey) }); found {
		return &s.Claims[n]
	}
	return nil
}

// Contradicted returns the number of devices whose utilization is contradicted.
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

// Metrics returns the amounts that the metrics of the holder's name have: the counters go on from
// those of the holders that had the name before, as long as these were kept.
func (h *Holder) Metrics() *Amounts {
	if h.Named != nil {
		return h.Named
	}
	return &h.Amounts
}

// HolderKey names a holder of a device: a claim or a pod by namespace and name. Claims and pods
// that have the name one after the other have different accounts; the counters of the name go on.
type HolderKey struct {
	Namespace, Name string
	Device          driver.ID
}

func (k HolderKey) compare(other HolderKey) int {
	return cmp.Or(
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name), k.Device.Compare(other.Device),
	)
}

// aggregatedName begins the names of aggregated holders. No pod has a slash in its name.
const aggregatedName = "aggregated/"

// AggregatedName returns the name of the holder in whose row the young pods of a workload are:
// aggregated/KIND/NAME, or aggregated/ for pods that are a part of nothing that is known.
func AggregatedName(meta *podresources.PodMeta) string {
	if meta == nil || meta.WorkloadName == "" {
		return aggregatedName
	}
	return aggregatedName + meta.WorkloadKind + "/" + meta.WorkloadName
}

// IsAggregated reports whether a row of [Snapshot.Pods] is not of a pod but of the young pods of a
// workload.
func (k HolderKey) IsAggregated() bool { return strings.HasPrefix(k.Name, aggregatedName) }

// Amounts are what a claim or pod was charged for a device; or what all were that had its name one
// after the other.
type Amounts struct {
	Born      time.Time // when it began to hold the device
	Shown     time.Time // when it ceased to be young, and was first in a snapshot's Pods; zero: it never was young
	Values    []Value
	Allocated float64 // seconds, whoever else held the device
	Share     float64 // seconds, divided among the holders at that time
	// Used are the seconds in which the device was active for it; below 0: that was never measured,
	// or it was never known which of several claims used it.
	Used float64
}

// find returns the index of the value of that meaning, -1 if there is none.
func (m *Amounts) find(s *Series) int {
	return slices.IndexFunc(m.Values, func(v Value) bool { return v.Quantity == s.Quantity && v.Labels == s.Labels })
}

// ClaimInfo is a claim that holds a device, or did within the retention.
type ClaimInfo struct {
	podresources.Claim
	UID         string
	AllocatedAt time.Time // zero: unknown
	Labels      []string  // those that flags select: alternating names and values
	Ended       bool
}

// same reports whether both say the same.
func (c *ClaimInfo) same(other *ClaimInfo) bool {
	return c.Claim == other.Claim && c.UID == other.UID && c.AllocatedAt.Equal(other.AllocatedAt) &&
		c.Ended == other.Ended && slices.Equal(c.Labels, other.Labels)
}

// PodInfo is a pod that holds a device, or did within the retention.
type PodInfo struct {
	podresources.Pod
	UID   string
	Meta  *podresources.PodMeta // nil: unknown
	Ended bool
	// Young says that it has not held a device for Config.MinLifetime, or never did: it is in no row
	// of Snapshot.Pods.
	Young bool
	// Topology is how near its devices are to each other; zero: unknown, or there is one device.
	Topology join.Topology
}

// Failure is errors that a device has counted, with whom they hit for the metrics: those whom the
// timeline has for the time of the errors, of the device and of its partitions.
type Failure struct {
	Device   driver.ID
	Labels   driver.Labels // the kind and the code
	Count    float64
	From, To time.Time // when they happened; it is one moment if that is known
	// Named says that a process of a known pod is named: then they hit that pod and these claims
	// alone.
	Named  bool
	Pod    podresources.Pod
	Claims []podresources.Claim
}

// OpenIncident is an incident that hit a claim.
type OpenIncident struct {
	Kind  string
	Onset time.Time
}

// Distribution is how the sum of a claim's parts of a gauge, over its devices of one driver, was
// distributed over time since the claim began to hold them. Its series has no labels.
type Distribution struct {
	*Series
	distribution.View
}

// DriverLives are how long the claims of a driver took, in seconds, since the ledger began. They
// are immutable.
type DriverLives struct {
	Driver        string
	Born          time.Time // since when they count
	Preparation   Durations
	FirstActivity Durations
}

// Durations is a distribution of durations, in seconds, each of which counts once.
type Durations struct {
	distribution.Histogram
	Shown time.Time // when it was first in a snapshot; zero: nothing was observed
}

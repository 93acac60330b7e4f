// Package podresources determines which pods and claims hold a device. It requests the kubelet's
// PodResources list, decides when an empty list takes effect, and watches the node's files for the
// times at which ownership changes.
//
// Bounds (max…) are for what the kubelet and pods send.
package podresources

import (
	"cmp"
	"context"
	"strings"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Claim names a ResourceClaim. For a device of a device plugin the name is empty, and the namespace
// is the pod's.
type Claim struct{ Namespace, Name string }

// Compare orders claims by namespace and name.
func (c Claim) Compare(other Claim) int {
	return cmp.Or(strings.Compare(c.Namespace, other.Namespace), strings.Compare(c.Name, other.Name))
}

// Pod names a pod.
type Pod struct{ Namespace, Name string }

// Compare orders pods by namespace and name.
func (p Pod) Compare(other Pod) int {
	return cmp.Or(strings.Compare(p.Namespace, other.Namespace), strings.Compare(p.Name, other.Name))
}

// Holder is one container of a pod that holds an allocation.
type Holder struct {
	Pod
	Container string
	UID       string   // the pod's UID; empty: unknown
	ClaimName string   // the pod's own name for the claim; empty: unknown
	Meta      *PodMeta // further exported data of the pod; nil if unknown
	Hold      *Hold    // since when and why it holds the allocation; all containers of a pod have the same one
}

// HoldID identifies a hold in this process. 0: the hold has no identity yet.
type HoldID uint64

// Hold is a hold: the interval [From, To) in which a pod holds an allocation, and why. It does not
// change. If more becomes known, as its end, another Hold has the same ID.
type Hold struct {
	ID HoldID
	// Of is the hold of the whole device out of which this one of a share was made, if another share
	// has its ID; else 0.
	Of   HoldID
	From time.Time // zero: before the first answer of the kubelet
	To   time.Time // zero: it holds it now
	// Left is when the pod's last process ended although the hold continues; zero if that was not
	// seen.
	Left   time.Time
	Reason Reason
	Since  time.Time // of Reason; zero: as long as From
	// Wanted is when the pod's first object or its cgroup appeared, whichever was seen first; zero if
	// neither was. It may be before From.
	Wanted time.Time
	// Prepared is when the driver had prepared the devices, and Unprepared when its CDI spec was
	// removed after the end of the hold; zero if unknown, or not yet.
	Prepared, Unprepared time.Time
	// FromDoubt and ToDoubt are the uncertainties of From and To. That of a zero time is empty.
	FromDoubt, ToDoubt Doubt
}

// Doubt is the uncertainty of a time: the true time is earlier by at most Early, or later by at
// most Late.
type Doubt struct{ Early, Late time.Duration }

// Reason is the evidence that a pod holds a device, in words: one of [Reasons].
type Reason string

// The reasons. Those that begin with "kept" depend on earlier evidence.
const (
	ReasonListed    Reason = "listed by the kubelet" // by its last answer
	ReasonOther     Reason = "listed by the kubelet, while its claim is allocated another device"
	ReasonUnused    Reason = "allocated, but the pod's containers were given another device"
	ReasonReserved  Reason = "reserved, containers started"
	ReasonWaiting   Reason = "allocated, waiting for the driver"
	ReasonNominated Reason = "allocated, waiting for binding conditions"
	ReasonEnding    Reason = "the pod is ending" // the kubelet still lists it or runs its containers
	ReasonClaimGone Reason = "kept: the claim was deleted while the pod runs"
	ReasonProcesses Reason = "kept: no longer listed, but its processes run"
	ReasonNoAnswer  Reason = "kept: the kubelet does not answer"
	ReasonRestarted Reason = "kept: the kubelet may not know its pods yet, as after a restart"
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		ReasonListed, ReasonOther, ReasonUnused, ReasonReserved, ReasonWaiting, ReasonNominated, ReasonEnding,
		ReasonClaimGone, ReasonProcesses, ReasonNoAnswer, ReasonRestarted,
	}
}

// Compare orders holders by pod and container.
func (h Holder) Compare(other Holder) int {
	return cmp.Or(h.Pod.Compare(other.Pod), strings.Compare(h.Container, other.Container),
		strings.Compare(h.UID, other.UID))
}

// ClaimState is whether the devices of a claim are ready for a pod.
type ClaimState uint8

// The states.
const (
	StatePrepared  ClaimState = iota // by the driver, for the kubelet
	StateAllocated                   // and reserved for a pod of this node, which waits for the driver
)

// String returns the state's name, as metrics have it.
func (s ClaimState) String() string {
	if s == StateAllocated {
		return "allocated"
	}
	return "prepared"
}

// Allocation is one device, or one share of it, that one claim holds or, through a device plugin,
// one pod.
//
// Fields that PodResources lacks (request, admin access, consumed capacity, UIDs) are empty until
// the [ClaimFacts] are applied.
type Allocation struct {
	Claim   Claim
	Device  driver.ID
	ShareID string   // for consumable capacity (KEP-5075), and for devices that a plugin allocates repeatedly
	CDI     []string // qualified CDI device names of this device alone
	CPUs    []int    // the claim's own logical CPUs, of all its devices, ascending; nil: unknown, or none
	// OwnCPUs reports that the device is a group of CPUs, and that the claim has only those in CPUs.
	OwnCPUs bool

	ClaimUID    string
	Request     string
	DeviceClass string
	Admin       bool // adminAccess: it is not charged (KEP-5018)
	Consumed    []driver.Amount
	AllocatedAt time.Time
	ClaimLabels []string            // chosen labels of the claim: alternating names and values
	Tolerations []string            // of taints, as KEY=VALUE:EFFECT; an omitted part matches anything
	Conditions  []Condition         // of the device in the claim's status (KEP-4817), by type
	Network     *Network            // nil: unknown
	Health      driver.HealthStatus // of the device, by the statuses of the pods that hold it
	// HealthReason is the driver's message about the health; empty if unknown.
	HealthReason string
	State        ClaimState
	// Pending reports that a fact about the claim is still expected: the answer of the API server,
	// without which the claim's admin access is unknown, or the CDI spec, which names the CPUs.
	Pending bool

	Holders []Holder // at least one; sorted, each once
}

// ByPlugin reports whether the allocation is by a device plugin instead of a claim. Its holders are
// of one pod.
func (a Allocation) ByPlugin() bool { return a.Claim.Name == "" }

// Compare orders allocations by device, claim and share, and those by device plugins by pod.
func (a Allocation) Compare(other Allocation) int {
	c := cmp.Or(a.Device.Compare(other.Device), a.Claim.Compare(other.Claim), strings.Compare(a.ShareID, other.ShareID))
	if c == 0 && a.ByPlugin() && len(a.Holders) > 0 && len(other.Holders) > 0 {
		c = a.Holders[0].Pod.Compare(other.Holders[0].Pod)
	}
	return c
}

// View has the holders of devices at a time, and since when they hold them.
type View struct {
	// Allocations are the current allocations, each holder with its Hold.
	Allocations []Allocation
	// Ended are holds that ended in the last seconds, with their ends: an allocation has the holders
	// that ended together. They are kept until their last readings can be charged.
	Ended []Allocation
	// Waiting has the devices whose holders are not known yet, with the time since which they are
	// unknown. Allocations has no unknown holders.
	Waiting map[driver.ID]time.Time
	// At is the time until which the view is known. It never decreases.
	At time.Time
	// Settled is the time until which the view is final, except for Waiting: At, or later, since
	// readings do not wait longer. A change that becomes known for an earlier time is a late
	// correction.
	Settled time.Time
}

// Lister requests the devices of all containers of the node from the kubelet. [Client] implements
// it.
type Lister interface {
	// List returns an answer that does not change. If it equals the one before, it may be the same
	// pointer, which saves work.
	List(ctx context.Context) (*v1.ListPodResourcesResponse, error)
	// Instance returns the kubelet that would answer now.
	Instance() Instance
}

// Change is an event at a known time after which ownership changed or is about to change.
type Change struct {
	At   time.Time
	Gone bool // false: came
	// Doubt is the uncertainty of At, if that is more than the time that it takes to notice a change.
	Doubt Doubt
	// PodUID is the pod whose cgroup appeared or disappeared; or
	PodUID string
	// CDI are the qualified device names of the CDI spec that was written or removed.
	CDI []string
}

// Observation is the result of a request to the kubelet.
type Observation struct {
	Listed   []Allocation      // allocations in the answer
	Rejected driver.Rejections // rejected rows of the answer
	Asked    bool              // the kubelet's list was requested
	Took     time.Duration
	Retry    time.Time // when to request again before the next regular time; zero if not
}

// Package podresources determines which pods and claims hold a device. It requests the kubelet's
// PodResources list, decides when an empty list takes effect, and watches the node's files for the
// times at which ownership changes.
package podresources

import (
	"cmp"
	"strings"
	"time"

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

// Holder is one container of a pod that was given an allocation.
type Holder struct {
	Pod
	Container string
	UID       string   // the pod's UID; empty: unknown
	ClaimName string   // the pod's own name for the claim; empty: unknown
	Meta      *PodMeta // what else is shown of the pod; nil: unknown
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
// [Facts] of the claim are applied.
type Allocation struct {
	Claim   Claim
	Device  driver.ID
	ShareID string   // for consumable capacity (KEP-5075), and for devices that a plugin allocates repeatedly
	CDI     []string // qualified CDI device names of this device alone
	CPUs    []int    // the claim's own logical CPUs, of all its devices, ascending; nil: unknown, or none
	// OwnCPUs reports that the device is a group of CPUs, of which the claim has only those of CPUs.
	OwnCPUs bool

	ClaimUID    string
	Request     string
	DeviceClass string
	Admin       bool // adminAccess: owns nothing (KEP-5018)
	Consumed    []driver.Amount
	AllocatedAt time.Time
	ClaimLabels []string            // chosen labels of the claim: names and values in turns
	Tolerations []string            // of taints, as KEY=VALUE:EFFECT; a part that matches anything is left out
	Conditions  []Condition         // what the driver says of the device in the claim's status (KEP-4817), by type
	Network     *Network            // nil: unknown
	Health      driver.HealthStatus // of the device, by the pods that hold it
	State       ClaimState
	// Pending reports that it is about to be known what the claim has: the API server has yet to say
	// what it is, since one with admin access may look like an owner, or its CDI spec which CPUs.
	Pending bool

	Holders []Holder // at least one; sorted, each once
}

// ByPlugin reports whether a device plugin gave the device, and no claim. Its holders are of one
// pod.
func (a Allocation) ByPlugin() bool { return a.Claim.Name == "" }

// Compare orders allocations by device, claim and share, and those by device plugins by pod.
func (a Allocation) Compare(other Allocation) int {
	c := cmp.Or(a.Device.Compare(other.Device), a.Claim.Compare(other.Claim), strings.Compare(a.ShareID, other.ShareID))
	if c == 0 && a.ByPlugin() && len(a.Holders) > 0 && len(other.Holders) > 0 {
		c = a.Holders[0].Pod.Compare(other.Holders[0].Pod)
	}
	return c
}

// View holds the known allocations at a time.
type View struct {
	Allocations []Allocation
	// At is the time of the kubelet's response that Allocations are based on.
	At time.Time
	// Changes are the times at which pods and claims were seen to start and end, oldest first. They
	// refine the times of changes between two responses; the holders themselves come from the
	// kubelet.
	Changes []Change
	// Watched reports that a watch of the pods is open, so that the end of each pod is in Changes,
	// possibly a moment after the answer.
	Watched bool
	// Listed are the pods of the last answer that was believed, those without devices too; nil:
	// there was none. It must not be changed.
	Listed map[Pod]struct{}
}

// Observation is a view with the outcome of the request.
type Observation struct {
	View     View
	Rejected driver.Rejections // rows of this answer
	Asked    bool              // the kubelet's list was requested
	Took     time.Duration
	Retry    time.Time // when to ask again before the next regular time; zero: no need
}

// Change is an event at a known time after which ownership changed or is about to change.
type Change struct {
	At   time.Time
	Gone bool // false: came
	// PodUID is the pod whose cgroup it is; or
	PodUID string
	// CDI are the qualified device names of the CDI spec that was written or removed.
	CDI []string
}

// Package podresources says which pod and which claim holds a device: it asks the kubelet's PodResources endpoint,
// believes it when it may, and watches the node's files for the moments at which ownership changes.
package podresources

import (
	"cmp"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Claim names a ResourceClaim. Of what a device plugin gave to a container the name is empty, and the namespace the pod's.
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
	return cmp.Or(h.Pod.Compare(other.Pod), strings.Compare(h.Container, other.Container), strings.Compare(h.UID, other.UID))
}

// Allocation is one device, or one share of it, as one claim holds it; or, by a device plugin, one pod.
//
// What PodResources does not tell (request, admin access, consumed capacity, UIDs) is empty until
// [Facts] of the claim are applied.
type Allocation struct {
	Claim   Claim
	Device  driver.ID
	ShareID string   // set for devices of consumable capacity (KEP-5075), and for what a device plugin gives out several times
	CDI     []string // qualified CDI device names of this device alone

	ClaimUID    string
	Request     string
	DeviceClass string
	Admin       bool // adminAccess: owns nothing (KEP-5018)
	Consumed    []driver.Amount
	AllocatedAt time.Time
	ClaimLabels []string    // chosen labels of the claim: names and values in turns
	Tolerations []string    // of the device's taints, as KEY=VALUE:EFFECT; a part that matches anything is left out
	Conditions  []Condition // what the driver says of the device in the claim's status (KEP-4817), by type
	Network     *Network    // nil: unknown
	Health      Health      // of the device, by the pods that hold it

	Holders []Holder // at least one; sorted, each once
}

// ByPlugin tells whether a device plugin gave the device, and no claim. Its holders are of one pod.
func (a Allocation) ByPlugin() bool { return a.Claim.Name == "" }

// Compare orders allocations by device, claim and share, and those by device plugins by pod.
func (a Allocation) Compare(other Allocation) int {
	c := cmp.Or(a.Device.Compare(other.Device), a.Claim.Compare(other.Claim), strings.Compare(a.ShareID, other.ShareID))
	if c == 0 && a.ByPlugin() && len(a.Holders) > 0 && len(other.Holders) > 0 {
		c = a.Holders[0].Pod.Compare(other.Holders[0].Pod)
	}
	return c
}

// Rejection counts rows of an input that could not be used, and why.
type Rejection struct {
	Reason string
	Count  int
}

// View is who holds what, as known at a moment.
type View struct {
	Allocations []Allocation
	// At is when the kubelet's answer came on which Allocations rest.
	At time.Time
	// Changes are the moments at which pods and claims were seen to come and go, oldest first: what happened
	// between two answers is dated by them. They are hints; ownership is what the kubelet says.
	Changes []Change
	// Watched tells that a watch of the pods lives, so that the end of each shows in Changes, if a moment after the answer.
	Watched bool
}

// Observation is a view and how it came about.
type Observation struct {
	View     View
	Rejected []Rejection // rows of this answer
	Asked    bool        // the kubelet was asked
	Took     time.Duration
	Retry    time.Time // when to ask again before the next regular time; zero: no need
}

// Change is a sign that ownership changed, or is about to, at a known moment.
type Change struct {
	At   time.Time
	Gone bool // false: came
	// PodUID is the pod whose cgroup it is; or
	PodUID string
	// CDI are the qualified device names of the CDI spec that was written or removed.
	CDI []string
}

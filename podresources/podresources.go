// Package podresources determines which pods and claims hold a device. It requests the kubelet's
// PodResources list, decides when an empty list takes effect, and watches the node's files for the
// times at which ownership changes.
//
// Bounds (max…) are for what the kubelet and pods send.
package podresources

import (
	"cmp"
	"context"
	"slices"
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

// ClaimFacts are the facts of a ResourceClaim.
type ClaimFacts struct {
	UID         string
	Created     time.Time // metadata.creationTimestamp; zero: unknown
	AllocatedAt time.Time // status.allocation.allocationTimestamp; zero: unknown
	// PodClaimName is the pod's own name of a claim that was made for it from a template.
	PodClaimName string
	// Extended reports that the claim was made for extended resources of a pod (KEP-5004).
	Extended bool
	Labels   []string // the chosen labels: alternating names and values
	// Reserved are the names of the pods for which the claim is reserved (status.reservedFor), by
	// UID.
	Reserved map[string]string
	// ReservedOther reports that the claim is reserved for something other than a pod, such as a pod
	// group. Then any pod of the node that refers to the claim may hold it.
	ReservedOther bool
	// Deleted reports that the claim no longer exists in the API server; the other facts are the last
	// known ones. A pod that has started keeps its devices until it ends; a pod that waits holds
	// nothing.
	Deleted bool
	// Read is when the API server or the file gave these facts; zero if unknown.
	Read    time.Time
	Results []ClaimResult
}

// ClaimResult is an element of status.allocation.devices.results, with the element of
// status.devices for the same device.
type ClaimResult struct {
	Device      driver.ID
	ShareID     string
	Request     string // request, or request/subrequest
	DeviceClass string
	Admin       bool
	Consumed    []driver.Amount
	Tolerations []string    // of taints, as KEY=VALUE:EFFECT; an omitted part matches anything
	Conditions  []Condition // sorted by type, each once
	Network     *Network    // nil: unknown
}

// Condition is a condition of an allocated device that its driver reports (KEP-4817).
type Condition struct {
	Type   string
	Status string // True, False or Unknown
}

// Network has the facts that a network driver reports about the interface of a pod.
type Network struct {
	Interface       string // its name in the pod
	IPs             []string
	HardwareAddress string
}

// Addresses returns the IPs, or one empty string if there are none.
func (n *Network) Addresses() []string {
	if len(n.IPs) == 0 {
		return []string{""}
	}
	return n.IPs
}

// PodFacts are the facts of a pod's object.
type PodFacts struct {
	Pod     Pod
	UID     string
	Static  bool      // a static pod: its UID is the kubelet's, and an earlier pod may have had it
	Created time.Time // by the API server; zero: unknown
	// Local reports that the object is the kubelet's own copy. Its status leaves out ExtendedClaim
	// and the names of claims that were made from templates, and is final as soon as the kubelet has
	// decided to end the pod, while containers may run on.
	Local bool
	// Nominated reports that the pod waits to be bound to the node.
	Nominated bool
	// Final reports that the status says Succeeded or Failed. The API server's says so when no
	// container runs and nothing is left to unprepare.
	Final bool
	// Finished is when the last container of a pod with a final status ended, by the node's clock, in
	// whole seconds; zero if unknown.
	Finished time.Time
	// Running is the number of its containers that run, init containers included.
	Running int
	// Started reports that a container of the pod has started, so that its claims were prepared.
	Started bool
	Meta    *PodMeta
	// Claims maps the pod's own names of claims to the names of ResourceClaims.
	Claims []PodClaim
	// Containers are the containers that use claims, including init containers.
	Containers []PodContainer
	// Extended reports that a container requests extended resources, for which there may be a claim
	// (KEP-5004): ExtendedClaim, which the containers use as ExtendedUses says.
	Extended      bool
	ExtendedClaim string // empty: none, or unknown
	ExtendedUses  []PodContainer
	// Health is the health of its devices in the pod's status (KEP-4680).
	Health []DeviceHealth
}

// PodMeta has the exported data of a pod in addition to its name. The exporter's state has it too:
// a key is never used again with another meaning.
type PodMeta struct {
	// The controller; empty if there is none.
	OwnerKind string `cbor:"7,keyasint,omitempty"`
	OwnerName string `cbor:"8,keyasint,omitempty"`
	// WorkloadKind and WorkloadName identify the workload that the pod is a part of, such as a JobSet,
	// and Queue is the queue of that workload; empty if unknown or none.
	WorkloadKind string `cbor:"9,keyasint,omitempty"`
	WorkloadName string `cbor:"10,keyasint,omitempty"`
	Queue        string `cbor:"11,keyasint,omitempty"`
	// Alone reports that nothing says that the pod works together with other pods or waits for
	// requests: neither the kind of its workload, nor its labels, annotations and environment.
	Alone bool `cbor:"14,keyasint,omitempty"`

	// Labels are the chosen labels and annotations: alternating exported names and values.
	Labels []string `cbor:"6,keyasint,omitempty"`
}

// PodClaim is a claim as a pod refers to it.
type PodClaim struct {
	Name  string // the pod's own
	Claim string // the ResourceClaim's; empty if it was made from a template and is unknown
}

// PodContainer is a container and the requests of claims that it uses.
type PodContainer struct {
	Name string
	Uses []ClaimUse
	// Listed reports that PodResources lists the container: it is not a plain init container.
	Listed bool
}

// ClaimUse is a claim, or one request of it, that a container uses.
type ClaimUse struct {
	Name    string // the pod's own name; empty for the claim of extended resources
	Request string // empty: all of the claim's requests
}

// Complete adds the facts of the claim to one allocation. A device that is not in the claim keeps
// the kubelet's data.
func (c *ClaimFacts) Complete(a *Allocation) {
	if c.UID != "" {
		a.ClaimUID = c.UID
	}
	if !c.AllocatedAt.IsZero() {
		a.AllocatedAt = c.AllocatedAt
	}
	if c.Labels != nil {
		a.ClaimLabels = c.Labels
	}
	for i := range c.Results {
		r := &c.Results[i]
		if r.Device == a.Device && r.ShareID == a.ShareID {
			a.Request, a.DeviceClass, a.Admin, a.Consumed = r.Request, r.DeviceClass, r.Admin, r.Consumed
			a.Tolerations, a.Conditions, a.Network = r.Tolerations, r.Conditions, r.Network
			return
		}
	}
}

// ReservedUID returns the UID of the pod with that name for which the claim is reserved, "" if
// there is none, or more than one.
func (c *ClaimFacts) ReservedUID(name string) string {
	found := ""
	for uid, other := range c.Reserved {
		if other != name {
			continue
		}
		if found != "" {
			return ""
		}
		found = uid
	}
	return found
}

// Covers reports whether the claim has the device or share of the allocation, as far as its API
// version says.
func (c *ClaimFacts) Covers(a *Allocation) bool {
	return slices.ContainsFunc(c.Results,
		func(r ClaimResult) bool { return r.Device == a.Device && r.ShareID == a.ShareID })
}

// ReservedFor reports whether the claim is reserved for the pod. A deleted claim is reserved for
// none.
func (c *ClaimFacts) ReservedFor(uid string) bool {
	_, reserved := c.Reserved[uid]
	return !c.Deleted && (reserved || c.ReservedOther)
}

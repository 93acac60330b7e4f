package podresources

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

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

// PodMeta has the exported data of a pod in addition to its name.
type PodMeta struct {
	OwnerKind, OwnerName string // of the controller; empty if there is none
	// WorkloadKind and WorkloadName identify the workload that the pod is a part of, such as a JobSet,
	// and Queue is the queue of that workload; empty if unknown or none.
	WorkloadKind, WorkloadName, Queue string
	// Alone reports that nothing says that the pod works together with other pods or waits for
	// requests: neither the kind of its workload, nor its labels, annotations and environment.
	Alone bool

	Labels []string // the chosen labels and annotations: alternating exported names and values
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

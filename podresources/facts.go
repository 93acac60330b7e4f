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
	// PodClaimName is what the pod calls the claim that was made for it from a template.
	PodClaimName string
	// Extended reports that the claim was made for extended resources of a pod (KEP-5004).
	Extended bool
	Labels   []string // the chosen ones: alternating names and values
	// Reserved are the names of the pods for which the claim is reserved (status.reservedFor), by
	// UID.
	Reserved map[string]string
	// ReservedOther reports that the claim is reserved for something else than pods, such as a pod
	// group: then any pod of the node that refers to the claim may hold it.
	ReservedOther bool
	// Deleted reports that the API server has no such claim any more. The rest is from before. A pod
	// that has started keeps what it was given until it ends; one that waits holds nothing.
	Deleted bool
	// Read is when the API server or the file said all this; zero: unknown.
	Read    time.Time
	Results []ClaimResult
	Classic *Classic // nil: it is not of classic DRA
}

// ClaimResult is one of status.allocation.devices.results, with what status.devices says of the
// same device.
type ClaimResult struct {
	Device      driver.ID
	ShareID     string
	Request     string // request, or request/subrequest
	DeviceClass string
	Admin       bool
	Consumed    []driver.Amount
	Tolerations []string    // of taints, as KEY=VALUE:EFFECT; a part that matches anything is left out
	Conditions  []Condition // sorted by type, each once
	Network     *Network    // nil: unknown
}

// Condition is one of the conditions that a driver gives of an allocated device (KEP-4817).
type Condition struct {
	Type   string
	Status string // True, False or Unknown
}

// Network is what a network driver says of the interface that it gave to the pod.
type Network struct {
	Interface       string // its name in the pod
	IPs             []string
	HardwareAddress string
}

// Addresses returns the IPs; "" alone where there is none.
func (n *Network) Addresses() []string {
	if len(n.IPs) == 0 {
		return []string{""}
	}
	return n.IPs
}

// PodFacts is what one object of a pod says.
type PodFacts struct {
	Pod     Pod
	UID     string
	Static  bool      // a static pod: its UID, the kubelet's, may be that of one before it
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
	// Finished is when the last container of a pod whose status is final ended, by the node's clock,
	// in whole seconds; zero: unknown.
	Finished time.Time
	// Running is the number of its containers that run, init containers included.
	Running int
	// Started reports that a container of the pod has been started, so that its claims were
	// prepared.
	Started bool
	Meta    *PodMeta
	// Claims are the names of ResourceClaims by the pod's own names for them.
	Claims []PodClaim
	// Containers are those that use claims, init containers included.
	Containers []PodContainer
	// Extended reports that a container requests extended resources, which may be backed by a claim
	// (KEP-5004): ExtendedClaim, of which the containers are given ExtendedUses.
	Extended      bool
	ExtendedClaim string // empty: none, or unknown
	ExtendedUses  []PodContainer
	// Health is what the pod's status says of its devices (KEP-4680).
	Health []DeviceHealth
}

// PodMeta has the exported data of a pod in addition to its name.
type PodMeta struct {
	OwnerKind, OwnerName string // of the controller; empty: none
	// WorkloadKind and WorkloadName say what the pod is a part of, such as a JobSet, and Queue in
	// which queue that waited; empty: unknown, or none.
	WorkloadKind, WorkloadName, Queue string

	Labels []string // the chosen labels and annotations: names, as they are shown, and values in turns
}

// PodClaim is a claim as a pod refers to it.
type PodClaim struct {
	Name  string // the pod's own
	Claim string // the ResourceClaim's; empty: made from a template, and unknown
}

// PodContainer is a container and the requests of claims that it is given.
type PodContainer struct {
	Name string
	Uses []ClaimUse
	// Listed reports that PodResources lists the container: it is not a plain init container.
	Listed bool
}

// ClaimUse is a claim, or one request of it, that a container is given.
type ClaimUse struct {
	Name    string // the pod's own name; empty for the claim of extended resources
	Request string // empty: all of the claim's requests
}

// Complete adds the facts of the claim to one allocation. A device that the claim does not list
// keeps the kubelet's data.
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

// WithUIDs returns the holders with the UIDs for which the claim is reserved, unless they are known
// otherwise, or over reports that the pod of that UID holds nothing any more. The input is not
// changed.
func (c *ClaimFacts) WithUIDs(holders []Holder, over func(uid string) bool) []Holder {
	shared := true
	for i := range holders {
		if holders[i].UID != "" {
			continue
		}
		uid := c.ReservedUID(holders[i].Name)
		if uid == "" || over(uid) {
			continue
		}
		if shared {
			holders, shared = slices.Clone(holders), false
		}
		holders[i].UID = uid
	}
	return holders
}

// ReservedUID returns the UID of the pod of that name for which the claim is reserved, "" where
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

// Covers reports whether the claim lists the device or share of the allocation, as far as claims of
// its version do.
func (c *ClaimFacts) Covers(a *Allocation) bool {
	if a.Classic() {
		return c.Classic != nil
	}
	return slices.ContainsFunc(c.Results,
		func(r ClaimResult) bool { return r.Device == a.Device && r.ShareID == a.ShareID })
}

// ReservedFor reports whether the claim is reserved for the pod: a deleted one is for none.
func (c *ClaimFacts) ReservedFor(uid string) bool {
	_, reserved := c.Reserved[uid]
	return !c.Deleted && (reserved || c.ReservedOther)
}

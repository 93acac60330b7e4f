package podresources

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Facts are what objects of the API say of claims and pods, which PodResources does not pass on.
type Facts struct {
	Claims map[Claim]ClaimFacts
	Pods   map[Pod]PodFacts
}

// ClaimFacts is what a ResourceClaim says.
type ClaimFacts struct {
	UID         string
	AllocatedAt time.Time // status.allocation.allocationTimestamp; zero: unknown
	// PodClaimName is what the pod calls the claim that was made for it from a template.
	PodClaimName string
	Labels       []string // the chosen ones: names and values in turns
	// Reserved are the UIDs of the pods for which the claim is reserved (status.reservedFor), by their names.
	Reserved map[string]string
	Results  []ClaimResult
	Classic  *Classic // nil: it is not of classic DRA
}

// ClaimResult is one of status.allocation.devices.results, with what status.devices says of the same device.
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

// PodFacts is what a pod object says.
type PodFacts struct {
	UID string
	// Ended pods (Succeeded, Failed, or gone) hold nothing, whatever is still listed.
	Ended bool
	// Gone pods are no more, and remembered until the kubelet lists them no more.
	Gone bool
	// Running is the number of its containers that run.
	Running int
	Meta    *PodMeta
	// Claims are the names of ResourceClaims by the pod's own names for them.
	Claims []PodClaim
	// Containers are those that use claims, the restartable init containers among them.
	Containers []PodContainer
	// Health is what the pod's status says of its devices (KEP-4680).
	Health []DeviceHealth
}

// PodMeta is what is shown of a pod beside its name.
type PodMeta struct {
	OwnerKind, OwnerName string   // of the controller; empty: none
	Labels               []string // the chosen labels and annotations: names, as they are shown, and values in turns
}

// PodClaim is a claim as a pod refers to it.
type PodClaim struct {
	Name  string // the pod's own
	Claim string // the ResourceClaim's; empty: made from a template, and not told
}

// PodContainer is a container and the requests of claims that it is given.
type PodContainer struct {
	Name string
	Uses []ClaimUse
}

// ClaimUse is a claim, or one request of it, that a container is given.
type ClaimUse struct {
	Claim   string // the ResourceClaim's name, where Name is empty
	Name    string // the pod's own name
	Request string // empty: all of the claim's requests
}

// Apply returns the allocations completed by what is known of their claims and pods; the input is not changed. Where
// nothing is known, all stays as the kubelet said:
//
//   - Pods that have ended hold nothing.
//   - A container that is given one request of a claim holds that request's devices alone: the kubelet lists it with
//     all of the claim. A device that no container of a pod is given stays with the pod, in no container.
//   - UIDs, those of pods too where the claim is what tells them, requests, tolerations, device classes, admin access, consumed capacity and what the driver says of the device are added, and
//     what pods say of its health.
func (f Facts) Apply(allocations []Allocation) []Allocation {
	if len(f.Claims) == 0 && len(f.Pods) == 0 {
		return allocations
	}
	out := make([]Allocation, 0, len(allocations))
	health, classic := f.health(allocations), classicDevices(allocations)
	for _, a := range allocations {
		claim := f.Claims[a.Claim]
		a.Health = health[a.Device]
		claim.completeClassic(&a, classic[a.Claim] == 1)
		claim.complete(&a)
		a.Holders = claim.withUIDs(f.holders(&a, claim.PodClaimName))
		if len(a.Holders) > 0 {
			out = append(out, a)
		}
	}
	return out
}

// complete adds what the claim says of one allocation. A device that it does not list stays as the kubelet said.
func (c *ClaimFacts) complete(a *Allocation) {
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

// withUIDs returns the holders with the UIDs for which the claim is reserved, where nothing nearer told them. The input is
// not changed.
func (c *ClaimFacts) withUIDs(holders []Holder) []Holder {
	shared := true
	for i := range holders {
		uid := c.Reserved[holders[i].Name]
		if uid == "" || holders[i].UID != "" {
			continue
		}
		if shared {
			holders, shared = slices.Clone(holders), false
		}
		holders[i].UID = uid
	}
	return holders
}

// Covers tells whether the claim lists the device or share of the allocation, as far as claims of its version do.
func (c *ClaimFacts) Covers(a *Allocation) bool {
	if a.Classic() {
		return c.Classic != nil
	}
	return slices.ContainsFunc(c.Results, func(r ClaimResult) bool { return r.Device == a.Device && r.ShareID == a.ShareID })
}

// holders returns who holds the allocation, given what the pods say.
func (f Facts) holders(a *Allocation, podClaimName string) []Holder {
	if len(f.Pods) == 0 {
		return a.Holders
	}
	out := make([]Holder, 0, len(a.Holders))
	for i := 0; i < len(a.Holders); {
		n := 1
		for i+n < len(a.Holders) && a.Holders[i+n].Pod == a.Holders[i].Pod {
			n++
		}
		pod, known := f.Pods[a.Holders[i].Pod]
		if known {
			out = pod.appendHolders(out, a, a.Holders[i:i+n], podClaimName)
		} else {
			out = append(out, a.Holders[i:i+n]...)
		}
		i += n
	}
	return out
}

// appendHolders appends the containers of this pod that hold the allocation, of those that the kubelet lists.
func (p *PodFacts) appendHolders(out []Holder, a *Allocation, listed []Holder, podClaimName string) []Holder {
	if p.Ended && (listed[0].UID == "" || listed[0].UID == p.UID) {
		return out
	}
	name := p.claimName(a.Claim.Name, podClaimName)
	before := len(out)
	for _, h := range listed {
		if p.given(h.Container, a, name) {
			out = append(out, p.describe(h, name))
		}
	}
	if len(out) == before {
		h := listed[0]
		h.Container = ""
		out = append(out, p.describe(h, name))
	}
	return out
}

func (p *PodFacts) describe(h Holder, claimName string) Holder {
	if p.UID != "" {
		h.UID = p.UID
	}
	h.ClaimName, h.Meta = claimName, p.Meta
	return h
}

// claimName returns the pod's own name for a claim, "" where it is unknown or, for an extended resource, there is none.
// The kubelet's Pods API does not tell the names of claims that were made from templates; the claim itself does,
// and a single claim can be no other.
func (p *PodFacts) claimName(claim, told string) string {
	if claim == "" {
		return "" // a device plugin's device
	}
	unnamed, name := 0, ""
	for _, c := range p.Claims {
		switch {
		case c.Claim == claim:
			return c.Name
		case c.Claim == "" && c.Name == told:
			return told
		case c.Claim == "":
			unnamed++
			name = c.Name
		}
	}
	if unnamed == 1 && !p.uses(claim) {
		return name
	}
	return ""
}

// uses tells whether a container refers to the claim by the claim's own name, as it is with extended resources.
func (p *PodFacts) uses(claim string) bool {
	return slices.ContainsFunc(p.Containers, func(c PodContainer) bool {
		return slices.ContainsFunc(c.Uses, func(u ClaimUse) bool { return u.Claim == claim })
	})
}

// given tells whether a container is given the device of the allocation, as far as it is known which request the device
// was allocated for, and which the container names.
func (p *PodFacts) given(container string, a *Allocation, claimName string) bool {
	if a.Request == "" {
		return true
	}
	request, _, _ := strings.Cut(a.Request, "/")
	named := false
	for _, c := range p.Containers {
		if c.Name != container {
			continue
		}
		for _, u := range c.Uses {
			if u.Claim != a.Claim.Name && (u.Name == "" || u.Name != claimName) {
				continue
			}
			if u.Request == "" || u.Request == request {
				return true
			}
			named = true
		}
	}
	return !named
}

// PodSet is a set of pods that one goroutine keeps up to date while others read it. The zero value is an empty set.
type PodSet struct {
	mu     sync.Mutex
	pods   map[Pod]PodFacts
	shared bool // pods was handed out and must not be changed
}

// Replace makes the set that of these pods, and of those that are gone and not forgotten.
func (s *PodSet) Replace(pods map[Pod]PodFacts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pod := range s.pods {
		if _, there := pods[pod]; !there && s.pods[pod].Gone {
			pods[pod] = s.pods[pod]
		}
	}
	s.pods, s.shared = pods, false
}

// Set adds a pod, or replaces what was known of it.
func (s *PodSet) Set(pod Pod, facts PodFacts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own()
	s.pods[pod] = facts
}

// Remove notes that a pod is gone, unless another one has taken its name. It stays in the set, as one that has ended, until [PodSet.Forget]:
// what the kubelet said before may still list it.
func (s *PodSet) Remove(pod Pod, uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.pods[pod]
	if !ok || known.UID != uid {
		return
	}
	s.own()
	if len(s.pods) > maxPods {
		delete(s.pods, pod)
		return
	}
	known.Ended, known.Gone = true, true
	s.pods[pod] = known
}

// Forget takes the pods that are gone out of the set, but for those that the kubelet lists.
func (s *PodSet) Forget(listed []Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := map[Pod]struct{}{}
	for pod := range s.pods {
		if s.pods[pod].Gone {
			gone[pod] = struct{}{}
		}
	}
	if len(gone) == 0 {
		return
	}
	for i := range listed {
		for _, h := range listed[i].Holders {
			delete(gone, h.Pod)
		}
	}
	s.own()
	for pod := range gone {
		delete(s.pods, pod)
	}
}

// own makes the map one that may be changed.
func (s *PodSet) own() {
	switch {
	case s.pods == nil:
		s.pods = map[Pod]PodFacts{}
	case s.shared:
		s.pods = maps.Clone(s.pods)
	}
	s.shared = false
}

// All returns the pods; the map will not change, and is not to be changed.
func (s *PodSet) All() map[Pod]PodFacts {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = true
	return s.pods
}

// Get returns a pod.
func (s *PodSet) Get(pod Pod) (PodFacts, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	facts, ok := s.pods[pod]
	return facts, ok
}

// UID returns the UID of a pod, "" where it is unknown.
func (s *PodSet) UID(pod Pod) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[pod].UID
}

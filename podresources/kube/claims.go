// Package kube is the API server's side of who holds which device: what ResourceClaims say of their allocations and
// the kubelet does not pass on.
package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The reasons for which rows are rejected. A reason names the thing that was lost.
const (
	ReasonMalformedObject    = "malformed_object"
	ReasonMalformedClaim     = "malformed_claim"
	ReasonMalformedRequest   = "malformed_request" // the device class of its devices stays unknown
	ReasonMalformedResult    = "malformed_result"
	ReasonMalformedStatus    = "malformed_status" // of a device in status.devices
	ReasonMalformedCapacity  = "malformed_capacity"
	ReasonMalformedTimestamp = "malformed_timestamp"
	ReasonMalformedReserved  = "malformed_reservation" // a pod of status.reservedFor
	ReasonTooManyResults     = "too_many_results"      // those above the bound are lost
	ReasonTooManyClaims      = "too_many_claims"       // those above the bound are lost
	ReasonDuplicateClaim     = "duplicate_claim"       // the first one counts
)

const (
	// maxClaims bounds the claims of a file: a cluster's, not a node's.
	maxClaims = 131072
	// maxResults bounds the devices and the requests of a claim. The API allows 32 of each.
	maxResults = 512
	// maxReserved bounds the pods of a claim. The API allows 256.
	maxReserved = 4096
	// maxTolerations bounds the tolerations of a device. The API allows 16.
	maxTolerations = 64
	// maxConsumed bounds the consumed capacities of a device.
	maxConsumed = 256
)

// ParseClaims returns what the ResourceClaims of a file say, the file being what `kubectl get resourceclaims -A -o yaml`
// (or json) prints: a List, single objects, several documents, of resource.k8s.io/v1, v1beta2, v1beta1, v1alpha3 or v1alpha2. Objects of
// other kinds are passed over. A claim that has not been allocated has no results.
//
// What is wrong with a claim, or with a part of it, costs just that and is counted by reason. A file that can not be
// read at all, or a claim of an unknown version, is an error that names the document.
func ParseClaims(data []byte) (map[podresources.Claim]podresources.ClaimFacts, []podresources.Rejection, error) {
	objects, malformed, err := manifest.Objects(data, "ResourceClaim")
	if err != nil {
		return nil, nil, fmt.Errorf("parse resource claims: %w", err)
	}
	facts, rejected := map[podresources.Claim]podresources.ClaimFacts{}, tally{}
	rejected.add(ReasonMalformedObject, malformed)
	for _, o := range objects {
		claim, f, ok := parseClaim(o.Raw, nil, rejected)
		if !ok {
			rejected.add(ReasonMalformedClaim, 1)
			continue
		}
		if _, known := facts[claim]; known {
			rejected.add(ReasonDuplicateClaim, 1)
			continue
		}
		if len(facts) >= maxClaims {
			rejected.add(ReasonTooManyClaims, 1)
			continue
		}
		facts[claim] = f
	}
	return facts, rejected.rejections(), nil
}

// claimObject is the part of a ResourceClaim that is used, in the JSON form that v1, v1beta2, v1beta1 and v1alpha3 share, and what
// v1alpha2 has in its place.
type claimObject struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		ResourceClassName string `json:"resourceClassName"` // v1alpha2
		Devices           struct {
			Requests []json.RawMessage `json:"requests"`
		} `json:"devices"`
	} `json:"spec"`
	Status struct {
		DriverName string `json:"driverName"` // v1alpha2
		Allocation *struct {
			ResourceHandles     []json.RawMessage `json:"resourceHandles"` // v1alpha2
			AllocationTimestamp json.RawMessage   `json:"allocationTimestamp"`
			Devices             struct {
				Results []json.RawMessage `json:"results"`
			} `json:"devices"`
		} `json:"allocation"`
		Devices     []json.RawMessage `json:"devices"`
		ReservedFor []json.RawMessage `json:"reservedFor"`
	} `json:"status"`
}

// podClaimAnnotation is what the controller that makes claims from templates writes to them: the pod's own name for
// the claim (k8s.io/dynamic-resource-allocation resourceclaim).
const podClaimAnnotation = "resource.kubernetes.io/pod-claim-name"

// request is one of spec.devices.requests: v1 and v1beta2 nest the class in exactly, v1beta1 and v1alpha3 do not, and all have
// firstAvailable (KEP-4816).
type request struct {
	Name            string `json:"name"`
	DeviceClassName string `json:"deviceClassName"`
	Exactly         struct {
		DeviceClassName string `json:"deviceClassName"`
	} `json:"exactly"`
	FirstAvailable []struct {
		Name            string `json:"name"`
		DeviceClassName string `json:"deviceClassName"`
	} `json:"firstAvailable"`
}

// result is one of status.allocation.devices.results.
type result struct {
	Request          string                     `json:"request"`
	Driver           string                     `json:"driver"`
	Pool             string                     `json:"pool"`
	Device           string                     `json:"device"`
	ShareID          string                     `json:"shareID"`
	AdminAccess      bool                       `json:"adminAccess"`
	ConsumedCapacity map[string]json.RawMessage `json:"consumedCapacity"`
	Tolerations      []toleration               `json:"tolerations"`
}

// parseClaim returns one claim's facts, with the values of those labels; false: it is malformed as a whole.
func parseClaim(raw json.RawMessage, labels []podresources.Chosen, rejected tally) (podresources.Claim, podresources.ClaimFacts, bool) {
	var object claimObject
	if json.Unmarshal(raw, &object) != nil {
		return podresources.Claim{}, podresources.ClaimFacts{}, false
	}
	meta := object.Metadata
	claim := podresources.Claim{Namespace: meta.Namespace, Name: meta.Name}
	if !manifest.ValidName(meta.Name) || !manifest.ValidName(meta.Namespace) || !optional(meta.UID) {
		return claim, podresources.ClaimFacts{}, false
	}
	facts := podresources.ClaimFacts{
		UID: meta.UID, Labels: podresources.Choose(meta.Labels, labels), Reserved: parseReserved(object.Status.ReservedFor, rejected),
	}
	if name := meta.Annotations[podClaimAnnotation]; manifest.ValidName(name) {
		facts.PodClaimName = name
	}
	facts.Classic = object.classic()
	if allocation := object.Status.Allocation; allocation != nil && facts.Classic != nil {
		facts.Results = parseHandles(allocation.ResourceHandles, facts.Classic, rejected)
	} else if allocation != nil {
		facts.AllocatedAt = parseTime(allocation.AllocationTimestamp, rejected)
		classes := deviceClasses(object.Spec.Devices.Requests, rejected)
		facts.Results = parseResults(allocation.Devices.Results, classes, rejected)
		addStatuses(facts.Results, object.Status.Devices, rejected)
	}
	return claim, facts, true
}

// parseTime returns a timestamp; zero where it is absent or, which is counted, malformed.
func parseTime(raw json.RawMessage, rejected tally) time.Time {
	var t *time.Time
	if len(raw) == 0 {
		return time.Time{}
	}
	if json.Unmarshal(raw, &t) != nil {
		rejected.add(ReasonMalformedTimestamp, 1)
		return time.Time{}
	}
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// deviceClasses returns the device class by request, or by request/subrequest, which is how results name them.
func deviceClasses(raw []json.RawMessage, rejected tally) map[string]string {
	classes := map[string]string{}
	for _, raw := range raw[:min(len(raw), maxResults)] {
		var r request
		if json.Unmarshal(raw, &r) != nil || len(r.FirstAvailable) > maxResults {
			rejected.add(ReasonMalformedRequest, 1)
			continue
		}
		classes[r.Name] = cmp.Or(r.Exactly.DeviceClassName, r.DeviceClassName)
		for _, sub := range r.FirstAvailable {
			classes[r.Name+"/"+sub.Name] = sub.DeviceClassName
		}
	}
	return classes
}

func parseResults(raw []json.RawMessage, classes map[string]string, rejected tally) []podresources.ClaimResult {
	if surplus := len(raw) - maxResults; surplus > 0 {
		rejected.add(ReasonTooManyResults, surplus)
		raw = raw[:maxResults]
	}
	var out []podresources.ClaimResult
	for _, raw := range raw {
		var r result
		if json.Unmarshal(raw, &r) != nil || !r.valid() {
			rejected.add(ReasonMalformedResult, 1)
			continue
		}
		consumed, malformed := manifest.Amounts(r.Driver, r.ConsumedCapacity)
		rejected.add(ReasonMalformedCapacity, malformed)
		class := classes[r.Request]
		if class != "" && !manifest.ValidName(class) {
			rejected.add(ReasonMalformedRequest, 1)
			class = ""
		}
		out = append(out, podresources.ClaimResult{
			Device:      driver.ID{Driver: r.Driver, Pool: r.Pool, Device: r.Device},
			ShareID:     r.ShareID,
			Request:     r.Request,
			DeviceClass: class,
			Admin:       r.AdminAccess,
			Consumed:    consumed,
			Tolerations: tolerations(r.Tolerations),
		})
	}
	return out
}

func (r result) valid() bool {
	return manifest.ValidName(r.Driver) && manifest.ValidName(r.Pool) && manifest.ValidName(r.Device) &&
		optional(r.ShareID) && optional(r.Request) && len(r.ConsumedCapacity) <= maxConsumed && len(r.Tolerations) <= maxTolerations &&
		!slices.ContainsFunc(r.Tolerations, func(t toleration) bool { return !t.valid() })
}

// optional tells whether a name is valid or absent.
func optional(name string) bool { return name == "" || manifest.ValidName(name) }

// tally counts rejections by reason.
type tally map[string]int

func (t tally) add(reason string, n int) {
	if n > 0 {
		t[reason] += n
	}
}

// rejections returns the counts, sorted by reason.
func (t tally) rejections() []podresources.Rejection {
	var out []podresources.Rejection
	for reason, n := range t {
		out = append(out, podresources.Rejection{Reason: reason, Count: n})
	}
	slices.SortFunc(out, func(a, b podresources.Rejection) int { return strings.Compare(a.Reason, b.Reason) })
	return out
}

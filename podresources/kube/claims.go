// Package kube gets from the API server what the kubelet does not report about allocated devices:
// ResourceSlices, ResourceClaims, pods and DeviceTaintRules.
//
// Bounds (max…) are for what the API server and users send.
package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

const (
	// maxClaims bounds the claims of a file, which has those of the whole cluster.
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

// ParseClaims returns the facts of the ResourceClaims in a file with the output of `kubectl get
// resourceclaims -A -o yaml` (or json): a List, single objects or several documents, of
// resource.k8s.io/v1, v1beta2, v1beta1 or v1alpha3. Objects of other kinds are ignored. A
// claim that has not been allocated has no results.
//
// A malformed claim, or a malformed element of one, is omitted and counted by reason. A file that
// cannot be parsed, or a claim of an unknown version, is an error that names the document.
func ParseClaims(data []byte) (map[podresources.Claim]podresources.ClaimFacts, driver.Rejections, error) {
	objects, malformed, err := manifest.Objects(data, "ResourceClaim")
	if err != nil {
		return nil, nil, fmt.Errorf("parse resource claims: %w", err)
	}
	facts, rejected := map[podresources.Claim]podresources.ClaimFacts{}, driver.Rejections{}
	rejected.Add(driver.ReasonMalformedObject, malformed)
	for _, o := range objects {
		claim, f, ok := parseClaim(o.Raw, nil, rejected)
		if !ok {
			rejected.Add(driver.ReasonMalformedClaim, 1)
			continue
		}
		if _, known := facts[claim]; known {
			rejected.Add(driver.ReasonDuplicateClaim, 1)
			continue
		}
		if len(facts) >= maxClaims {
			rejected.Add(driver.ReasonTooManyClaims, 1)
			continue
		}
		facts[claim] = f
	}
	return facts, rejected, nil
}

// claimObject has the used fields of a ResourceClaim, in the JSON form that v1, v1beta2, v1beta1
// and v1alpha3 share.
type claimObject struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Created     json.RawMessage   `json:"creationTimestamp"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Devices struct {
			Requests []json.RawMessage `json:"requests"`
		} `json:"devices"`
	} `json:"spec"`
	Status struct {
		Allocation *struct {
			AllocationTimestamp json.RawMessage `json:"allocationTimestamp"`
			Devices             struct {
				Results []json.RawMessage `json:"results"`
			} `json:"devices"`
		} `json:"allocation"`
		Devices     []json.RawMessage `json:"devices"`
		ReservedFor []json.RawMessage `json:"reservedFor"`
	} `json:"status"`
}

// podClaimAnnotation is set by the controller that creates claims from templates: the pod's name of
// the claim (k8s.io/dynamic-resource-allocation resourceclaim).
const podClaimAnnotation = "resource.kubernetes.io/pod-claim-name"

// extendedClaimAnnotation is set by the scheduler on claims that it creates for extended resources
// (k8s.io/api/resource/v1 ExtendedResourceClaimAnnotation).
const extendedClaimAnnotation = "resource.kubernetes.io/extended-resource-claim"

// request is one of spec.devices.requests: v1 and v1beta2 nest the class in exactly, v1beta1 and
// v1alpha3 do not, and all have firstAvailable (KEP-4816).
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

// parseClaim returns one claim's facts, with the values of the chosen labels. It returns false if
// the whole claim is malformed.
func parseClaim(raw json.RawMessage, labels []podresources.Chosen,
	rejected driver.Rejections,
) (podresources.Claim, podresources.ClaimFacts, bool) {
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
		UID: meta.UID, Created: parseTime(meta.Created, rejected), Labels: podresources.Choose(meta.Labels, labels),
	}
	facts.Reserved, facts.ReservedOther = parseReserved(object.Status.ReservedFor, rejected)
	if name := meta.Annotations[podClaimAnnotation]; manifest.ValidName(name) {
		facts.PodClaimName = name
	}
	facts.Extended = meta.Annotations[extendedClaimAnnotation] == "true"
	if allocation := object.Status.Allocation; allocation != nil {
		facts.AllocatedAt = parseTime(allocation.AllocationTimestamp, rejected)
		classes := deviceClasses(object.Spec.Devices.Requests, rejected)
		facts.Results = parseResults(allocation.Devices.Results, classes, rejected)
		addStatuses(facts.Results, object.Status.Devices, rejected)
	}
	return claim, facts, true
}

// parseTime returns a timestamp, or zero if it is absent or malformed. Malformed ones are counted.
func parseTime(raw json.RawMessage, rejected driver.Rejections) time.Time {
	var t *time.Time
	if len(raw) == 0 {
		return time.Time{}
	}
	if json.Unmarshal(raw, &t) != nil {
		rejected.Add(driver.ReasonMalformedTimestamp, 1)
		return time.Time{}
	}
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// deviceClasses returns the device class by request, or by request/subrequest, as results refer to
// them.
func deviceClasses(raw []json.RawMessage, rejected driver.Rejections) map[string]string {
	classes := map[string]string{}
	for _, raw := range raw[:min(len(raw), maxResults)] {
		var r request
		if json.Unmarshal(raw, &r) != nil || len(r.FirstAvailable) > maxResults {
			rejected.Add(driver.ReasonMalformedRequest, 1)
			continue
		}
		classes[r.Name] = cmp.Or(r.Exactly.DeviceClassName, r.DeviceClassName)
		for _, sub := range r.FirstAvailable {
			classes[r.Name+"/"+sub.Name] = sub.DeviceClassName
		}
	}
	return classes
}

func parseResults(raw []json.RawMessage, classes map[string]string,
	rejected driver.Rejections,
) []podresources.ClaimResult {
	if surplus := len(raw) - maxResults; surplus > 0 {
		rejected.Add(driver.ReasonTooManyResults, surplus)
		raw = raw[:maxResults]
	}
	var out []podresources.ClaimResult
	for _, raw := range raw {
		var r result
		if json.Unmarshal(raw, &r) != nil || !r.valid() {
			rejected.Add(driver.ReasonMalformedResult, 1)
			continue
		}
		consumed, malformed := manifest.Amounts(r.Driver, r.ConsumedCapacity)
		rejected.Add(driver.ReasonMalformedCapacity, malformed)
		class := classes[r.Request]
		if class != "" && !manifest.ValidName(class) {
			rejected.Add(driver.ReasonMalformedRequest, 1)
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
		optional(r.ShareID) && optional(r.Request) && len(r.ConsumedCapacity) <= maxConsumed &&
		len(r.Tolerations) <= maxTolerations &&
		!slices.ContainsFunc(r.Tolerations, func(t toleration) bool { return !t.valid() })
}

// optional reports whether a name is valid or absent.
func optional(name string) bool { return name == "" || manifest.ValidName(name) }

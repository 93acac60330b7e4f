// Package kube gets from the API server what the kubelet does not report about allocated devices:
// ResourceSlices, ResourceClaims, pods and DeviceTaintRules.
//
// Bounds (max…) are for what the API server and users send.
package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// ParseClaims returns the facts of the ResourceClaims in a file with the output of `kubectl get
// resourceclaims -A -o yaml` (or json): a List, single objects or several documents, of
// resource.k8s.io/v1, v1beta2, v1beta1 or v1alpha3. Objects of other kinds are ignored. A
// claim that has not been allocated has no results.
//
// A malformed claim is omitted, and so is a malformed amount of one; both are counted. A file that
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
		facts[claim] = f
	}
	return facts, rejected, nil
}

// claimObject is a ResourceClaim in the JSON form that v1, v1beta2, v1beta1 and v1alpha3 share.
type claimObject struct {
	metav1.PartialObjectMetadata
	Spec struct {
		Devices struct {
			Requests []request `json:"requests"`
		} `json:"devices"`
	} `json:"spec"`
	Status resourcev1.ResourceClaimStatus `json:"status"`
}

// podClaimAnnotation is set by the controller that creates claims from templates: the pod's name of
// the claim (k8s.io/dynamic-resource-allocation resourceclaim).
const podClaimAnnotation = "resource.kubernetes.io/pod-claim-name"

// request is one of spec.devices.requests: v1 and v1beta2 nest the class in exactly, v1beta1 and
// v1alpha3 do not.
type request struct {
	resourcev1.DeviceRequest
	DeviceClassName string `json:"deviceClassName"`
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
	claim := podresources.Claim{Namespace: object.Namespace, Name: object.Name}
	if !manifest.ValidName(claim.Name) || !manifest.ValidName(claim.Namespace) {
		return claim, podresources.ClaimFacts{}, false
	}
	facts := podresources.ClaimFacts{
		UID: string(object.UID), Created: utc(&object.CreationTimestamp), Labels: podresources.Choose(object.Labels, labels),
		Extended: object.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true",
	}
	facts.Reserved, facts.ReservedOther = reservations(object.Status.ReservedFor)
	if name := object.Annotations[podClaimAnnotation]; manifest.ValidName(name) {
		facts.PodClaimName = name
	}
	if allocation := object.Status.Allocation; allocation != nil {
		facts.AllocatedAt = utc(allocation.AllocationTimestamp)
		facts.Results = results(allocation.Devices.Results, deviceClasses(object.Spec.Devices.Requests), rejected)
		addStatuses(facts.Results, object.Status.Devices)
	}
	return claim, facts, true
}

// utc returns a time in UTC, zero for zero.
func utc(t *metav1.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}

// deviceClasses returns the device class by request, or by request/subrequest, as results refer to
// them.
func deviceClasses(requests []request) map[string]string {
	classes := map[string]string{}
	for _, r := range requests {
		classes[r.Name] = cmp.Or(ptr.Deref(r.Exactly, resourcev1.ExactDeviceRequest{}).DeviceClassName, r.DeviceClassName)
		for _, sub := range r.FirstAvailable {
			classes[r.Name+"/"+sub.Name] = sub.DeviceClassName
		}
	}
	return classes
}

// results returns the allocated devices. Amounts that are none are omitted and counted.
func results(
	of []resourcev1.DeviceRequestAllocationResult, classes map[string]string, rejected driver.Rejections,
) []podresources.ClaimResult {
	var out []podresources.ClaimResult
	for i := range of {
		r := &of[i]
		consumed, bad := manifest.Amounts(r.Driver, r.ConsumedCapacity,
			func(q resource.Quantity) resource.Quantity { return q })
		rejected.Add(driver.ReasonMalformedCapacity, bad)
		result := podresources.ClaimResult{
			Device:      driver.ID{Driver: r.Driver, Pool: r.Pool, Device: r.Device},
			ShareID:     string(ptr.Deref(r.ShareID, "")),
			Request:     r.Request,
			DeviceClass: classes[r.Request],
			Admin:       ptr.Deref(r.AdminAccess, false),
			Consumed:    consumed,
		}
		for _, t := range r.Tolerations {
			result.Tolerations = append(result.Tolerations, toleration(t))
		}
		out = append(out, result)
	}
	return out
}

// reservations returns the names of the pods for which a claim is reserved, by UID, nil for none;
// other reports whether something other than pods also uses the claim.
func reservations(of []resourcev1.ResourceClaimConsumerReference) (pods map[string]string, other bool) {
	for _, c := range of {
		switch {
		case c.APIGroup != "" || c.Resource != "pods":
			other = true
		case c.UID != "":
			if pods == nil {
				pods = map[string]string{}
			}
			pods[string(c.UID)] = c.Name
		}
	}
	return pods, other
}

// toleration returns a toleration of a result (KEP-5055) in kubectl's format of taints. An omitted
// field matches anything.
func toleration(t resourcev1.DeviceToleration) string {
	s := t.Key
	if t.Value != "" {
		s += "=" + t.Value
	}
	if t.Effect != "" {
		s += ":" + string(t.Effect)
	}
	return s
}

// addStatuses adds the statuses that drivers report (KEP-4817) to the results. A status of a device
// that is not allocated is ignored. Conditions are sorted by type; of several with the same type
// the first counts.
func addStatuses(results []podresources.ClaimResult, statuses []resourcev1.AllocatedDeviceStatus) {
	for i := range statuses {
		s := &statuses[i]
		id := driver.ID{Driver: s.Driver, Pool: s.Pool, Device: s.Device}
		at := slices.IndexFunc(results, func(r podresources.ClaimResult) bool {
			return r.Device == id && r.ShareID == ptr.Deref(s.ShareID, "")
		})
		if at < 0 {
			continue
		}
		var conditions []podresources.Condition
		for _, c := range s.Conditions {
			conditions = append(conditions, podresources.Condition{Type: c.Type, Status: string(c.Status)})
		}
		slices.SortStableFunc(conditions, func(a, b podresources.Condition) int { return strings.Compare(a.Type, b.Type) })
		results[at].Conditions = slices.CompactFunc(conditions,
			func(a, b podresources.Condition) bool { return a.Type == b.Type })
		if n := s.NetworkData; n != nil {
			slices.Sort(n.IPs)
			results[at].Network = &podresources.Network{
				Interface: n.InterfaceName, IPs: slices.Compact(n.IPs), HardwareAddress: n.HardwareAddress,
			}
		}
	}
}

// podFeed gives a sink the pods of lists and watches.
type podFeed struct{ podresources.PodReader }

const podsPath = "/api/v1/pods"

// podPath returns the path of a pod.
func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
}

func podSelector(node string) string { return "spec.nodeName=" + node }

func (p podFeed) fill() (add func(json.RawMessage), done func(asked time.Time)) {
	reader := p.PodReader // with a list of its own
	return func(raw json.RawMessage) { reader.List(decodePod(raw)) }, reader.Listed
}

func (p podFeed) update(raw json.RawMessage, gone bool) {
	pod, err := decodePod(raw)
	p.Change(pod, err, gone)
}

func decodePod(raw json.RawMessage) (*corev1.Pod, error) {
	var pod corev1.Pod
	err := json.Unmarshal(raw, &pod)
	return &pod, err
}

// SourceNominated is the source of the pods that wait to be bound to the node.
const SourceNominated = "nominated"

// nominatedSelector selects the pods for which the scheduler has chosen the node but which it has
// not bound. The scheduler sets status.nominatedNodeName before it waits for the binding conditions
// of a claim's devices (KEP-5278, on since Kubernetes 1.35). The API server has an index of
// spec.nodeName, so that it examines only pods without a node.
func nominatedSelector(node string) string { return "spec.nodeName=,status.nominatedNodeName=" + node }

// nominatedPods gives a Book the pods that wait to be bound to the node.
type nominatedPods struct{ book Book }

var _ podresources.PodSink = nominatedPods{}

// PodsListed implements [podresources.PodSink].
func (n nominatedPods) PodsListed(pods []podresources.PodFacts, _ bool, asked time.Time) {
	for i := range pods {
		pods[i].Nominated = true
	}
	n.book.NominatedListed(pods, asked)
}

// PodChanged implements [podresources.PodSink].
func (n nominatedPods) PodChanged(pod podresources.PodFacts, at time.Time) {
	pod.Nominated = true
	n.book.NominatedChanged(pod, at)
}

// PodDeleted implements [podresources.PodSink].
func (n nominatedPods) PodDeleted(uid string, at time.Time) { n.book.NominatedGone(uid, at) }

// FollowNominated gives the Book the pods that wait to be bound to the node until ctx ends. It uses
// one list and watch, which start when needed first returns true: when a device of the node has
// binding conditions. If the pods may not be listed, none is known.
func (n *Node) FollowNominated(ctx context.Context, needed func() bool) {
	for !needed() {
		if !driver.Pause(ctx, neededAfter) {
			return
		}
	}
	n.followOptional(ctx, SourceNominated,
		func() *feed { return n.podFeed(nominatedPods{n.config.Book}, nominatedSelector(n.config.Name)) },
		func() { n.config.Book.NominatedListed(nil, time.Now()) })
}

package simnode

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// memoryCapacity is the name of the capacity of shared devices.
const memoryCapacity = "memory"

// claim is an allocated ResourceClaim.
type claim struct {
	podresources.Claim
	uid       string
	created   time.Time
	spec      ClaimSpec
	allocated []allocated
	pods      []*pod // that hold it
	item      []byte // the API object, as an item of a list
}

// allocated is a device of a claim, or a share of one.
type allocated struct {
	device  *Device
	request Request
	shareID string
	memory  resource.Quantity // consumed capacity of a shared device
}

// claim returns the claim of a spec. It creates and allocates the claim unless another pod holds it
// already.
func (n *Node) claim(p *pod, spec ClaimSpec) *claim {
	key := podresources.Claim{Namespace: p.Namespace, Name: cmp.Or(spec.Object, p.Name+"-"+spec.Name)}
	c, ok := n.claims[key]
	if !ok {
		c = &claim{Claim: key, uid: n.uid(), created: n.now(), spec: spec}
		for _, request := range spec.Requests {
			n.allocate(c, request)
		}
		n.claims[key] = c
	}
	n.reserve(c, append(c.pods, p))
	return c
}

// allocate allocates the devices of the request. It does not check that they are free.
func (n *Node) allocate(c *claim, request Request) {
	for _, name := range request.Devices {
		a := allocated{device: n.devices[name], request: request}
		if a.device.Shareable && !request.Admin {
			a.memory, a.shareID = resource.MustParse(request.Memory), n.uid()
		}
		c.allocated = append(c.allocated, a)
	}
}

// weight is the claim's weight when several claims share the device.
func (a allocated) weight() float64 {
	switch {
	case a.request.Admin:
		return 0
	case a.device.Shareable:
		return a.memory.AsApproximateFloat64()
	default:
		return 1
	}
}

// cdiDevice returns the name of a device in the claim's CDI spec, in the format of the example
// driver.
func (c *claim) cdiDevice(a allocated) string {
	name := c.uid + "-" + a.device.Name
	if a.shareID != "" {
		name += "-" + a.shareID
	}
	return name
}

// reserve sets the pods that hold the claim.
func (n *Node) reserve(c *claim, pods []*pod) {
	c.pods = pods
	c.item = n.item(c.object())
}

// object returns the ResourceClaim as in the API server.
func (c *claim) object() resourcev1.ResourceClaim {
	allocatedAt := metav1.NewTime(c.created)
	out := resourcev1.ResourceClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Name: c.Name, Namespace: c.Namespace, UID: types.UID(c.uid), CreationTimestamp: allocatedAt,
			Annotations: map[string]string{"resource.kubernetes.io/pod-claim-name": c.spec.Name},
		},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
			AllocationTimestamp: &allocatedAt,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{
					Key: "metadata.name", Operator: corev1.NodeSelectorOpIn,
					Values: []string{Name},
				}},
			}}},
		}},
	}
	for _, request := range c.spec.Requests {
		out.Spec.Devices.Requests = append(out.Spec.Devices.Requests, request.object(c.classOf(request)))
	}
	for _, a := range c.allocated {
		out.Status.Allocation.Devices.Results = append(out.Status.Allocation.Devices.Results, a.object())
		if a.device.Driver == NICDriver {
			out.Status.Devices = append(out.Status.Devices, a.status(allocatedAt))
		}
	}
	for _, p := range c.pods {
		out.Status.ReservedFor = append(out.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: p.Name, UID: types.UID(p.uid),
		})
	}
	return out
}

// classOf returns the device class of a request, which has the name of the devices' driver.
func (c *claim) classOf(request Request) string {
	for _, a := range c.allocated {
		if a.request.Name == request.Name {
			return a.device.Driver
		}
	}
	return ""
}

// status returns the status that dranet reports for an interface that it has moved into a pod
// (KEP-4817).
func (a allocated) status(at metav1.Time) resourcev1.AllocatedDeviceStatus {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(a.device.Name)) // never fails
	mac := net.HardwareAddr(hash.Sum([]byte{0x02, 0}))
	return resourcev1.AllocatedDeviceStatus{
		Driver: a.device.Driver, Pool: Name, Device: a.device.Name,
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: metav1.ConditionTrue, Reason: "NetworkDeviceReady", LastTransitionTime: at},
			{Type: "NetworkReady", Status: metav1.ConditionTrue, Reason: "NetworkReady", LastTransitionTime: at},
		},
		NetworkData: &resourcev1.NetworkDeviceData{
			InterfaceName: a.device.Name, IPs: []string{fmt.Sprintf("192.0.2.%d/24", mac[5])}, HardwareAddress: mac.String(),
		},
	}
}

func (r Request) object(class string) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{
		Name: r.Name, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, AdminAccess: &r.Admin},
	}
}

func (a allocated) object() resourcev1.DeviceRequestAllocationResult {
	out := resourcev1.DeviceRequestAllocationResult{
		Request: a.request.Name, Driver: a.device.Driver, Pool: Name, Device: a.device.Name, AdminAccess: &a.request.Admin,
	}
	if a.shareID != "" {
		out.ShareID = new(types.UID(a.shareID))
		out.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{memoryCapacity: a.memory}
	}
	return out
}

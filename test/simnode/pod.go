package simnode

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/node"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// PodSpec is a pod to be simulated.
type PodSpec struct {
	Namespace, Name string
	Labels          map[string]string
	Owner           string   // the controller as KIND/NAME; empty: none
	PID             int      // of its process; 0: none is visible
	Containers      []string // empty: one with the name main
	Claims          []ClaimSpec
	Plugged         []Request // of devices that a device plugin gives; only Devices, Load and Resident count
}

// ClaimSpec is a claim of a pod.
type ClaimSpec struct {
	Name string // the pod's name of the claim
	// Object is the name of the ResourceClaim. Pods with the same Object share the claim, with the
	// devices that the first of them requested. Empty: it is created for the pod, like one from a
	// template.
	Object     string
	Containers []string // that use it; empty: all
	Requests   []Request
}

// usedBy reports whether a container uses the claim.
func (c ClaimSpec) usedBy(container string) bool {
	return len(c.Containers) == 0 || slices.Contains(c.Containers, container)
}

// Request is a request of a claim, and the load of the pod on its devices.
type Request struct {
	Name    string   // unique within the claim
	Devices []string // names of the devices that are allocated, all of one driver
	Memory  string   // the consumed capacity of each shared device, such as 20Gi
	Admin   bool     // adminAccess: observes devices that others hold

	Load     sim.Profile // of each device
	Resident float64     // bytes of each device's memory
	Spike    sim.Spike   // in addition to Resident
}

// pod is a pod on the node.
type pod struct {
	podresources.Pod
	uid    string
	spec   PodSpec
	claims []*claim // as spec.Claims
	uses   []held
	listed bool
}

// StartPod simulates the start of a pod in the kubelet's order (k8s.io/kubernetes pkg/kubelet
// SyncPod): the pod's cgroup, preparation of its claims' devices with CDI specs, PodResources, log
// folder, containers. The pod holds the devices from the time at which they are listed.
func (n *Node) StartPod(spec PodSpec) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.newPod(spec)
	n.pods[p.Pod] = p
	n.played++
	n.claimAll(p)
	n.try("make cgroup", n.MakeCgroup(p.uid))
	for _, c := range p.claims {
		if c.pods[0] == p { // otherwise it is prepared for its first pod
			n.prepare(c)
		}
	}
	n.hold(p)
	n.try("make logs", n.MakeLogs(p.Namespace, p.Name, p.uid, p.spec.Containers...))
	n.makeProcess(p)
	n.announce(p, corev1.PodRunning)
	n.load(p, func(use held) sim.Profile { return use.does.Load })
	return n.failed
}

// StopPod simulates the end of a pod: its workload ends, its cgroup is removed, PodResources no
// longer lists it, and its prepared claims are removed unless other pods use them.
func (n *Node) StopPod(namespace, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pods[podresources.Pod{Namespace: namespace, Name: name}]
	n.removeProcess(p)
	n.load(p, func(held) sim.Profile { return sim.Idle() })
	n.try("remove cgroup", n.RemoveCgroup(p.uid))
	n.drop(p)
	n.releaseAll(p)
	delete(n.pods, p.Pod)
	n.retract(p)
	n.try("remove log folder", os.RemoveAll(n.Path(node.LogsOf(p.Namespace, p.Name, p.uid))))
	n.writeInventory()
	return n.failed
}

func (n *Node) newPod(spec PodSpec) *pod {
	if len(spec.Containers) == 0 {
		spec.Containers = []string{"main"}
	}
	return &pod{Pod: podresources.Pod{Namespace: spec.Namespace, Name: spec.Name}, uid: n.uid(), spec: spec}
}

// try keeps an error of a step.
func (n *Node) try(what string, err error) {
	if err != nil {
		n.failed = errors.Join(n.failed, fmt.Errorf("%s: %w", what, err))
	}
}

// claimAll allocates the pod's claims and writes them as API objects.
func (n *Node) claimAll(p *pod) {
	for _, spec := range p.spec.Claims {
		p.claims = append(p.claims, n.claim(p, spec))
	}
	n.announce(p, corev1.PodPending)
	n.writeInventory()
}

// held is a use with the load of the pod.
type held struct {
	Use
	does Request
}

// hold assigns the devices to the pod and makes the kubelet list them.
func (n *Node) hold(p *pod) {
	at := n.now()
	for i, c := range p.claims {
		for _, a := range c.allocated {
			use := held{
				Use: Use{
					Pod: p.Pod, PodUID: p.uid, Claim: c.Claim, Device: a.device.id(), ShareID: a.shareID,
					Request: a.request.Name, Admin: a.request.Admin, From: at,
				},
				does: p.spec.Claims[i].request(a.request.Name),
			}
			n.begin(p, use, c.uid+a.shareID, a.weight())
		}
	}
	for _, use := range n.plugged(p, at) {
		n.begin(p, use, p.uid, 1)
	}
	p.listed = true
	n.list()
}

// begin begins a use of a device by a pod. Those of a group share its weight.
func (n *Node) begin(p *pod, use held, group string, weight float64) {
	n.try("hold devices", n.machine.Begin(use.Device.Device, sim.Workload{
		Name: use.workload(), Group: group, Weight: weight, MemoryBytes: use.does.Resident, Spike: use.does.Spike,
	}, use.From))
	p.uses = append(p.uses, use)
}

// request returns the request with a name, none if another pod with more requests created the
// claim.
func (c ClaimSpec) request(name string) Request {
	if i := slices.IndexFunc(c.Requests, func(r Request) bool { return r.Name == name }); i >= 0 {
		return c.Requests[i]
	}
	return Request{}
}

// load sets the load of the pod on its devices.
func (n *Node) load(p *pod, of func(held) sim.Profile) {
	at := n.now()
	for _, use := range p.uses {
		n.try("set load", n.machine.SetLoad(use.Device.Device, use.workload(), of(use), at))
	}
}

// drop removes the pod's devices and its entry in the kubelet's list.
func (n *Node) drop(p *pod) {
	at := n.now()
	for _, use := range p.uses {
		n.try("drop devices", n.machine.End(use.Device.Device, use.workload(), at))
		n.end(use.Use, at)
	}
	p.uses, p.listed = nil, false
	n.list()
}

func (n *Node) releaseAll(p *pod) {
	for _, c := range p.claims {
		n.reserve(c, slices.DeleteFunc(c.pods, func(other *pod) bool { return other == p }))
		if len(c.pods) == 0 {
			n.unprepare(c)
			delete(n.claims, c.Claim)
		}
	}
}

// resources returns the pod as the kubelet lists it.
func (p *pod) resources() *v1.PodResources {
	var containers []*v1.ContainerResources
	for _, name := range p.spec.Containers {
		var claims []*v1.DynamicResource
		for i, c := range p.claims {
			if p.spec.Claims[i].usedBy(name) {
				claims = append(claims, c.resource())
			}
		}
		containers = append(containers, podresourcestest.Container(name, claims...))
	}
	p.withPlugged(containers)
	return podresourcestest.Pod(p.Namespace, p.Name, containers...)
}

// resource returns the claim as the kubelet lists it.
func (c *claim) resource() *v1.DynamicResource {
	var devices []*v1.ClaimResource
	for _, a := range c.allocated {
		var names []string
		if a.device.CDIClass != "" {
			names = []string{a.device.Driver + "/" + a.device.CDIClass + "=" + c.cdiDevice(a)}
		}
		id := a.device.id()
		device := podresourcestest.Device(id.Driver, id.Pool, id.Device, names...)
		if a.shareID != "" {
			device = podresourcestest.Share(id.Driver, id.Pool, id.Device, a.shareID, names...)
		}
		devices = append(devices, device)
	}
	return podresourcestest.Claim(c.Namespace, c.Name, devices...)
}

// workload is the name of the use in the simulated machine.
func (u *Use) workload() string {
	return strings.Join([]string{u.PodUID, u.Claim.Namespace, u.Claim.Name, u.Device.Device, u.ShareID}, "/")
}

package simnode

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
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
	return p.does("start", n.claimAll, func(p *pod) error { return n.MakeCgroup(p.uid) }, n.prepareAll, n.hold, n.makeLogs,
		n.makeProcess, n.work)
}

// StopPod simulates the end of a pod: its workload ends, its cgroup is removed, PodResources no
// longer lists it, and its prepared claims are removed unless other pods use them.
func (n *Node) StopPod(namespace, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[podresources.Pod{Namespace: namespace, Name: name}].does("stop", n.removeProcess, n.rest,
		func(p *pod) error { return n.RemoveCgroup(p.uid) }, n.drop, n.releaseAll, n.remove)
}

func (n *Node) newPod(spec PodSpec) *pod {
	if len(spec.Containers) == 0 {
		spec.Containers = []string{"main"}
	}
	return &pod{Pod: podresources.Pod{Namespace: spec.Namespace, Name: spec.Name}, uid: n.uid(), spec: spec}
}

// does performs the steps of a pod's start or stop in order until one fails.
func (p *pod) does(what string, steps ...func(*pod) error) error {
	for _, do := range steps {
		if err := do(p); err != nil {
			return fmt.Errorf("%s pod %s/%s: %w", what, p.Namespace, p.Name, err)
		}
	}
	return nil
}

// claimAll allocates the pod's claims and writes them as API objects.
func (n *Node) claimAll(p *pod) error {
	for _, spec := range p.spec.Claims {
		c, err := n.claim(p, spec)
		if err != nil {
			return err
		}
		p.claims = append(p.claims, c)
	}
	n.announce(p, corev1.PodPending)
	return n.writeInventory()
}

func (n *Node) prepareAll(p *pod) error {
	for _, c := range p.claims {
		if c.pods[0] != p {
			continue // already prepared for its first pod
		}
		if err := n.prepare(c); err != nil {
			return err
		}
	}
	return nil
}

// held is a use with the load of the pod.
type held struct {
	Use
	does Request
}

// hold assigns the devices to the pod and makes the kubelet list them.
func (n *Node) hold(p *pod) error {
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
			if err := n.begin(p, use, c.uid+a.shareID, a.weight()); err != nil {
				return err
			}
		}
	}
	for _, use := range n.plugged(p, at) {
		if err := n.begin(p, use, p.uid, 1); err != nil {
			return err
		}
	}
	p.listed = true
	return n.list()
}

// begin begins a use of a device by a pod. Those of a group share its weight.
func (n *Node) begin(p *pod, use held, group string, weight float64) error {
	if err := n.machine.Begin(use.Device.Device, sim.Workload{
		Name: use.workload(), Group: group, Weight: weight, MemoryBytes: use.does.Resident, Spike: use.does.Spike,
	}, use.From); err != nil {
		return fmt.Errorf("hold devices: %w", err)
	}
	p.uses = append(p.uses, use)
	return nil
}

// request returns the request with a name, none if another pod with more requests created the
// claim.
func (c ClaimSpec) request(name string) Request {
	if i := slices.IndexFunc(c.Requests, func(r Request) bool { return r.Name == name }); i >= 0 {
		return c.Requests[i]
	}
	return Request{}
}

// work starts the load of the pod's devices.
func (n *Node) work(p *pod) error {
	n.announce(p, corev1.PodRunning)
	return n.load(p, func(use held) sim.Profile { return use.does.Load })
}

// rest ends the load of the pod's devices.
func (n *Node) rest(p *pod) error {
	return n.load(p, func(held) sim.Profile { return sim.Idle() })
}

func (n *Node) load(p *pod, of func(held) sim.Profile) error {
	at := n.now()
	for _, use := range p.uses {
		if err := n.machine.SetLoad(use.Device.Device, use.workload(), of(use), at); err != nil {
			return fmt.Errorf("set load: %w", err)
		}
	}
	return nil
}

// drop removes the pod's devices and its entry in the kubelet's list.
func (n *Node) drop(p *pod) error {
	at := n.now()
	for _, use := range p.uses {
		if err := n.machine.End(use.Device.Device, use.workload(), at); err != nil {
			return fmt.Errorf("drop devices: %w", err)
		}
		n.end(use.Use, at)
	}
	p.uses, p.listed = nil, false
	return n.list()
}

func (n *Node) releaseAll(p *pod) error {
	for _, c := range p.claims {
		others := slices.DeleteFunc(c.pods, func(other *pod) bool { return other == p })
		if err := c.reserve(others); err != nil {
			return err
		}
		if len(others) > 0 {
			continue
		}
		if err := n.unprepare(c); err != nil {
			return err
		}
		delete(n.claims, c.Claim)
	}
	return nil
}

func (n *Node) remove(p *pod) error {
	delete(n.pods, p.Pod)
	n.retract(p)
	return errors.Join(n.removeLogs(p), n.writeInventory())
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

// Package simnode simulates a Kubernetes node for the demo and for tests. A root folder has
// everything about a node that the exporter reads (the kubelet's socket, the pods' cgroups and log
// folders, CDI specs, ResourceSlices and ResourceClaims). Pods and devices are simulated, so that
// the true use of each pod is known.
package simnode

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/node"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// Name is the node's name.
const Name = "demo-node"

// Options are the options of a node. With the zero value, readings of devices are exact, in real
// time.
type Options struct {
	// Sim are the options of the source of the devices. Its clock is replaced by the node's.
	Sim sim.Options
	// Now is the clock; nil: [time.Now].
	Now func() time.Time
	// PodsAPI enables the kubelet's Pods API beside PodResources. Only this API has the pods' labels
	// and owners.
	PodsAPI bool
}

// Node is a simulated node. It is safe for concurrent use. After an error of StartPod or StopPod
// only Close may be called.
type Node struct {
	*node.Node
	now     func() time.Time
	begun   time.Time
	options Options
	devices map[string]*Device // by name
	machine *sim.Machine
	api     *podresourcestest.Pods // nil: the kubelet does not serve it
	slices  []byte                 // the ResourceSlices, as items of a list

	mu     sync.Mutex
	random *rand.Rand
	pods   map[podresources.Pod]*pod
	claims map[podresources.Claim]*claim
	ended  []Use
	played int
	logged int   // records of the kernel log
	failed error // of what was done so far
}

// New creates the folders of a node in root, which must exist, and returns the node with these
// devices. Nothing is served before Start. Generated values (UIDs, counters) are the same for the
// same seed.
func New(root string, seed uint64, devices []Device, options Options) (*Node, error) {
	now := options.Now
	if now == nil {
		now = time.Now
	}
	simulated := make([]sim.Device, len(devices))
	byName := make(map[string]*Device, len(devices))
	for i := range devices {
		simulated[i] = devices[i].Device
		byName[devices[i].Name] = &devices[i]
	}
	files, err := node.Make(root, Name)
	if err != nil {
		return nil, fmt.Errorf("create simulated node: %w", err)
	}
	n := &Node{
		Node: files, now: now, begun: now(), options: options, devices: byName, machine: sim.New(now(), seed, simulated...),
		random: rand.New(rand.NewPCG(seed, 0)),
		pods:   map[podresources.Pod]*pod{}, claims: map[podresources.Claim]*claim{},
	}
	n.slices = n.resourceSlices(devices)
	n.makeBus()
	n.writeInventory()
	n.offer()
	return n, n.failed
}

// Start serves the kubelet's sockets.
func (n *Node) Start() error {
	if n.options.PodsAPI {
		api, err := n.ServePods()
		if err != nil {
			return fmt.Errorf("serve the Pods API: %w", err)
		}
		n.mu.Lock()
		n.api = api
		n.mu.Unlock()
	}
	return n.Node.Start()
}

// Close ends the services. The files remain.
func (n *Node) Close() {
	n.Kubelet.Stop()
	if n.api != nil {
		n.api.Stop()
	}
}

// Begun returns when the node began.
func (n *Node) Begun() time.Time { return n.begun }

// Source returns a source that reads the node's devices.
func (n *Node) Source() driver.Source {
	options := n.options.Sim
	options.Now = n.now
	return sim.NewSource(n.machine, options)
}

// Devices returns the node's devices, sorted by their ID.
func (n *Node) Devices() []driver.ID {
	var out []driver.ID
	for _, d := range n.devices {
		out = append(out, d.id())
	}
	slices.SortFunc(out, driver.ID.Compare)
	return out
}

// Args returns the exporter's flags for this node.
func (n *Node) Args() []string {
	return n.Flags().With(node.Flags{"inventory.file": n.Path(node.Inventory)}).Args()
}

// Played returns the number of pods started so far.
func (n *Node) Played() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.played
}

// uid returns a UUID of version 4.
func (n *Node) uid() string {
	hi, lo := n.random.Uint64(), n.random.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xfff, lo>>48&0x3fff|0x8000,
		lo&0xffffffffffff)
}

// list updates the kubelet's list of pods.
func (n *Node) list() {
	pods := slices.SortedFunc(maps.Values(n.pods), func(a, b *pod) int { return a.Compare(b.Pod) })
	var answer []*v1.PodResources
	for _, p := range pods {
		if p.listed {
			answer = append(answer, p.resources())
		}
	}
	n.try("list pods", n.Kubelet.SetPods(answer...))
}

// SourceWith returns another source of the node's devices, with other options. Its clock is the
// node's.
func (n *Node) SourceWith(options sim.Options) driver.Source {
	options.Now = n.now
	return sim.NewSource(n.machine, options)
}

// Use is the true use by a pod of a device of a claim, or of a share of one.
type Use struct {
	Pod     podresources.Pod
	PodUID  string
	Claim   podresources.Claim
	Device  driver.ID
	ShareID string
	Request string
	Admin   bool

	From, To time.Time // when the kubelet listed it; To is zero while it is listed
	// Truth is the pod's share: the claims on the device share it in proportion to their consumed
	// capacity, the pods of a claim in equal shares.
	Truth sim.Truth
}

// Uses returns the uses of the pods until at, which must not be before their last change: the ended
// ones in order of their ends, then the present ones by pod.
func (n *Node) Uses(at time.Time) []Use {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := slices.Clone(n.ended)
	for _, p := range slices.SortedFunc(maps.Values(n.pods), func(a, b *pod) int { return a.Compare(b.Pod) }) {
		for _, use := range p.uses {
			use.Truth = n.machine.TruthOn(use.Device.Device, use.workload(), at)
			out = append(out, use.Use)
		}
	}
	return out
}

// Total returns the use of a device until at, held or not.
func (n *Node) Total(device driver.ID, at time.Time) sim.Truth {
	return n.machine.Total(device.Device, at)
}

// XIDs returns how many errors with an XID a device has had between two times.
func (n *Node) XIDs(device driver.ID, from, to time.Time) int {
	return n.machine.XIDs(device.Device, from, to)
}

// end records a use that has ended.
func (n *Node) end(use Use, at time.Time) {
	use.To, use.Truth = at, n.machine.TruthOn(use.Device.Device, use.workload(), at)
	n.machine.Forget(use.workload())
	n.ended = append(n.ended, use)
}

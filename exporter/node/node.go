// Package node holds what is known of one node besides what its devices do: who holds the devices
// (the kubelet's PodResources service, completed by its Pods API, the API server and the pods' log
// folders), and what hardware they are (ResourceSlices or an inventory file, CDI specs, the IDs of
// device plugins).
//
// [New] returns a [Node] without network access. [Node.Watch] follows all changes; [Node.Observe]
// returns who holds what; [Node.Describe] completes the allocations and returns the inventory.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// Config configures a [Node]. Log and Metrics are required; InventoryFile and API are optional.
type Config struct {
	Name string // of the Kubernetes Node object

	KubeletRoot        string
	PodResourcesSocket string
	PodsSocket         string        // of the Pods API
	EmptyGrace         time.Duration // how long an empty answer is not believed without proof
	PodLogs            string        // folder of the pods' logs, whose names have the pods' UIDs
	Procfs, Sysfs      string
	CDI                []string // folders of CDI specs

	// InventoryFile has ResourceSlices and ResourceClaims as YAML; its slices replace those of the
	// API server. Empty: there is none.
	InventoryFile string
	// API is the client of the API server; nil: it is not used.
	API *kube.Client
	// Selection names the labels and annotations of pods and claims to copy.
	Selection podresources.Selection

	Metrics Metrics
	Log     *slog.Logger
}

// Metrics receives how the inputs of the node do. It must be safe for concurrent use.
type Metrics interface {
	// Observe records one request to an input: its duration, and its error or nil.
	Observe(input string, took time.Duration, err error, now time.Time)
	// ObserveReader records the same of a reader of the node's files, of which nothing is known
	// until it fails.
	ObserveReader(name string, took time.Duration, err error, now time.Time)
	// Absent records that an optional input is not available, and why.
	Absent(input string, err error)
	// Reject counts rejections.
	Reject(rejected ...driver.Rejection)
	// RejectTotal sets the rejections of an input that counts them itself.
	RejectTotal(input string, totals driver.Rejections)
	// Conflicts sets how many rows of the kubelet the API server contradicts, by kind.
	Conflicts(byKind map[string]int)
	// UnresolvedPods sets the number of pods for which it is unknown what they hold, by reason.
	UnresolvedPods(byReason map[string]int)
}

// ConfigError reports a value in a [Config] that can not be used.
type ConfigError struct {
	Field string // of Config
	Err   error
}

// Error implements error.
func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %v", e.Field, e.Err) }

// Unwrap returns the reason.
func (e *ConfigError) Unwrap() error { return e.Err }

// Node is what is known of one node. Observe is called by one goroutine and Describe by one, which
// may be another; all other methods are safe for concurrent use.
type Node struct {
	name     string
	client   *podresources.Client
	observer podresources.Observer
	cgroups  *podresources.Cgroups
	changes  *podresources.ChangeLog
	cdi      *inventory.CDI
	file     *inventory.File // nil: none
	kube     *kube.Node      // nil: the API server is not asked
	pods     *podresources.PodSet
	podsAPI  *podresources.PodsClient
	podWatch *podresources.PodWatch
	hints    chan struct{}
	metrics  Metrics
	log      *slog.Logger

	passthrough atomic.Bool                    // a device is handed to a guest as it is
	conditional atomic.Bool                    // the inventory has devices with binding conditions
	attachments attachments                    // the devices that are interfaces of pods
	holders     holders                        // who holds which device
	paths       pciPaths                       // where PCI devices are
	vendors     atomic.Pointer[map[string]int] // how many devices of each could be read

	podState func(uid string) podresources.State // reads the pod's cgroup
	resolver podresources.Resolver

	podsServed  bool // CheckPods succeeded
	claimsAsked bool // the API server was asked for claims before; of the goroutine of Observe

	claims atomic.Pointer[map[podresources.Claim]podresources.ClaimFacts] // of the file

	// The following fields belong to the goroutine of Describe.
	listed    driver.Inventory                // of the file
	reader    *driver.Worker[*contents]       // of the file
	gone      *driver.Worker[map[string]bool] // which pods' cgroups are
	before    driver.Inventory                // the inventory at the last call
	cdiIDs    map[driver.ID]cdiDevice
	plugin    pluginDevices
	cpus      cpuSets
	conflicts conflicts
	drivers   *podresources.Drivers
}

// New returns a node. It reads the inventory file and the CDI specs, and connects to nothing yet. A
// value that can not be used is a [*ConfigError].
func New(c Config) (*Node, error) {
	client, err := podresources.NewClient(c.PodResourcesSocket)
	if err != nil {
		return nil, &ConfigError{"PodResourcesSocket", err}
	}
	n := &Node{
		name: c.Name, client: client, metrics: c.Metrics, log: c.Log,
		cgroups: podresources.NewCgroups(c.Sysfs, time.Now),
		changes: &podresources.ChangeLog{},
		cdi:     inventory.NewCDI(c.CDI, c.Sysfs),
		pods:    &podresources.PodSet{},
		hints:   make(chan struct{}, 1),
		cdiIDs:  map[driver.ID]cdiDevice{},
		drivers: podresources.NewDrivers(c.KubeletRoot, time.Now),

		attachments: attachments{processes: podresources.NewPodProcesses(c.Procfs, time.Now)},
		holders:     holders{members: podresources.NewPodMembers(c.Procfs, time.Now)},
	}
	n.holders.cgroup = n.cgroups.Folder
	n.podState = n.cgroups.State
	n.cgroups.Report, n.cdi.Report, n.drivers.Report = n.reading("cgroups"), n.reading("cdi"), n.reading("drivers")
	n.gone = driver.NewReader[map[string]bool]("read pods' cgroups", n.reading("cgroups"))
	n.plugin = pluginDevices{
		sysfs: c.Sysfs, reader: driver.NewReader[inventory.PluginDevice]("find an interface", n.reading("interfaces")),
	}
	n.cpus = cpuSets{
		sysfs: c.Sysfs, cdi: n.cdi, reader: driver.NewReader[[]int]("read which CPUs are where", n.reading("cpus")),
	}
	n.paths = pciPaths{
		sysfs:  c.Sysfs,
		reader: driver.NewReader[map[string]driver.PCIPath]("read where PCI devices are", n.reading("pci")),
	}
	if n.podsAPI, err = podresources.NewPodsClient(c.PodsSocket, c.Selection, time.Now); err != nil {
		n.Close()
		return nil, &ConfigError{"PodsSocket", err}
	}
	n.podWatch = podresources.NewPodWatch(n.Hint, n.changes)
	n.observer = podresources.Observer{
		Lister:  client,
		Keeper:  n.keeper(c),
		Limiter: &podresources.Limiter{Jitter: rand.Float64},
		Changes: n.changes,
		Pods:    n.podWatch,
		Now:     time.Now,
	}
	if c.InventoryFile != "" {
		if err := n.useFile(c.InventoryFile); err != nil {
			n.Close()
			return nil, &ConfigError{"InventoryFile", err}
		}
	}
	if c.API != nil {
		n.useKube(c)
	}
	if err := n.cdi.Load(); err != nil {
		n.metrics.ObserveReader("cdi", driver.ReadDeadline, err, time.Now())
	}
	return n, nil
}

// reading returns what records the reads of a reader.
func (n *Node) reading(name string) func(took time.Duration, err error) {
	return func(took time.Duration, err error) { n.metrics.ObserveReader(name, took, err, time.Now()) }
}

func (n *Node) keeper(c Config) *podresources.Keeper {
	logs := podresources.NewPodLogs(c.PodLogs, n.reading("podlogs"))
	states := driver.NewReader[podresources.State]("read a pod's cgroup", n.reading("cgroups"))
	return &podresources.Keeper{
		Grace: c.EmptyGrace,
		PodState: func(uid string) podresources.State {
			state, err := states.Do(context.Background(), driver.ReadWait, func(context.Context) (podresources.State, error) {
				return n.podState(uid), nil
			})
			if err != nil {
				return podresources.StateUnknown
			}
			return state
		},
		PodUID: func(pod podresources.Pod, now time.Time) string {
			if uid := n.pods.UID(pod); uid != "" {
				return uid
			}
			return logs.UID(pod, now)
		},
	}
}

// Close closes the connections to the kubelet.
func (n *Node) Close() {
	err := n.client.Close()
	if n.podsAPI != nil {
		err = errors.Join(err, n.podsAPI.Close())
	}
	if err != nil {
		n.log.Debug("closing the connections to the kubelet", "err", err)
	}
}

// Watch follows pods, their cgroups, CDI specs, drivers and, where it may be asked, the API server
// until ctx ends. Without it the times of changes are less exact and the API server's objects
// unknown; everything else works.
func (n *Node) Watch(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() {
		n.report(ctx, "pods' cgroups", n.cgroups.Watch(ctx, n.changed))
	})
	watching.Go(func() {
		n.report(ctx, "CDI specs", n.cdi.Watch(ctx, func(at time.Time, gone bool, names []string) {
			n.changed(podresources.Change{At: at, Gone: gone, CDI: names})
		}))
	})
	watching.Go(func() { n.followPods(ctx) })
	watching.Go(func() { n.drivers.Watch(ctx) })
	if n.kube != nil {
		n.followKube(ctx, &watching)
	}
	watching.Wait()
}

func (n *Node) report(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		n.log.WarnContext(ctx, "not watching: the times of ownership changes come from polling", "what", what, "err", err)
	}
}

// changed records a change and sends a hint.
func (n *Node) changed(c podresources.Change) {
	n.changes.Add(c)
	n.Hint()
}

// Hints returns a channel that has a value when ownership may have changed.
func (n *Node) Hints() <-chan struct{} { return n.hints }

// Hint sends a hint, unless one is waiting.
func (n *Node) Hint() {
	select {
	case n.hints <- struct{}{}:
	default:
	}
}

// Observe asks the kubelet who holds what, unless it was asked too recently, and returns what is
// believed: if it fails, the last known, with the error.
func (n *Node) Observe(ctx context.Context) (podresources.Observation, error) {
	o, err := n.observer.Observe(ctx)
	if o.Asked && err == nil {
		n.pods.Forget(o.View.Allocations)
	}
	if n.kube != nil && o.Asked {
		n.wantClaims(ctx, &o.View)
	}
	return o, err
}

// Describe returns the allocations of the view completed by what is known of claims and pods, and
// the hardware of the node's devices, the allocated ones among them. The view is not changed.
func (n *Node) Describe(view podresources.View) ([]podresources.Allocation, driver.Inventory) {
	if n.file != nil {
		n.readFile(driver.ReadWait)
	}
	n.metrics.RejectTotal("cdi", n.cdi.Rejected())
	now := time.Now()
	allocations := n.resolve(&view, now)
	listed := n.withoutDrivers(n.withHeld(allocations, n.slices()))
	allocations, all := n.plugin.identify(allocations, n.withRules(n.withCDI(allocations, listed, now)), now)
	allocations, all = n.cpus.complete(withPieces(allocations, all), all, now)
	n.passthrough.Store(hasPassthrough(allocations, all, n.plugin.sysfs))
	n.conditional.Store(hasConditional(all))
	vendors := vendorsOf(all)
	n.vendors.Store(&vendors)
	n.attachments.update(allocations, all)
	n.holders.update(allocations, all)
	return allocations, all
}

// Passthrough reports whether a device was handed to a guest as it is (vfio) at the last Describe.
func (n *Node) Passthrough() bool { return n.passthrough.Load() }

// Listed returns how many devices of a vendor the inventory of the last Describe has that could be
// read on this node.
func (n *Node) Listed(vendor string) int {
	if vendors := n.vendors.Load(); vendors != nil {
		return (*vendors)[vendor]
	}
	return 0
}

// Attachments returns the devices that are network interfaces of pods now, with processes of these.
func (n *Node) Attachments() []driver.Attachment { return n.attachments.current() }

// Holders returns the pods that hold, now and without admin access, a device for which asked is
// true, with their processes.
func (n *Node) Holders(asked func(*driver.Hardware) bool) []driver.PodProcesses {
	return n.holders.of(asked)
}

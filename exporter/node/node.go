// Package node knows everything about one node except the telemetry of its devices: who holds them
// (from the kubelet's PodResources service, its Pods API, the API server and the pods' log
// folders), and what hardware they are (from ResourceSlices or an inventory file, CDI specs, and
// the IDs of device plugins).
//
// [New] returns a [Node] without network access. [Node.Watch] follows all changes; [Node.Observe]
// asks for the holders; [Node.Describe] completes them and returns the inventory.
//
// Bounds (max…) are for what the kubelet and pods send.
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
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// Config configures a [Node]. Log and Metrics are required; InventoryFile and API are optional.
type Config struct {
	Name string // of the Kubernetes Node object

	KubeletRoot        string
	PodResourcesSocket string
	PodsSocket         string        // of the Pods API
	EmptyGrace         time.Duration // for how long an empty answer needs further evidence
	PodLogs            string        // folder of the pods' logs, whose names have the pods' UIDs
	Procfs, Sysfs      string
	CDI                []string // folders of CDI specs

	// InventoryFile is a file with ResourceSlices and ResourceClaims as YAML. Its slices replace those
	// of the API server. Empty: none.
	InventoryFile string
	// API is the client of the API server; nil: it is not used.
	API *kube.Client
	// Selection names the labels and annotations of pods and claims to copy.
	Selection podresources.Selection
	// Bounds limit the answers of the kubelet. SliceBytes limits the API server's slices.
	Bounds     podresources.Bounds
	SliceBytes int // 0: kube.MaxSliceBytes

	Metrics Metrics
	Log     *slog.Logger
}

// Metrics receives the outcomes of the node's inputs. It must be safe for concurrent use.
type Metrics interface {
	// Observe records one request to an input: its duration and its error, nil for success.
	Observe(input string, took time.Duration, err error, now time.Time)
	// ObserveReader is Observe for a reader of the node's files. Nothing is recorded until its first
	// failure.
	ObserveReader(name string, took time.Duration, err error, now time.Time)
	// Absent records that an optional input is not available, and why.
	Absent(input string, err error)
	// Reject counts rejections.
	Reject(rejected ...driver.Rejection)
	// RejectTotal sets the rejections of an input that counts them itself.
	RejectTotal(input string, totals driver.Rejections)
	// Held sets what is wrong with the holders: pods whose devices are unknown, and contradictions
	// between the kubelet and the API server.
	Held(held *holders.Holdings)
}

// ConfigError is the error for an unusable value in a [Config].
type ConfigError struct {
	Field string // name of the field in Config
	Err   error
}

// Error implements error.
func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %v", e.Field, e.Err) }

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// described is what Describe returned. It does not change.
type described struct {
	allocations []podresources.Allocation
	inventory   driver.Inventory
}

// Node knows one node. Observe and Describe must each be called by one goroutine, not necessarily
// the same; all other methods are safe for concurrent use.
type Node struct {
	name    string
	client  *podresources.Client
	book    *holders.Book // the holders
	asker   holders.Asker
	cgroups *podresources.Cgroups
	cdi     *inventory.CDI
	file    *inventory.File // nil: none
	kube    *kube.Node      // nil: the API server is not asked
	podsAPI *podresources.PodsClient
	hints   chan struct{}
	metrics Metrics
	log     *slog.Logger

	latest  atomic.Pointer[described] // nil before the first Describe
	first   *podresources.PodProcesses
	members *podresources.PodMembers
	works   works                                     // of the pods that hold devices
	paths   *driver.Worker[map[string]driver.PCIPath] // reads where PCI devices are
	offers  offers                                    // what device plugins offer

	podState func(uid string) podresources.CgroupState // reads the pod's cgroup

	podsServed bool // CheckPods has succeeded

	// The following fields are used only by the goroutine that calls Describe.
	listed  driver.Inventory         // of the file
	reader  *driver.Worker[bool]     // of the file; true: it has changed
	read    atomic.Pointer[contents] // by the reader, and not used yet
	claims  bool                     // the file has claims
	dates   holders.Dates
	view    podresources.View // of the last call
	before  driver.Inventory  // inventory of the last call
	tainted tainted
	cdiIDs  map[driver.ID]cdiDevice
	plugin  pluginDevices
	cpus    cpuSets
	drivers *podresources.Drivers
}

// New returns a node. It reads the inventory file and the CDI specs, and does not connect to
// anything yet. An unusable value causes a [*ConfigError].
func New(c Config) (*Node, error) {
	client, err := podresources.NewClient(c.PodResourcesSocket, c.Bounds)
	if err != nil {
		return nil, &ConfigError{"PodResourcesSocket", err}
	}
	n := &Node{
		name: c.Name, client: client, metrics: c.Metrics, log: c.Log,
		cgroups: podresources.NewCgroups(c.Sysfs, time.Now),
		cdi:     inventory.NewCDI(c.CDI, c.Sysfs),
		hints:   make(chan struct{}, 1),
		cdiIDs:  map[driver.ID]cdiDevice{},
		drivers: podresources.NewDrivers(c.KubeletRoot, time.Now),
		first:   podresources.NewPodProcesses(c.Procfs, time.Now),
		members: podresources.NewPodMembers(c.Procfs, time.Now),
	}
	n.book = holders.NewBook(c.EmptyGrace, n.Hint)
	n.works.pods = podresources.NewPodWorks(n.cgroups, podresources.NewPodProcesses(c.Procfs, time.Now), c.Procfs)
	n.works.reader = driver.NewReader[map[string]podresources.PodWork]("read the work of pods", n.reading("pod_work"))
	n.podState = n.cgroups.State
	n.cgroups.Report, n.cdi.Report, n.drivers.Report = n.reading("cgroups"), n.reading("cdi"), n.reading("drivers")
	n.plugin = pluginDevices{
		sysfs: c.Sysfs, reader: driver.NewReader[inventory.PluginDevice]("find an interface", n.reading("interfaces")),
	}
	n.offers = offers{
		client: client, sysfs: c.Sysfs, metrics: c.Metrics,
		reader: driver.NewReader[map[driver.ID]inventory.PluginDevice]("find offered devices", n.reading("interfaces")),
	}
	n.cpus = cpuSets{
		sysfs: c.Sysfs, cdi: n.cdi, reader: driver.NewReader[[]int]("read which CPUs are where", n.reading("cpus")),
	}
	n.paths = driver.NewReader[map[string]driver.PCIPath]("read where PCI devices are", n.reading("pci"))
	rejectPods := func(rejected driver.Rejections) { n.metrics.Reject(rejected.Of(kube.SourcePods)...) }
	if n.podsAPI, err = podresources.NewPodsClient(c.PodsSocket, c.Selection, rejectPods, time.Now); err != nil {
		n.Close()
		return nil, &ConfigError{"PodsSocket", err}
	}
	n.asker = n.newAsker(c)
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

// reading returns a function that records the reads of a reader.
func (n *Node) reading(name string) func(took time.Duration, err error) {
	return func(took time.Duration, err error) { n.metrics.ObserveReader(name, took, err, time.Now()) }
}

func (n *Node) newAsker(c Config) holders.Asker {
	logs := podresources.NewPodLogs(c.PodLogs, n.reading("podlogs"))
	type states = map[string]podresources.CgroupState
	reader := driver.NewReader[states]("read pods' cgroups", n.reading("cgroups"))
	return holders.Asker{
		Lister: n.client, Limiter: &podresources.Limiter{Jitter: rand.Float64}, Bounds: c.Bounds, Book: n.book, UID: logs.UID,
		Cgroups: func(uids []string) states {
			read, err := reader.Do(context.Background(), driver.ReadWait, func(context.Context) (states, error) {
				out := make(states, len(uids))
				for _, uid := range uids {
					out[uid] = n.podState(uid)
				}
				return out, nil
			})
			if err != nil {
				return nil // the read hangs, which has been reported
			}
			return read
		},
		Now: time.Now,
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

// Watch follows pods, their cgroups, CDI specs, drivers and, if it is used, the API server until
// ctx ends. Without Watch, the times of changes are less exact and the API server's objects are
// unknown; everything else works.
func (n *Node) Watch(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() {
		n.notWatching(ctx, "pods' cgroups", n.cgroups.Watch(ctx, n.book.Changed))
	})
	watching.Go(func() {
		n.notWatching(ctx, "CDI specs", n.cdi.Watch(ctx, func(at time.Time, gone bool, names []string) {
			n.book.Changed(podresources.Change{At: at, Gone: gone, CDI: names})
		}))
	})
	watching.Go(func() { n.followPods(ctx) })
	watching.Go(func() { n.drivers.Watch(ctx) })
	watching.Go(func() { n.offers.follow(ctx) })
	if n.kube != nil {
		n.followKube(ctx, &watching)
	}
	watching.Wait()
}

func (n *Node) notWatching(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		n.log.WarnContext(ctx, "not watching: the times of ownership changes come from polling", "what", what, "err", err)
	}
}

// Hints returns a channel that has a value when holders may have changed.
func (n *Node) Hints() <-chan struct{} { return n.hints }

// Hint sends a hint, unless one is pending.
func (n *Node) Hint() {
	select {
	case n.hints <- struct{}{}:
	default:
	}
}

// Observe asks the kubelet for the holders, unless the last request is too recent, and then the API
// server for missing facts. If a request fails, the known facts stay valid.
func (n *Node) Observe(ctx context.Context) (podresources.Observation, error) {
	return n.asker.Observe(ctx)
}

// Resume continues the holds that an earlier process knew until a time. It must be called before
// the first Describe. Cgroups and CDI specs created since then determine the start of other holds.
func (n *Node) Resume(ctx context.Context, holds []podresources.Allocation, until time.Time) {
	n.dates.Resume(holds, until)
	reader := driver.NewReader[[]podresources.Change]("read since when there are pods", n.reading("cgroups"))
	came, _ := reader.Do(ctx, driver.ReadDeadline, func(context.Context) ([]podresources.Change, error) {
		out := n.cgroups.Since(until)
		for at, names := range n.cdi.Written() {
			if change, came := podresources.CameSince(until, at, time.Now()); came {
				change.CDI = names
				out = append(out, change)
			}
		}
		return out, nil
	}) // an error has been reported: the times are unknown
	for i := range came {
		n.book.Changed(came[i])
	}
}

// Describe returns the holders, by all known facts about pods and claims, and the hardware of the
// node's devices, including all held ones.
func (n *Node) Describe() (podresources.View, driver.Inventory) {
	now := time.Now()
	allocations, all, signs := n.describe(now)
	n.view = n.dates.Date(allocations, signs, now)
	n.latest.Store(&described{n.view.Allocations, all})
	return n.view, all
}

// last returns what the last Describe returned.
func (n *Node) last() described {
	if d := n.latest.Load(); d != nil {
		return *d
	}
	return described{}
}

// describe returns the allocations, the inventory, and the times at which holds may have begun or
// ended since the last view.
func (n *Node) describe(now time.Time) ([]podresources.Allocation, driver.Inventory, holders.Signs) {
	if n.file != nil {
		_ = n.readFile(driver.ReadWait) // its outcome is reported
	}
	n.metrics.RejectTotal("cdi", n.cdi.Rejected())
	held, signs := n.book.Holds(now, n.view.At)
	n.metrics.Held(&held)
	// Each step returns its arguments, or changed copies of them.
	allocations := held.Allocations
	allocations = n.withPending(allocations)
	all := n.withHeld(allocations, n.slices())
	all = n.withoutDrivers(all)
	all = n.withCDI(allocations, all, now)
	all = n.withRules(all)
	allocations, all = n.plugin.identify(allocations, n.offers.current(), all, now)
	allocations, all = n.cpus.complete(allocations, all, now)
	return allocations, all, signs
}

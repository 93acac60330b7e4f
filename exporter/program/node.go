package program

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// node is what is known of the node besides what its devices do: who holds them, by the kubelet, and what they are, by
// the inventory file and the CDI specs.
type node struct {
	name     string
	client   *podresources.Client
	observer podresources.Observer
	cgroups  *podresources.Cgroups
	changes  *podresources.ChangeLog
	cdi      *inventory.CDI
	file     *inventory.File // nil: none
	kube     *kube.Node      // nil: the API server is not asked
	api      *kube.Client    // nil likewise
	pods     *podresources.PodSet
	podsAPI  *podresources.PodsClient
	podWatch *podresources.PodWatch
	hints    chan struct{}
	metrics  *exporter.SelfMetrics
	log      *slog.Logger

	passthrough *atomic.Bool // whether devices are handed to guests
	attachments *attachments // the devices that are interfaces of pods

	claimsAsked bool // the API server was asked for claims before; of the goroutine that asks for owners

	// What follows belongs to the goroutine that ticks.
	listed driver.Inventory                               // of the file
	before driver.Inventory                               // what was listed at the last tick, and what was held of it
	claims map[podresources.Claim]podresources.ClaimFacts // of the file
	cdiIDs map[driver.ID]cdiDevice
	plugin pluginDevices
	driver *podresources.Drivers

	rejected []exporter.RejectedInput // not counted yet
}

// cdiDevice is a device that only CDI specs describe, and when somebody held it last.
type cdiDevice struct {
	hardware driver.Hardware
	held     time.Time
}

// rememberHeld is how long a device that only CDI specs, or a device plugin's ID, described stays known after its last
// holder: long enough for the last readings to be counted.
const rememberHeld = 10 * time.Minute

func newNode(o *options, metrics *exporter.SelfMetrics, log *slog.Logger) (*node, error) {
	client, err := podresources.NewClient(o.socket)
	if err != nil {
		return nil, badFlag("kubelet.podresources-socket", err)
	}
	n := &node{
		name: o.node, client: client, metrics: metrics, log: log,
		cgroups: podresources.NewCgroups(o.paths.Sysfs, time.Now),
		changes: &podresources.ChangeLog{},
		cdi:     inventory.NewCDI(o.cdi, o.paths.Sysfs),
		pods:    &podresources.PodSet{},
		hints:   make(chan struct{}, 1),
		cdiIDs:  map[driver.ID]cdiDevice{},
		plugin:  pluginDevices{sysfs: o.paths.Sysfs},
		driver:  podresources.NewDrivers(o.kubeletRoot, time.Now),

		passthrough: &o.passthrough,
		attachments: &o.attachments,
	}
	if n.podsAPI, err = podresources.NewPodsClient(o.podsSocket, o.selection, time.Now); err != nil {
		n.close()
		return nil, badFlag("kubelet.pods-socket", err)
	}
	n.podWatch = podresources.NewPodWatch(n.hint, n.changes)
	logs := podresources.NewPodLogs(o.podLogs)
	n.observer = podresources.Observer{
		Lister: client,
		Keeper: &podresources.Keeper{Grace: o.emptyGrace, PodState: n.cgroups.State, PodUID: func(pod podresources.Pod, now time.Time) string {
			if uid := n.pods.UID(pod); uid != "" {
				return uid
			}
			return logs.UID(pod, now)
		}},
		Limiter: &podresources.Limiter{Jitter: rand.Float64},
		Changes: n.changes,
		Pods:    n.podWatch,
		Now:     time.Now,
	}
	if o.inventoryFile != "" {
		n.file = inventory.NewFile(o.inventoryFile)
		begun := time.Now()
		if _, err := n.loadFile(); err != nil {
			n.close()
			return nil, badFlag("inventory.file", err)
		}
		metrics.Observe("slices", time.Since(begun), nil, time.Now())
	}
	if err := n.useKube(o); err != nil {
		n.close()
		return nil, err
	}
	n.cdi.Load()
	return n, nil
}

func (n *node) close() {
	err := n.client.Close()
	if n.podsAPI != nil {
		err = errors.Join(err, n.podsAPI.Close())
	}
	if err != nil {
		n.log.Debug("closing the connections to the kubelet", "err", err)
	}
}

// watch follows the pods' cgroups and the CDI specs until ctx ends. Without them, times of coming and going are less
// exact; everything else works.
func (n *node) watch(ctx context.Context) {
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
	watching.Go(func() { n.driver.Watch(ctx) })
	if n.kube != nil {
		n.followKube(ctx, &watching)
	}
	watching.Wait()
}

func (n *node) report(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		n.log.WarnContext(ctx, "not watching: ownership changes are dated by polling", "what", what, "err", err)
	}
}

// changed notes a change and causes a tick.
func (n *node) changed(c podresources.Change) {
	n.changes.Add(c)
	n.hint()
}

// hint causes a tick.
func (n *node) hint() {
	select {
	case n.hints <- struct{}{}:
	default: // a tick is due anyway
	}
}

// Observe implements exporter.Owners.
func (n *node) Observe(ctx context.Context) (podresources.Observation, error) {
	o, err := n.observer.Observe(ctx)
	if o.Asked && err == nil {
		n.pods.Forget(o.View.Allocations)
	}
	if n.kube != nil && o.Asked {
		n.wantClaims(ctx, o.View.Allocations)
	}
	return o, err
}

// Describe implements exporter.Inventory.
func (n *node) Describe(allocations []podresources.Allocation) ([]podresources.Allocation, driver.Inventory, []exporter.RejectedInput) {
	if n.file != nil {
		begun := time.Now()
		if loaded, err := n.loadFile(); loaded || err != nil {
			n.metrics.Observe("slices", time.Since(begun), err, time.Now())
		}
	}
	rejected := n.rejected
	n.rejected = nil
	n.metrics.RejectTotal("cdi", totals(n.cdi.Rejected()))
	now := time.Now()
	allocations = n.apply(n.withClaimUIDs(allocations))
	all := n.withCDI(allocations, n.withoutDrivers(n.withHeld(allocations, n.slices())), now)
	allocations, all = n.plugin.identify(allocations, all, now)
	n.passthrough.Store(hasPassthrough(all))
	n.attachments.update(allocations, all)
	return allocations, all, rejected
}

// withClaimUIDs returns the allocations with the UIDs of claims of classic DRA that CDI specs alone tell. The argument is not
// changed.
func (n *node) withClaimUIDs(allocations []podresources.Allocation) []podresources.Allocation {
	shared := true
	for i := range allocations {
		if a := &allocations[i]; !a.Classic() || a.ClaimUID != "" {
			continue
		}
		uid := n.cdi.ClaimUID(allocations[i].CDI)
		if uid == "" {
			continue
		}
		if shared {
			allocations, shared = slices.Clone(allocations), false
		}
		allocations[i].ClaimUID = uid
	}
	return allocations
}

// withHeld returns the inventory with the devices that it had while they have been held. A kubelet that starts deletes the slices
// of its node (wipeResourceSlices in pkg/kubelet/cm/dra/plugin), drivers take seconds to publish them again, and who holds a
// device holds it on. The argument is not changed.
func (n *node) withHeld(allocations []podresources.Allocation, listed driver.Inventory) driver.Inventory {
	held := driver.Inventory{}
	for i := range allocations {
		id := allocations[i].Device
		if _, ok := listed[id]; ok {
			continue
		}
		if entry, ok := n.before[id]; ok {
			held[id] = entry
		}
	}
	if len(held) > 0 {
		maps.Copy(held, listed)
		listed = held
	}
	n.before = listed
	return listed
}

// withoutDrivers returns the inventory with a mark on the devices whose driver is gone from the node.
func (n *node) withoutDrivers(listed driver.Inventory) driver.Inventory {
	drivers := map[string]bool{}
	for id := range listed {
		if listed[id].Local {
			drivers[id.Driver] = true
		}
	}
	gone := n.driver.Gone(drivers)
	if len(gone) == 0 {
		return listed
	}
	marked := maps.Clone(listed)
	for id, entry := range listed {
		if entry.Local && gone[id.Driver] {
			entry.DriverGone = true
			marked[id] = entry
		}
	}
	return marked
}

func hasPassthrough(all driver.Inventory) bool {
	for id := range all {
		if all[id].Kind == driver.KindPassthrough {
			return true
		}
	}
	return false
}

// slices returns the devices that slices list: those of the file, where there is one, else of the API server.
func (n *node) slices() driver.Inventory {
	if n.file != nil || n.kube == nil {
		return n.listed
	}
	listed, _ := n.kube.Inventory()
	return listed
}

// apply completes the allocations by what is known of their claims, by the file and the API server, of which that knows
// better, and of their pods.
func (n *node) apply(allocations []podresources.Allocation) []podresources.Allocation {
	facts := podresources.Facts{Claims: n.claims, Pods: n.pods.All()}
	if n.kube == nil {
		return facts.Apply(allocations)
	}
	if known := n.kube.Claims(); len(n.claims) == 0 {
		facts.Claims = known
	} else {
		facts.Claims = maps.Clone(n.claims)
		maps.Copy(facts.Claims, known)
	}
	return facts.Apply(allocations)
}

// withCDI returns the inventory with the devices that somebody holds, or held a while ago, and no slice lists, as far as
// their CDI specs and their names tell.
func (n *node) withCDI(allocations []podresources.Allocation, listed driver.Inventory, now time.Time) driver.Inventory {
	for i := range allocations {
		a := &allocations[i]
		if _, ok := listed[a.Device]; ok {
			continue
		}
		d, known := n.cdiIDs[a.Device]
		h, found := n.cdi.Lookup(a.CDI)
		h, named := inventory.Named(a.Device, h)
		if found || named {
			d.hardware, known = h, true
		}
		if known {
			d.held = now
			n.cdiIDs[a.Device] = d
		}
	}
	if len(n.cdiIDs) == 0 {
		return listed
	}
	all := make(driver.Inventory, len(listed)+len(n.cdiIDs))
	for id, d := range n.cdiIDs {
		if now.Sub(d.held) > rememberHeld {
			delete(n.cdiIDs, id)
			continue
		}
		all[id] = driver.Entry{Hardware: d.hardware}
	}
	maps.Copy(all, listed)
	return all
}

// loadFile reads the inventory file and returns true if it has changed. What can not be read, or not be parsed at all,
// leaves what was known before.
func (n *node) loadFile() (bool, error) {
	data, changed, err := n.file.Load()
	if err != nil || !changed {
		return false, err
	}
	listed, slicesRejected, err := inventory.ParseSlices(data, n.name)
	if err != nil {
		return false, err
	}
	facts, claimsRejected, err := kube.ParseClaims(data)
	if err != nil {
		return false, err
	}
	n.listed, n.claims = listed, facts
	for _, r := range slicesRejected {
		n.rejected = append(n.rejected, exporter.RejectedInput{Input: "slices", Reason: r.Reason, Count: r.Count})
	}
	for _, r := range claimsRejected {
		n.rejected = append(n.rejected, exporter.RejectedInput{Input: "claims", Reason: r.Reason, Count: r.Count})
	}
	n.log.Debug("inventory file read", "devices", len(listed), "claims", len(facts))
	return true, nil
}

func totals(rejected []inventory.Rejection) map[string]uint64 {
	out := make(map[string]uint64, len(rejected))
	for _, r := range rejected {
		out[r.Reason] += uint64(max(r.Count, 0))
	}
	return out
}

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The names of the API server's sources in reports.
const (
	SourceSlices = "slices"
	SourceClaims = "claims"
	SourcePods   = "pods"
)

// Config is the configuration of a [Node].
type Config struct {
	API       API
	Name      string // the node's
	Selection podresources.Selection
	// Pods is the set that FollowPods updates.
	Pods *podresources.PodSet
	// Report receives the outcome of requests by source: the duration of a success, or an error
	// with a method Reason. It is called concurrently.
	Report func(source string, took time.Duration, err error)
	// Absent receives the reason why an optional source is not served or may not be read, which is
	// not a failure. It is called concurrently.
	Absent func(source string, err error)
	// LeftOut is called once for each driver of which slices or devices are left out
	// because they are beyond a bound. It is called concurrently.
	LeftOut func(driverName string)
	// Updated, if not nil, is called when a claim's allocation or reservations, or a wanted pod,
	// became known or changed. It is called concurrently.
	Updated func()
	Jitter  func() float64 // in [0, 1): spreads the requests of many nodes
	Now     func() time.Time
}

// Node holds the API server's data about one node: its slices, the claims that its kubelet lists,
// its pods, those that wait to be bound to it, and the DeviceTaintRules of the cluster. Its cost
// depends only on that node and on those rules. It is safe for concurrent use. Its methods return
// known data without requests, so that an API server that fails delays nothing.
type Node struct {
	config   Config
	versions *negotiator
	slices   *sliceSet
	claims   *claimSet
	lookups  podLookups

	taintRules taintRuleSet
	nominated  nominatedSet

	mu           sync.Mutex
	rejectedPods driver.Rejections
}

// NewNode returns a node without data. The Follow methods get the data.
func NewNode(config Config) *Node {
	n := &Node{
		config:       config,
		versions:     newNegotiator(config.API, config.Now),
		slices:       newSliceSet(config.Name, config.LeftOut),
		claims:       newClaimSet(),
		rejectedPods: driver.Rejections{},
		nominated:    nominatedSet{now: config.Now, pods: map[string]nominatedPod{}},
	}
	n.nominated.changed = n.updated
	n.claims.api, n.claims.versions, n.claims.labels = config.API, n.versions, config.Selection.ClaimLabels
	n.claims.jitter, n.claims.now = config.Jitter, config.Now
	n.claims.report = n.reporter(SourceClaims)
	n.claims.updated = n.updated
	n.lookups = podLookups{
		api: config.API, selection: &n.config.Selection, pods: config.Pods, budget: n.claims.budget,
		jitter: config.Jitter, report: n.claims.report, changed: n.updated, now: config.Now, wake: make(chan struct{}, 1),
	}
	return n
}

// FollowSlices updates the inventory until ctx ends, with one list and watch of the slices that
// name the node, and one of those that name none. If slices select nodes by labels, it also reads
// the labels of the node.
func (n *Node) FollowSlices(ctx context.Context) {
	report := joinedReport{report: n.reporter(SourceSlices)}
	var following sync.WaitGroup
	for half := range n.slices.halves {
		f := n.sliceFeed(half)
		f.report = report.half(half)
		following.Go(func() { n.slices.follow(ctx, half, f) })
	}
	following.Go(func() { n.followLabels(ctx) })
	following.Wait()
}

// updated reports new data that may change the holders.
func (n *Node) updated() {
	if n.config.Updated != nil {
		n.config.Updated()
	}
}

// FollowClaims reads the claims that the kubelet lists and the pods use, and the wanted pods, until
// ctx ends: each by its name, 10 per second with bursts of 64.
func (n *Node) FollowClaims(ctx context.Context) {
	var following sync.WaitGroup
	following.Go(func() { n.claims.follow(ctx) })
	following.Go(func() { n.lookups.follow(ctx) })
	following.Wait()
}

// FollowPods updates the set of pods until ctx ends.
func (n *Node) FollowPods(ctx context.Context) {
	n.podFeed().run(ctx)
}

// Want sets the kubelet's list and the claims and pods that are needed in addition to find the
// holders. They are requested.
func (n *Node) Want(allocations []podresources.Allocation, wanted podresources.Wanted) {
	n.claims.want(allocations, wanted.Claims)
	n.lookups.want(wanted.Pods)
}

// Wait waits until all wanted claims have been requested once, requests fail, or ctx ends. After
// it, claims with admin access are known as such before their first sample.
func (n *Node) Wait(ctx context.Context) { n.claims.wait(ctx) }

// Pending reports whether a response about a wanted claim is expected. It returns true for no
// longer than requests for all claims take, and false while the API server fails.
func (n *Node) Pending(claim podresources.Claim) bool { return n.claims.pending(claim) }

// Claims returns the facts of the wanted claims. The map is immutable.
func (n *Node) Claims() map[podresources.Claim]podresources.ClaimFacts { return n.claims.known() }

// Inventory returns the devices that slices offer to the node, and false if the slices have not
// been listed yet. It is immutable.
func (n *Node) Inventory() (driver.Inventory, bool) { return n.slices.inventory() }

// TaintRules returns the valid DeviceTaintRules of the cluster, sorted by name. They are immutable.
func (n *Node) TaintRules() []inventory.TaintRule { return n.taintRules.all() }

// Rejected returns the number of rejections so far in the input of a source.
func (n *Node) Rejected(source string) driver.Rejections {
	switch source {
	case SourceSlices:
		n.slices.mu.Lock()
		defer n.slices.mu.Unlock()
		return maps.Clone(n.slices.rejected)
	case SourceClaims:
		return n.claims.rejections()
	case SourceTaintRules:
		return n.taintRules.rejections()
	default:
		n.mu.Lock()
		defer n.mu.Unlock()
		return maps.Clone(n.rejectedPods)
	}
}

// Finding is the result of [Node.Check] for a source.
type Finding struct {
	Source string
	Text   string
	Err    error
}

// Check requests each source once. wanted is called when the pods have been listed.
func (n *Node) Check(ctx context.Context, allocations []podresources.Allocation,
	wanted func() podresources.Wanted,
) []Finding {
	out := []Finding{n.checkSlices(ctx), {}, {Source: SourcePods}}
	pods := n.podFeed()
	_, err := pods.list(ctx)
	if err != nil {
		err = withReason(err)
	}
	out[2].Text, out[2].Err = fmt.Sprintf("%d of this node", len(n.config.Pods.All())), err
	n.Want(allocations, wanted())
	out[1] = n.checkClaims(ctx)
	return append(out, n.checkTaintRules(ctx))
}

func (n *Node) checkSlices(ctx context.Context) Finding {
	finding := Finding{Source: SourceSlices}
	for half := range n.slices.halves {
		f := n.sliceFeed(half)
		if _, err := f.list(ctx); err != nil {
			finding.Err = err
			return finding
		}
	}
	devices, _ := n.Inventory()
	version, _ := n.versions.known()
	finding.Text = fmt.Sprintf("resource.k8s.io/%s: %d devices of this node", version, len(devices))
	return finding
}

// checkClaims gets all claims that are due.
func (n *Node) checkClaims(ctx context.Context) Finding {
	asked := 0
	var refused error
	for {
		claims, _ := n.claims.due()
		if len(claims) == 0 {
			text := fmt.Sprintf("%d of the %d that are held are known", len(n.Claims()), asked)
			return Finding{Source: SourceClaims, Text: text, Err: refused}
		}
		asked += len(claims)
		no, err := n.claims.fetchAll(ctx, claims)
		if err != nil {
			return Finding{Source: SourceClaims, Err: err}
		}
		refused = errors.Join(refused, no)
	}
}

func (n *Node) reporter(source string) func(took time.Duration, err error) {
	return func(took time.Duration, err error) { n.config.Report(source, took, err) }
}

func (n *Node) newFeed() *feed {
	return &feed{
		api: n.config.API, jitter: n.config.Jitter, now: n.config.Now, lost: func() {}, slowed: func() {},
		bounds: bounds{page: maxList, object: maxEvent}, limit: pageSize,
	}
}

func (n *Node) sliceFeed(half int) *feed {
	f := n.newFeed()
	f.path = func(ctx context.Context) (string, url.Values, error) {
		path, version, err := n.versions.path(ctx, "resourceslices")
		return path, sliceQuery(half, n.config.Name, version), err
	}
	f.lost = n.versions.forget
	f.slowed = n.slices.slowed
	f.fill = func() (func(json.RawMessage), func()) { return n.slices.fill(half) }
	f.update = func(object json.RawMessage, gone bool) { n.slices.update(half, object, gone) }
	return f
}

func (n *Node) podFeed() *feed {
	f := n.newPodFeed(n.config.Pods, podQuery(n.config.Name))
	f.report = n.reporter(SourcePods)
	return f
}

// newPodFeed returns a feed of the pods that a query selects, into a store.
func (n *Node) newPodFeed(store podStore, query url.Values) *feed {
	pods := &podFeed{pods: store, now: n.config.Now, selection: &n.config.Selection, rejected: n.rejectPod}
	f := n.newFeed()
	f.path = func(context.Context) (string, url.Values, error) { return podsPath, query, nil }
	f.fill, f.update = pods.fill, pods.update
	f.slowed = func() { n.rejectPod(driver.ReasonRateLimited) }
	return f
}

func (n *Node) rejectPod(reason driver.Reason) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rejectedPods[reason]++
}

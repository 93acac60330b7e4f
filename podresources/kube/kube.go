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
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The names of the sources that the API server is, in reports.
const (
	SourceSlices = "slices"
	SourceClaims = "claims"
	SourcePods   = "pods"
)

// Config are the parts of a [Node].
type Config struct {
	API       API
	Name      string // the node's
	Selection podresources.Selection
	// Pods is the set that FollowPods keeps up to date.
	Pods *podresources.PodSet
	// Report takes how each source does: what a success took, or what failed, with a method Reason. It is called by
	// several goroutines.
	Report func(source string, took time.Duration, err error)
	Jitter func() float64 // in [0, 1): spreads what many nodes do
	Now    func() time.Time
}

// Node is what the API server knows of one node: the slices that it is offered, the claims that its kubelet names, and its
// pods. What it costs depends on that node alone. Its methods may be called at once; what they return was known
// before, so that an API server that is away delays nothing.
type Node struct {
	config   Config
	versions *negotiator
	slices   *sliceSet
	claims   *claimSet

	mu           sync.Mutex
	rejectedPods map[string]uint64
}

// NewNode returns a node of which nothing is known before it is followed.
func NewNode(config Config) *Node {
	n := &Node{
		config:       config,
		versions:     newNegotiator(config.API, config.Now),
		slices:       &sliceSet{node: config.Name, undecided: make(chan struct{}, 1)},
		claims:       newClaimSet(),
		rejectedPods: map[string]uint64{},
	}
	n.claims.api, n.claims.versions, n.claims.labels = config.API, n.versions, config.Selection.ClaimLabels
	n.claims.jitter, n.claims.now = config.Jitter, config.Now
	n.claims.report = n.reporter(SourceClaims)
	return n
}

// FollowSlices keeps the inventory up to date until ctx ends: by one list and watch of the slices that name the node, and
// one of those that name none. Where slices select nodes by labels, those of the node are got too.
func (n *Node) FollowSlices(ctx context.Context) {
	report := joinedReport{report: n.reporter(SourceSlices)}
	var following sync.WaitGroup
	for half := range n.slices.halves {
		f := n.sliceFeed(half)
		f.report = report.half(half)
		following.Go(func() { f.run(ctx) })
	}
	following.Go(func() { n.followLabels(ctx) })
	following.Wait()
}

// FollowClaims gets the claims that the kubelet names until ctx ends.
func (n *Node) FollowClaims(ctx context.Context) { n.claims.follow(ctx) }

// FollowPods keeps the set of pods up to date until ctx ends.
func (n *Node) FollowPods(ctx context.Context) {
	n.podFeed().run(ctx)
}

// Want says what the kubelet lists: its claims are the ones that are asked for.
func (n *Node) Want(allocations []podresources.Allocation) { n.claims.want(allocations) }

// Wait waits until all of the wanted claims have been asked for once, but not while the API server can not be asked, and
// not longer than ctx. So an administrator's claim is known for one before its first moment is taken into account.
func (n *Node) Wait(ctx context.Context) { n.claims.wait(ctx) }

// Claims returns what is known of the wanted claims. The map is not to be changed, and will not change.
func (n *Node) Claims() map[podresources.Claim]podresources.ClaimFacts { return n.claims.known() }

// Inventory returns the devices that the slices offer to the node; false: the slices have not been listed yet. It is not
// to be changed, and will not change.
func (n *Node) Inventory() (driver.Inventory, bool) { return n.slices.inventory() }

// Rejected returns how many parts of an input (a source's name) were rejected so far, by reason.
func (n *Node) Rejected(source string) map[string]uint64 {
	switch source {
	case SourceSlices:
		n.slices.mu.Lock()
		defer n.slices.mu.Unlock()
		return maps.Clone(n.slices.rejected)
	case SourceClaims:
		return n.claims.rejections()
	default:
		n.mu.Lock()
		defer n.mu.Unlock()
		return maps.Clone(n.rejectedPods)
	}
}

// Finding is what [Node.Check] found of a source.
type Finding struct {
	Source string
	Text   string
	Err    error
}

// Check asks each source once.
func (n *Node) Check(ctx context.Context, allocations []podresources.Allocation) []Finding {
	n.Want(allocations)
	out := []Finding{n.checkSlices(ctx), n.checkClaims(ctx), {Source: SourcePods}}
	pods := n.podFeed()
	_, err := pods.list(ctx)
	out[2].Text, out[2].Err = fmt.Sprintf("%d of this node", len(n.config.Pods.All())), err
	return out
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
	return &feed{api: n.config.API, jitter: n.config.Jitter, now: n.config.Now, lost: func() {}}
}

func (n *Node) sliceFeed(half int) *feed {
	f := n.newFeed()
	f.path = func(ctx context.Context) (string, url.Values, error) {
		path, version, err := n.versions.path(ctx, "resourceslices")
		return path, sliceQuery(half, n.config.Name, version), err
	}
	f.lost = n.versions.forget
	f.replace = func(objects []json.RawMessage) { n.slices.replace(half, objects) }
	f.update = func(object json.RawMessage, gone bool) { n.slices.update(half, object, gone) }
	return f
}

func (n *Node) podFeed() *feed {
	pods := &podFeed{pods: n.config.Pods, selection: &n.config.Selection, rejected: n.rejectPod}
	f := n.newFeed()
	f.path = func(context.Context) (string, url.Values, error) { return podsPath, podQuery(n.config.Name), nil }
	f.replace, f.update = pods.replace, pods.update
	f.report = n.reporter(SourcePods)
	return f
}

func (n *Node) rejectPod(reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rejectedPods[reason]++
}

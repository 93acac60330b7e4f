package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
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
	// SliceBytes is the bound for the slices that name the node, and for the others; 0: MaxSliceBytes.
	SliceBytes int
	Book       Book // receives all facts of pods and claims
	// Report receives the outcome of requests by source: the duration of a success, or an error
	// with a method Reason. It is called concurrently.
	Report func(source string, took time.Duration, err error)
	// Absent receives the reason why an optional source is not served or may not be read, which is
	// not a failure. It is called concurrently.
	Absent func(source string, err error)
	// Reject receives what was rejected in the input of a source. It is called concurrently.
	Reject func(source string, rejected driver.Rejections)
	Jitter func() float64 // in [0, 1): spreads the requests of many nodes
}

// Book receives the facts about pods and claims. It is safe for concurrent use, and calls no method
// of the Node. A list, and an object that was read by its name, is valid as of the time of its
// request; an event as of its arrival.
type Book interface {
	// PodSink receives the pods that are bound to the node.
	podresources.PodSink

	// NominatedListed receives a complete list of the pods that wait to be bound to the node.
	NominatedListed(pods []podresources.PodFacts, asked time.Time)
	// NominatedChanged receives the new state of such a pod.
	NominatedChanged(pod podresources.PodFacts, at time.Time)
	// NominatedGone receives a pod that no longer waits: it was bound, deleted, or will be bound to
	// another node.
	NominatedGone(uid string, at time.Time)

	// PodRead receives a wanted pod.
	PodRead(pod podresources.PodFacts, asked time.Time)
	// ClaimRead receives a wanted claim; facts.Read is the time of the request.
	ClaimRead(claim podresources.Claim, facts podresources.ClaimFacts)
	// ClaimDeleted is called for a claim that does not exist. It may never have been read.
	ClaimDeleted(claim podresources.Claim, asked time.Time)
	// ClaimForgotten is called for a claim that is no longer wanted, and therefore no longer read.
	ClaimForgotten(claim podresources.Claim)
}

// Node gets the API server's data about one node: its pods, the pods that wait to be bound to it,
// and the claims that these and the kubelet name, which it gives to the Book; the node's slices;
// and the DeviceTaintRules of the cluster. Its cost depends only on that node and on those rules.
// It is safe for concurrent use. Its methods return known data without requests, so that a failure
// of the API server delays nothing.
type Node struct {
	config   Config
	versions *versions
	slices   *sliceSet
	reader   *reader

	taintRules    *objectSet[*taintRules]
	taintVersions *versions
}

// NewNode returns a node without data. The Follow methods get the data.
func NewNode(config Config) *Node {
	n := &Node{
		config:        config,
		versions:      &versions{api: config.API, list: resourceVersions()},
		taintVersions: &versions{api: config.API, list: taintRuleVersions()},
	}
	n.slices = newSliceSet(config.Name, cmp.Or(config.SliceBytes, MaxSliceBytes), n.rejecter(SourceSlices))
	n.taintRules = newTaintRuleSet(n.rejecter(SourceTaintRules))
	n.reader = newReader(&n.config, n.versions, n.reporter(SourceClaims))
	return n
}

// FollowSlices updates the inventory until ctx ends, with one list and watch of the slices that
// name the node, and one of those that name none.
func (n *Node) FollowSlices(ctx context.Context) {
	report := joinedReport{report: n.reporter(SourceSlices)}
	var following sync.WaitGroup
	for half := range n.slices.halves {
		f := n.sliceFeed(half)
		f.report = report.half(half)
		following.Go(func() { f.run(ctx) })
	}
	following.Wait()
}

// FollowClaims reads the wanted claims and pods until ctx ends: each by its name, 10 per second
// with bursts of 64.
func (n *Node) FollowClaims(ctx context.Context) { n.reader.follow(ctx) }

// FollowPods gives the Book the pods of the node until ctx ends.
func (n *Node) FollowPods(ctx context.Context) {
	f := n.podFeed(n.config.Book, podSelector(n.config.Name))
	f.report = n.reporter(SourcePods)
	f.run(ctx)
}

// Want sets the claims and pods that are needed to find the holders. They are requested.
func (n *Node) Want(wanted holders.Wanted) { n.reader.setWanted(wanted) }

// Wait waits until all wanted claims have been requested once, requests fail, or ctx ends. After
// it, claims with admin access are known as such before their first sample.
func (n *Node) Wait(ctx context.Context) { n.reader.wait(ctx) }

// Pending reports whether a response about a wanted claim is expected. It returns true for no
// longer than requests for all claims take, and false while the API server fails.
func (n *Node) Pending(claim podresources.Claim) bool { return n.reader.pending(claim) }

// Inventory returns the devices that slices offer to the node, and false if the slices have not
// been listed yet. It is immutable.
func (n *Node) Inventory() (driver.Inventory, bool) { return n.slices.inventory() }

// Finding is the result of [Node.Check] for a source.
type Finding struct {
	Source string
	Text   string
	Err    error
}

// Check follows each source until its first outcome, and reads the wanted claims once; wanted is
// called when the pods are known. Nothing else may follow the node meanwhile.
func (n *Node) Check(ctx context.Context, wanted func() holders.Wanted) []Finding {
	slices := Finding{Source: SourceSlices, Err: n.first(ctx, SourceSlices, n.FollowSlices)}
	devices, _ := n.Inventory()
	slices.Text = fmt.Sprintf("resource.k8s.io/%s: %d devices of this node", n.versions.known(), len(devices))
	pods := Finding{Source: SourcePods, Err: n.first(ctx, SourcePods, n.FollowPods)}
	n.Want(wanted())
	claims := Finding{Source: SourceClaims, Err: n.first(ctx, SourceClaims, n.readOnce)}
	all, found := n.reader.known()
	claims.Text = fmt.Sprintf("%d of the %d that are held are known", found, all)
	rules := Finding{Source: SourceTaintRules, Err: n.first(ctx, SourceTaintRules, n.FollowTaintRules)}
	rules.Text = fmt.Sprintf("resource.k8s.io/%s: %d rules of the cluster", n.taintVersions.known(), len(n.TaintRules()))
	if isPermanent(rules.Err) {
		rules.Text = fmt.Sprintf("not used, taints of DeviceTaintRules are unknown (optional): %v", rules.Err)
		rules.Err = nil
	}
	return []Finding{slices, claims, pods, rules}
}

// first follows a source until its first outcome (of claims: its first failure), or its end, and
// returns the error.
func (n *Node) first(ctx context.Context, source string, follow func(context.Context)) error {
	following, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	outcome := func(of string, err error) {
		if of == source && !errors.Is(err, context.Canceled) && (err != nil || of != SourceClaims) {
			stop(cmp.Or(err, errAnswered))
		}
	}
	before := n.config
	n.config.Report = func(of string, _ time.Duration, err error) { outcome(of, err) }
	n.config.Absent = outcome
	follow(following)
	n.config = before
	if err := context.Cause(following); err != nil && !errors.Is(err, errAnswered) {
		return withReason(err)
	}
	return nil
}

// readOnce reads the wanted claims once.
func (n *Node) readOnce(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { n.FollowClaims(ctx) })
	n.Wait(ctx)
	stop()
	reading.Wait()
}

func (n *Node) rejecter(source string) func(driver.Rejections) {
	return func(rejected driver.Rejections) {
		if len(rejected) > 0 {
			n.config.Reject(source, rejected)
		}
	}
}

func (n *Node) reporter(source string) func(took time.Duration, err error) {
	return func(took time.Duration, err error) { n.config.Report(source, took, err) }
}

// followOptional runs feeds of an optional source until ctx ends. If the objects are not served or
// may not be read, that is not a failure of the source: forget removes them, Config.Absent is
// called, and they are requested again every ten minutes.
func (n *Node) followOptional(ctx context.Context, source string, newFeed func() *feed, forget func()) {
	for ctx.Err() == nil {
		run, stop := context.WithCancel(ctx)
		f := newFeed()
		f.report = func(took time.Duration, err error) {
			if !isPermanent(err) {
				n.config.Report(source, took, err)
				return
			}
			forget()
			n.config.Absent(source, err)
			stop()
		}
		f.run(run)
		stop()
		driver.Pause(ctx, optionalAfter-time.Duration(n.config.Jitter()*float64(optionalAfter)/2))
	}
}

func (n *Node) newFeed(get getter, path, selector string, sink sink) *feed {
	return &feed{get: get, path: path, selector: selector, sink: sink, jitter: n.config.Jitter, limit: pageSize}
}

func (n *Node) sliceFeed(half int) *feed {
	f := n.newFeed(n.versions.get, "resourceslices", sliceSelector(half, n.config.Name), n.slices.halves[half])
	f.limit = slicePageSize
	return f
}

// podFeed returns a feed of the pods that a field selector selects, into a sink.
func (n *Node) podFeed(pods podresources.PodSink, selector string) *feed {
	return n.newFeed(n.config.API.Get, podsPath, selector, podFeed{podresources.PodReader{
		Sink: pods, Selection: &n.config.Selection, Reject: n.rejecter(SourcePods), Now: time.Now,
	}})
}

// The waiting times of requests to the API server. All are less up to a quarter or a half at
// random, so that the nodes of a cluster do not ask together.
const (
	// Failures are retried after firstDelay, and twice as long each time, up to maxDelay: an API
	// server that comes back is used within a minute. Errors that last until somebody changes the
	// cluster (forbidden, absent) are retried up to maxDelayPermanent apart.
	firstDelay        = time.Second
	maxDelay          = time.Minute
	maxDelayPermanent = 3 * time.Minute
	// optionalAfter is the time until an optional source that is not served, or may not be read, is
	// requested again.
	optionalAfter = 10 * time.Minute
	// neededAfter is the time until it is checked again whether a device has binding conditions,
	// which costs no request.
	neededAfter = 10 * time.Second

	// Requests that take longer have failed: of a page of a list or the opening of a watch, and of an
	// object by its name, which is small, and which others wait for.
	pageTimeout  = 20 * time.Second
	fetchTimeout = 5 * time.Second

	// watchTimeout is the shortest duration that a watch requests; with jitter it is up to twice as
	// long. A watch that has not ended watchGrace after its duration is canceled, since its
	// connection is dead.
	watchTimeout = 5 * time.Minute
	watchGrace   = 30 * time.Second

	// firstRefresh is the time until a claim is read again for the first time: by then its driver
	// has prepared it, and most likely set its status. The time doubles with each request. It is
	// also the shortest time between two requests because of changes of the claim's pods.
	firstRefresh = 5 * time.Second
	// refreshAfter is how long an object that was read by name is used before it is read again. The
	// allocation of a claim does not change while a pod holds it, and its status is read again soon
	// after the allocation and when the claim's pods change.
	refreshAfter = 10 * time.Minute
	// absentAfter is the time until an object is read again that does not exist, may not be read,
	// or disagrees with what the node says: the scheduler and the controllers follow each other
	// within seconds. It doubles with each request.
	absentAfter = 2 * time.Second
	// forgetAfter is how long an object is kept after it is no longer wanted: an answer of the
	// kubelet may leave a claim out for a moment.
	forgetAfter = time.Minute
)

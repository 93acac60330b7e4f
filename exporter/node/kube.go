package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// useKube makes the API server an input.
func (n *Node) useKube(c Config) {
	n.kube = kube.NewNode(kube.Config{
		API: c.API, Name: n.name, Selection: c.Selection, SliceBytes: c.SliceBytes, Book: n.book,
		Jitter: rand.Float64,
		Report: func(source string, took time.Duration, err error) { n.metrics.Observe(source, took, err, time.Now()) },
		Absent: n.metrics.Absent,
		Reject: func(source string, rejected driver.Rejections) { n.metrics.Reject(rejected.Of(source)...) },
	})
	n.asker.Server = n.kube
}

// UsesAPI reports whether the API server is used.
func (n *Node) UsesAPI() bool { return n.kube != nil }

// followKube follows the API server's objects about the node until ctx ends.
func (n *Node) followKube(ctx context.Context, following *sync.WaitGroup) {
	if n.file == nil {
		following.Go(func() { n.kube.FollowSlices(ctx) })
	}
	following.Go(func() { n.kube.FollowClaims(ctx) })
	following.Go(func() { n.kube.FollowTaintRules(ctx) })
	following.Go(func() { n.kube.FollowNominated(ctx, n.hasConditional) })
}

// Delays between attempts to follow the kubelet's Pods API. It is not served before Kubernetes
// 1.37, nor while the kubelet restarts.
const (
	podsRetry    = time.Second
	maxPodsRetry = 30 * time.Second
)

// followPods follows the pods through the kubelet's Pods API or, while that is not served, through
// the API server.
func (n *Node) followPods(ctx context.Context) {
	var server func() // stops to follow the API server; nil: it is not followed
	stop := func() {
		if server != nil {
			server()
			server = nil
		}
	}
	defer stop()
	delay, worked := podsRetry, false
	for ctx.Err() == nil {
		begun := time.Now()
		err := n.podsAPI.Follow(ctx, n.book, func() {
			stop()
			n.book.Watching(begun, time.Now())
			delay, worked = podsRetry, true
			n.metrics.Observe(kube.SourcePods, time.Since(begun), nil, time.Now())
		})
		n.book.Watching(time.Time{}, time.Now())
		if err == nil || ctx.Err() != nil {
			continue
		}
		switch {
		case n.kube != nil && server == nil:
			server = inBackground(ctx, n.kube.FollowPods)
		case n.kube == nil && worked:
			n.metrics.Observe(kube.SourcePods, time.Since(begun), err, time.Now())
		}
		driver.Pause(ctx, delay)
		delay = min(2*delay, maxPodsRetry)
	}
}

// inBackground runs a function until stop is called, which waits for its end.
func inBackground(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// withPending marks allocations of claims that the API server is about to describe, or that an
// inventory file with claims does not have yet. A claim without the UID of the known one of its
// name may be another one. The argument is not changed.
func (n *Node) withPending(allocations []podresources.Allocation) []podresources.Allocation {
	pending := func(podresources.Claim) bool { return n.claims }
	if n.kube != nil {
		pending = n.kube.Pending
	}
	claims, shared := n.book.Claims(), true
	for i := range allocations {
		a := &allocations[i]
		if claim := claims[a.Claim]; a.ByPlugin() || !pending(a.Claim) || claim.Covers(a) && a.ClaimUID == claim.UID {
			continue
		}
		if shared {
			allocations, shared = slices.Clone(allocations), false
		}
		allocations[i].Pending = true
	}
	return allocations
}

// CheckPods follows the kubelet's Pods API until it has listed all pods, and returns their number.
// It must not be called while Watch runs.
func (n *Node) CheckPods(ctx context.Context) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	synced := false
	err := n.podsAPI.Follow(ctx, n.book, func() {
		synced = true
		cancel()
	})
	if synced || err == nil {
		n.podsServed = true
		return n.book.NumPods(), nil
	}
	return 0, err
}

// CheckAPI makes each kind of request to the API server once, including one for the claims of the
// node's pods. It returns no findings if the API server is not used. After CheckPods has succeeded,
// the right to list pods is not needed.
func (n *Node) CheckAPI(ctx context.Context) []kube.Finding {
	if n.kube == nil {
		return nil
	}
	found := n.kube.Check(ctx, func() holders.Wanted {
		held, _ := n.book.Holds(time.Now(), time.Time{})
		return held.Wanted
	})
	for i := range found {
		if found[i].Source != kube.SourcePods {
			continue
		}
		found[i].Text = fmt.Sprintf("%d of this node", n.book.NumPods())
		if n.podsServed && driver.ReasonOf(found[i].Err) == driver.ReasonForbidden {
			found[i].Text, found[i].Err = "they may not be listed, and need not be: the kubelet serves the Pods API", nil
		}
	}
	return found
}

// PodUID returns the UID of a pod, as the Pods API or the API server reported it, "" if unknown.
func (n *Node) PodUID(pod podresources.Pod) string { return n.book.UID(pod) }

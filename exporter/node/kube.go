package node

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// How long an answer of the kubelet waits for the API server to describe its new claims. The first
// answer waits longer: the connection has to be made, and only the start of the program is delayed.
const (
	claimWait      = 150 * time.Millisecond
	firstClaimWait = 2 * time.Second
)

// useKube makes the API server an input.
func (n *Node) useKube(c Config) {
	n.kube = kube.NewNode(kube.Config{
		API: c.API, Name: n.name, Selection: c.Selection, SliceBytes: c.SliceBytes, Book: n.book,
		Jitter: rand.Float64, Now: time.Now,
		Report: func(source string, took time.Duration, err error) { n.metrics.Observe(source, took, err, time.Now()) },
		Absent: n.metrics.Absent,
		LeftOut: func(driverName string) {
			n.log.Warn("a driver has more slices or devices than are kept: the rest is left out", "driver", driverName)
		},
	})
}

// UsesAPI reports whether the API server is asked.
func (n *Node) UsesAPI() bool { return n.kube != nil }

// followKube follows what the API server knows of the node until ctx ends.
func (n *Node) followKube(ctx context.Context, following *sync.WaitGroup) {
	if n.file == nil {
		following.Go(func() { n.kube.FollowSlices(ctx) })
	}
	following.Go(func() { n.kube.FollowClaims(ctx) })
	following.Go(func() { n.kube.FollowTaintRules(ctx) })
	following.Go(func() { n.kube.FollowNominated(ctx, n.conditional.Load) })
}

// wantClaims asks the API server for the claims of the node's pods, and waits a moment for them.
func (n *Node) wantClaims(ctx context.Context) {
	held, _ := n.book.Holds(time.Now(), time.Time{})
	n.kube.Want(held.Wanted)
	wait := claimWait
	if !n.claimsAsked {
		wait, n.claimsAsked = firstClaimWait, true
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	n.kube.Wait(ctx)
	for _, source := range []string{kube.SourceSlices, kube.SourceClaims, kube.SourcePods, kube.SourceTaintRules} {
		n.metrics.RejectTotal(source, n.kube.Rejected(source))
	}
}

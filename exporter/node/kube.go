package node

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// useKube makes the API server an input.
func (n *Node) useKube(c Config) {
	n.kube = kube.NewNode(kube.Config{
		API: c.API, Name: n.name, Selection: c.Selection, SliceBytes: c.SliceBytes, Book: n.book,
		Jitter: rand.Float64, Now: time.Now,
		Report: func(source string, took time.Duration, err error) { n.metrics.Observe(source, took, err, time.Now()) },
		Absent: n.metrics.Absent,
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

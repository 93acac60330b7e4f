package program

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/common/version"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// claimWait is how long an answer of the kubelet waits for what the API server says of claims that are new in it.
const claimWait = 150 * time.Millisecond

// useKube makes the one client of the API server, where there is one and it may be asked.
func (n *node) useKube(o *options) error {
	if o.kube == "off" {
		return nil
	}
	client, err := kube.NewClient(o.kubeconfig, "dra-exporter/"+version.Version)
	switch {
	case errors.Is(err, kube.ErrNoCluster):
		n.log.Debug("the API server is not used", "reason", err)
		return nil
	case err != nil:
		return badFlag("kubeconfig", err)
	}
	n.log.Info("using the API server", "address", client.Host())
	n.kube = kube.NewNode(kube.Config{
		API: client, Name: n.name, Selection: o.selection, Pods: n.pods, Jitter: rand.Float64, Now: time.Now,
		Report: func(source string, took time.Duration, err error) { n.metrics.Observe(source, took, err, time.Now()) },
	})
	return nil
}

// followKube follows what the API server knows of the node until ctx ends.
func (n *node) followKube(ctx context.Context, following *sync.WaitGroup) {
	if n.file == nil {
		following.Go(func() { n.kube.FollowSlices(ctx) })
	}
	following.Go(func() { n.kube.FollowClaims(ctx) })
}

// wantClaims has the API server asked for the claims of an answer, and gives it a moment.
func (n *node) wantClaims(ctx context.Context, allocations []podresources.Allocation) {
	n.kube.Want(allocations)
	ctx, cancel := context.WithTimeout(ctx, claimWait)
	defer cancel()
	n.kube.Wait(ctx)
	for _, source := range []string{kube.SourceSlices, kube.SourceClaims, kube.SourcePods} {
		n.metrics.RejectTotal(source, n.kube.Rejected(source))
	}
}

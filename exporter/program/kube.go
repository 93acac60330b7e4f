package program

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/common/version"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/podresources/kube/access"
)

// How long an answer of the kubelet waits for what the API server says of claims that are new in it. The first answer has more time:
// the connection has to be made first, and nobody waits for more than the start of the program.
const (
	claimWait      = 150 * time.Millisecond
	firstClaimWait = 2 * time.Second
)

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
	n.api = client
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

// sourceReviews is the API server as it decides who may read pages, in reports.
const sourceReviews = "reviews"

// guard has the API server decide who may read the pages, where that is switched on. Probes stay open.
func (n *node) guard(o *options, pages http.Handler) (http.Handler, error) {
	if !o.kubeAuthorization {
		return pages, nil
	}
	if n.api == nil {
		return nil, badFlag("web.kube-authorization", errors.New("there is no API server to ask: --kube=off, or neither in a cluster nor given a --kubeconfig"))
	}
	if *o.web.WebConfigFile == "" {
		n.log.Warn("tokens are sent without TLS, unless something else encrypts: see --web.config.file")
	}
	return access.NewGate(access.Config{API: n.api, Open: []string{"/healthz", "/readyz"}, Report: func(took time.Duration, err error) {
		n.metrics.Observe(sourceReviews, took, err, time.Now())
	}}).Handler(pages), nil
}

// wantClaims has the API server asked for the claims of an answer, and gives it a moment.
func (n *node) wantClaims(ctx context.Context, allocations []podresources.Allocation) {
	n.kube.Want(allocations)
	wait := claimWait
	if !n.claimsAsked {
		wait, n.claimsAsked = firstClaimWait, true
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	n.kube.Wait(ctx)
	for _, source := range []string{kube.SourceSlices, kube.SourceClaims, kube.SourcePods} {
		n.metrics.RejectTotal(source, n.kube.Rejected(source))
	}
}

package node

import (
	"context"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// Delays between attempts to follow the kubelet's Pods API. It is not served before Kubernetes
// 1.37, nor while the kubelet restarts.
const (
	podsRetry    = time.Second
	maxPodsRetry = 30 * time.Second
)

// followPods follows the pods through the kubelet's Pods API or, while that is not served, through
// the API server.
func (n *Node) followPods(ctx context.Context) {
	var server fallback
	defer server.stop()
	delay, worked := podsRetry, false
	for ctx.Err() == nil {
		begun := time.Now()
		err := n.podsAPI.Follow(ctx, n.book, func() {
			server.stop()
			n.book.Watching(begun, time.Now())
			delay, worked = podsRetry, true
			n.metrics.Observe(kube.SourcePods, time.Since(begun), nil, time.Now())
		})
		n.book.Watching(time.Time{}, time.Now())
		if err == nil || ctx.Err() != nil {
			continue
		}
		switch {
		case n.kube != nil:
			server.start(ctx, n.kube.FollowPods)
		case worked:
			n.metrics.Observe(kube.SourcePods, time.Since(begun), err, time.Now())
		}
		pause := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		delay = min(2*delay, maxPodsRetry)
	}
}

// fallback is a goroutine that runs only while something better is not available.
type fallback struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// start starts the goroutine, unless it is running.
func (f *fallback) start(ctx context.Context, run func(context.Context)) {
	if f.cancel != nil {
		return
	}
	ctx, f.cancel = context.WithCancel(ctx)
	f.running.Go(func() { run(ctx) })
}

// stop stops the goroutine and waits for its end.
func (f *fallback) stop() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	f.running.Wait()
	f.cancel = nil
}

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

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

package kube

import (
	"context"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// SourceNominated is the source of the pods that wait to be bound to the node.
const SourceNominated = "nominated"

// nominatedSelector selects the pods for which the scheduler has chosen the node but which it has
// not bound. The scheduler sets status.nominatedNodeName before it waits for the binding conditions
// of a claim's devices (KEP-5278, on since Kubernetes 1.35). The API server has an index of
// spec.nodeName, so that it examines only pods without a node.
func nominatedSelector(node string) string { return "spec.nodeName=,status.nominatedNodeName=" + node }

// nominatedPods gives a Book the pods that wait to be bound to the node.
type nominatedPods struct{ book Book }

var _ podresources.PodSink = nominatedPods{}

// PodsListed implements [podresources.PodSink].
func (n nominatedPods) PodsListed(pods []podresources.PodFacts, _ bool, asked time.Time) {
	for i := range pods {
		pods[i].Nominated = true
	}
	n.book.NominatedListed(pods, asked)
}

// PodChanged implements [podresources.PodSink].
func (n nominatedPods) PodChanged(pod podresources.PodFacts, at time.Time) {
	pod.Nominated = true
	n.book.NominatedChanged(pod, at)
}

// PodDeleted implements [podresources.PodSink].
func (n nominatedPods) PodDeleted(uid string, at time.Time) { n.book.NominatedGone(uid, at) }

// FollowNominated gives the Book the pods that wait to be bound to the node until ctx ends. It uses
// one list and watch, which start when needed first returns true: when a device of the node has
// binding conditions. If the pods may not be listed, none is known.
func (n *Node) FollowNominated(ctx context.Context, needed func() bool) {
	for !needed() {
		if !driver.Pause(ctx, neededAfter) {
			return
		}
	}
	n.followOptional(ctx, SourceNominated,
		func() *feed { return n.podFeed(nominatedPods{n.config.Book}, nominatedSelector(n.config.Name)) },
		func() { n.config.Book.NominatedListed(nil, n.config.Now()) })
}

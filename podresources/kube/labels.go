package kube

import (
	"context"
	"fmt"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

const nodesPath = "/api/v1/nodes/"

// followLabels reads the labels of the node when a slice selects nodes by labels (network-attached
// devices), and periodically from then on. If they may not be read, such devices are omitted and
// counted.
func (n *Node) followLabels(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-n.slices.undecided:
	}
	delay := newRetryDelay(n.config.Jitter)
	for ctx.Err() == nil {
		wait := refreshAfter
		if labels, err := n.labels(ctx); err != nil {
			wait = delay.next(err)
		} else {
			delay.reset()
			n.slices.setLabels(labels)
		}
		if !driver.Pause(ctx, wait) {
			return
		}
	}
}

// labels reads the labels of the node.
func (n *Node) labels(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var node metav1.PartialObjectMetadata
	if err := getJSON(ctx, n.config.API, nodesPath+url.PathEscape(n.config.Name), maxObjectSize, &node); err != nil {
		return nil, fmt.Errorf("get node: %w", err)
	}
	return node.Labels, nil
}

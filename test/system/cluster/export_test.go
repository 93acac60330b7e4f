package cluster

import (
	"context"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// BuildPrograms and StartPrograms are the two halves of Start. Tests call them separately when one
// user has the caches and another user runs the cluster.
func BuildPrograms(ctx context.Context, o Options) (node.Config, error) { return o.build(ctx) }

// StartPrograms starts a cluster with programs that are already built.
func StartPrograms(ctx context.Context, o Options, programs node.Config) (*Cluster, error) {
	return o.start(ctx, programs)
}

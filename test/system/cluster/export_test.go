package cluster

import (
	"context"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// BuildPrograms and StartPrograms are the two halves of Start, which another user than the one who
// has the caches may not do both.
func BuildPrograms(ctx context.Context, o Options) (node.Config, error) { return o.build(ctx) }

// StartPrograms starts a cluster of programs that are built.
func StartPrograms(ctx context.Context, o Options, programs node.Config) (*Cluster, error) {
	return o.start(ctx, programs)
}

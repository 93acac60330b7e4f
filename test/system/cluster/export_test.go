package cluster

import (
	"context"
	"errors"
	"os"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// BuildPrograms and StartPrograms are the two halves of Start. Tests call them separately when one
// user has the caches and another user runs the cluster.
func BuildPrograms(ctx context.Context, o Options) (node.Config, error) { return o.build(ctx) }

// StartPrograms starts a cluster with programs that are already built.
func StartPrograms(ctx context.Context, o Options, programs node.Config) (*Cluster, error) {
	return o.start(ctx, programs)
}

// SuperviseUnread runs a cluster whose output nobody reads and whose standard input is empty. It
// returns when the cluster's process has ended.
func SuperviseUnread(ctx context.Context, path string, programs node.Config) error {
	dir, err := newFolder(path)
	if err != nil {
		return err
	}
	c := &Cluster{kube: programs.Program, dir: dir}
	cmd := c.nodeCommand(ctx, programs, false)
	cmd.ExtraFiles = []*os.File{dir.lock}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = writer
	err = errors.Join(reader.Close(), cmd.Start(), writer.Close())
	if err == nil {
		_ = cmd.Wait() // Says only that process 1 ended early.
	}
	return errors.Join(err, dir.lock.Close())
}

package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// A new cluster removes the folders of killed clusters and keeps those of running clusters.
func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	live := must.Get(newFolder(""))(t)
	killed := must.Get(newFolder(""))(t)
	for _, f := range []*folder{live, killed} {
		must.Do(t, f.setPID(os.Getpid()))
		must.Do(t, os.MkdirAll(filepath.Join(f.path, "etcd", "member"), 0o755))
	}
	if err := killed.lock.Close(); err != nil { // The kernel does the same when a process is killed.
		t.Fatal(err)
	}
	next := must.Get(newFolder(""))(t)
	if _, err := os.Stat(killed.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the killed cluster is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(live.path, "etcd", "member")); err != nil {
		t.Errorf("the folder of the cluster that lives has lost its files: %v", err)
	}
	for _, f := range []*folder{live, next} {
		expect.OK(t, f.remove())
	}
}

// Only one cluster can use a folder at a time.
func TestFolderIsTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	if len(path) > longestDir {
		var err error
		//nolint:usetesting // the path of t.TempDir is too long for sockets
		if path, err = os.MkdirTemp("", "c"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(path) })
	}
	first := must.Get(newFolder(path))(t)
	if _, err := newFolder(path); err == nil {
		t.Error("a second cluster gets the folder too")
	}
	must.Do(t, first.remove())
	second, err := newFolder(path)
	must.That(t, err == nil, "the folder is not free again: %v", err)
	expect.OK(t, second.remove())
}

// BuildPrograms and StartPrograms are the two halves of Start. Tests call them separately when one
// user has the caches and another user runs the cluster.
func BuildPrograms(ctx context.Context, o Options) (node.Config, error) { return o.build(ctx) }

// StartPrograms starts a cluster with programs that are already built.
func StartPrograms(ctx context.Context, o Options, programs node.Config) (*Cluster, error) {
	return o.start(ctx, programs)
}

package cluster_test

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
)

// nobody is the ID of a user without any privileges.
const nobody = 65534

// startUnprivileged starts a cluster without containers as user nobody.
func startUnprivileged(t *testing.T) *holder {
	programs := must.Get(cluster.BuildPrograms(t.Context(), cluster.Options{Log: os.Stderr}))(t)
	programs.Program = lend(t, programs.Program)
	programs.Kubelet, programs.Self = programs.Program, lend(t, programs.Self)
	encoded := must.Get(json.Marshal(programs))(t)
	cmd := exec.Command(lend(t, os.Args[0]))
	cmd.Dir = os.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return startHolder(t, cmd, string(encoded))
}

// lend copies a program to a folder where every user can run it.
func lend(t *testing.T, program string) string {
	dir, err := os.MkdirTemp("", "lent") //nolint:usetesting // Other users can't enter the folder above t.TempDir.
	must.Do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.Do(t, os.Chmod(dir, 0o755))
	lent := filepath.Join(dir, filepath.Base(program))
	if os.Link(program, lent) == nil {
		return lent
	}
	from, err := os.Open(program) // The program may be on another file system, so it is copied.
	must.Do(t, err)
	defer from.Close()
	to, err := os.OpenFile(lent, os.O_CREATE|os.O_WRONLY, 0o755)
	must.Do(t, err)
	must.Get(io.Copy(to, from))(t)
	must.Do(t, to.Close())
	return lent
}

// testUnprivileged checks that pods get their devices in the cluster of an unprivileged user, and
// that nothing of the cluster remains after Ctrl-C.
func testUnprivileged(t *testing.T, h *holder) {
	h.await(t, "ready")
	info := must.Get(os.Stat(h.dir))(t)
	expect.Is(t, info.Sys().(*syscall.Stat_t).Uid, nobody, "the cluster is of user")
	c := must.Get(cluster.Attach(h.dir))(t)
	kubectl(t, c, "apply", "-f", "testdata/workloads.yaml")
	awaitPods(t, c)
	testPodResources(t, c)
	h.end(t, syscall.SIGINT)
}

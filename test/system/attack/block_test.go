package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// pipe replaces a file with a pipe without a writer. Opening it normally blocks, as on a hung file
// system.
func pipe(t testing.TB, path string) string {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	must.Do(t, syscall.Mkfifo(path, 0o600))
	return path
}

// expectTicks waits for a snapshot that is newer than now, which proves that the sampler is not
// blocked.
func (g *target) expectTicks(what string) {
	now := float64(time.Now().UnixNano()) / 1e9
	g.await(what, func() error {
		a, err := g.scrape(honestTimeout)
		if err != nil {
			return err
		}
		at, err := valueOf(a.body, "dra_exporter_snapshot_timestamp_seconds")
		if err == nil && at <= now {
			err = fmt.Errorf("the snapshot is %.1f s older than the attack", now-at)
		}
		return err
	})
}

// expectShown checks that a scrape soon shows a text.
func (g *target) expectShown(text string) {
	g.t.Helper()
	for begun := time.Now(); ; time.Sleep(honestInterval) {
		a, err := g.scrape(honestTimeout)
		switch {
		case err == nil && strings.Contains(a.body, text):
			return
		case time.Since(begun) > honestTimeout:
			g.t.Errorf("not shown after %v: %s (%v)", honestTimeout, text, err)
			return
		}
	}
}

// expectStop checks that the program ends soon after SIGTERM.
func (g *target) expectStop() {
	begun := time.Now()
	status := g.Stop()
	g.t.Logf("it ended %v after SIGTERM with status %d", time.Since(begun).Round(10*time.Millisecond), status)
	expect.That(g.t, status == 0, "exit status %d on SIGTERM", status)
}

func pipesForFiles(t testing.TB) {
	g := newTarget(t)
	pipe(t, g.node.Path("cdi/claim.json"))
	pipe(t, g.node.Path("inventory.yaml"))
	g.expectTicks("ticking while files are pipes")
	g.await("aware that the inventory is no file", func() error {
		a, err := g.scrape(honestTimeout)
		if err != nil {
			return err
		}
		if up, err := valueOf(a.body, `dra_exporter_source_up{source="slices"}`); err != nil || up != 0 {
			return fmt.Errorf("source_up of the slices is %v, %w", up, err)
		}
		return nil
	})
	g.await("as before the attack", g.complete)
	g.expectStop()
}

// blockingCgroup restarts the kubelet and makes it answer without pods, so that the exporter reads
// the cgroups of the pods. One of them blocks. Then the kubelet gets another pod.
func blockingCgroup(t testing.TB) {
	const uid, pod = "aaaaaaaa-0000-0000-0000-000000000000", "pod-of-some-deployment-0"
	node := largenode.Start(t)
	must.Do(t, os.Mkdir(node.CgroupOf(uid), 0o755))
	must.Do(t, node.MakeLogs("team-0", pod, uid))
	g := launch(t, node, nil)
	g.await("aware of the node", g.complete)
	pipe(t, filepath.Join(node.CgroupOf(uid), "cgroup.events"))
	setPods := func(name string) {
		var err error
		if err = node.Kubelet.SetPods(); name != "" {
			device := podresourcestest.Device(largenode.Driver, largenode.Name, "gpu-0")
			claim := podresourcestest.Claim("team-0", "claim", device)
			err = node.Kubelet.SetPods(podresourcestest.Pod("team-0", name, podresourcestest.Container("main", claim)))
		}
		must.Do(t, err)
	}
	setPods("")
	must.Do(t, node.Kubelet.Restart(t.Context(), 0, 0))
	g.expectShown(`reason="empty_disbelieved",source="podresources"`)
	setPods("late")
	g.expectShown(`pod="late"`)
	g.expectStop()
}

// pipesForFlags starts the program with a pipe for each file that a flag names. The program must
// report the pipe and end immediately.
func pipesForFlags(t testing.TB) {
	file := pipe(t, filepath.Join(t.TempDir(), "pipe"))
	for _, args := range [][]string{
		{"--source.scrape.config=" + file},
		{"--inventory.file=" + file},
		{"--web.config.file=" + file},
		{"--kubeconfig=" + file},
		{"top", "--http.config.file=" + file},
	} {
		flag := args[len(args)-1]
		cmd := exec.Command(os.Getenv(programPath), append(args, "--web.listen-address=127.0.0.1:0")...)
		if args[0] == "top" {
			cmd.Args = append([]string{cmd.Path}, args...)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		expectUsageError(t, cmd)
		name, _, _ := strings.Cut(flag, "=")
		expect.That(t, strings.Contains(stderr.String(), name), "%s: said %q", flag, &stderr)
	}
}

// expectUsageError starts the program and expects that it ends by itself with the status of a usage
// error.
func expectUsageError(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	must.Do(t, cmd.Start())
	begun := time.Now()
	hung := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // the state tells
	switch {
	case !hung.Stop():
		t.Errorf("%v: it hangs", cmd.Args[1:])
	case cmd.ProcessState.ExitCode() != 2:
		t.Errorf("%v: %v", cmd.Args[1:], cmd.ProcessState)
	default:
		t.Logf("%v: it ended after %v", cmd.Args[1:], time.Since(begun).Round(10*time.Millisecond))
	}
}

// fullPipeForUsage starts each command of the program with a wrong flag. Its output goes to a full
// pipe without a reader.
func fullPipeForUsage(t testing.TB) {
	reader, full, err := os.Pipe()
	must.Do(t, err)
	defer reader.Close()
	defer full.Close()
	for err == nil { // until there is no place
		_ = full.SetWriteDeadline(time.Now().Add(time.Second))
		_, err = full.Write(make([]byte, 4096))
	}
	for _, command := range []string{"serve", "top", "check", "gateway"} {
		cmd := exec.Command(os.Getenv(programPath), command, "--no-such-flag")
		cmd.Stderr = full
		expectUsageError(t, cmd)
	}
}

// fullPipeForLog fills the pipe to which the program logs. After the line with the program's
// address, nothing is read from the pipe.
func fullPipeForLog(t testing.TB) {
	g := launchBy(t, largenode.Start(t), []string{"bash", "-c", `exec "$@" 2> >(
		sed -u '/Listening on/q' >&2
		exec 3<&0
		dd if=/dev/zero of=/proc/self/fd/3 bs=4096 oflag=nonblock 2>/dev/null
		exec tail --pid=$$ -f /dev/null >/dev/null 2>&1
	)`, "bash"}, map[string]string{"log.level": "debug"}) // each tick logs
	g.await("aware of the node", g.complete)
	f := g.during(attackTime()+time.Second, func(ctx context.Context) { <-ctx.Done() })
	g.expectHeld(t, f)
	g.expectStop()
}

// valueOf returns the value of a series, given as in the text format.
func valueOf(body, series string) (float64, error) {
	_, after, found := strings.Cut(body, "\n"+series+" ")
	if !found {
		return 0, errors.New("no " + series)
	}
	value, _, _ := strings.Cut(after, "\n")
	return strconv.ParseFloat(value, 64)
}

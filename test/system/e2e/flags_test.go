package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// run runs the program to its end.
func run(t *testing.T, args []string, env ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	cmd := command(ctx, args, env...)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	_ = cmd.Run() // the state tells how
	expect.That(t, ctx.Err() == nil, "%q: still runs after %v", args, startTimeout)
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
}

// An error in a flag or a file is reported in one line that names it, with exit status 2.
func TestBadFlags(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	config := n.scrapeConfig(strings.Replace(endpoint("mine", "http://127.0.0.1:1"), "quantity: power",
		"quantity: powder", 1))
	for _, args := range [][]string{ // what args[1:] name
		{"--kube=maybe", "--kube", "maybe"},
		{"--inventory.file=" + n.write("bad.yaml", "a: [b"), "--inventory.file", n.path("bad.yaml")},
		{"--source.scrape.config=" + config, "--source.scrape.config", "mine", "powder"},
		{"juggle", "juggle"},
	} {
		status, stdout, stderr := run(t, args[:1])
		if status != 2 || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("%q: exit status %d, output %q and %q, want 2 and one line of errors", args[0], status, stdout, stderr)
		}
		for _, want := range args[1:] {
			if !strings.Contains(stderr, want) {
				t.Errorf("%q: output %q, want it to name %q", args[0], stderr, want)
			}
		}
	}
}

// An address in use is not a wrong flag: it may be free when the program is restarted.
func TestAddressTaken(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := start(t, n.flags(nil))
	status, _, stderr := run(t, n.flags(flags{"web.listen-address": p.Address}).Args())
	expect.That(t, status == 1 && strings.Contains(stderr, "address already in use"),
		"exit status %d, want 1; output %q", status, stderr)
}

// Every flag is also an environment variable. The flag takes precedence.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	f := n.flags(nil)
	delete(f, "node-name")
	start(t, f, "DRA_EXPORTER_NODE_NAME=by-env").scrape().want(1, "dra_exporter_node_info", "node", "by-env")
	start(t, f, "NODE_NAME=by-field").scrape().want(1, "dra_exporter_node_info", "node", "by-field")
	start(t, n.flags(nil), "DRA_EXPORTER_NODE_NAME=by-env").scrape().want(1, "dra_exporter_node_info", "node", nodeName)

	delete(f, "kubelet.podresources-socket")
	delete(f, "kubelet.root")
	n.kubelet.Stop()
	n.mkdir("root/pod-resources")
	must.Do(t, n.kubelet.Start(n.path("root/pod-resources/kubelet.sock")))
	p := start(t, f, "DRA_EXPORTER_KUBELET_ROOT="+n.path("root"))
	p.eventually("up", func() bool { return p.scrape().is(1, "dra_exporter_source_up", "source", "podresources") })
}

// A source that is disabled has no metrics.
func TestSourceOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := start(t, n.flags(flags{"no-source.cpu": ""}))
	p.eventually("up", func() bool { return p.scrape().is(1, "dra_exporter_source_up", "source", "netdev") })
	p.scrape().wantNone("dra_exporter_source_up", "source", "cpu")
}

// check reports the content of each input, what is missing and the remedy. It fails if no device
// has telemetry.
func TestCheck(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedList(t)))
	f := n.flags(flags{"inventory.file": filepath.Join("testdata", "recorded", "resourceslices.yaml")})
	status, stdout, stderr := run(t, append(f.Args(), "check"))
	expect.That(t, status == 1, "no device has telemetry: exit status %d, want 1: %s", status, stderr)
	for _, want := range []string{
		nodeName, "4 claims", "10 devices", "gpu-7", "netdev", "cpu",
		"(no_source): no source reads devices of gpu.example.com", "the UIDs of",
		"none of 10 devices has telemetry",
	} {
		expect.That(t, strings.Contains(stdout, want), "output of check without %q:\n%s", want, stdout)
	}
	n.kubelet.Stop()
	status, stdout, _ = run(t, append(f.Args(), "check"))
	if status != 1 || !strings.Contains(stdout, "there is no such socket") || strings.Contains(stdout, "rpc error") {
		t.Errorf("without the kubelet: exit status %d, want 1; output\n%s", status, stdout)
	}
	if _, stdout, _ = run(t, append(f.Args(), "check", "-v")); !strings.Contains(stdout, "rpc error") {
		t.Errorf("-v does not print the whole error:\n%s", stdout)
	}
}

// Warnings make check fail only with --strict.
func TestCheckStrict(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	args := append(n.flags(flags{}).Args(), "check")
	status, stdout, stderr := run(t, append(args, "-o", "json"))
	var report struct {
		Failures, Warnings int
		Findings           []struct{ Status, What, Text string }
	}
	err := json.Unmarshal([]byte(stdout), &report)
	must.That(t, err == nil, "%v: %s %s", err, stdout, stderr)
	expect.That(t, status == 0 && report.Failures == 0 && report.Warnings != 0 && len(report.Findings) >= 6,
		"exit status %d, report %+v: %s", status, report, stderr)
	status, stdout, _ = run(t, append(args, "--strict"))
	expect.That(t, status == 1 && strings.Contains(stdout, "\nWARN: 0 failures, "),
		"strict: exit status %d, want 1:\n%s", status, stdout)
}

// top prints the devices and their holders.
func TestTop(t *testing.T) {
	t.Parallel()
	_, f := busyNode(t)
	p := start(t, f)
	p.eventually("charged", p.charged)
	status, stdout, stderr := run(t, []string{"top", "--once", "--url=http://" + p.Address})
	expect.That(t, status == 0, "exit status %d, want 0: %s", status, stderr)
	for _, want := range []string{"2 devices, 1 held", "gpu-0", "50.0 %", "100 W", "team/a"} {
		expect.That(t, strings.Contains(stdout, want), "output of top without %q:\n%s", want, stdout)
	}
	status, _, stderr = run(t, []string{"top", "--once", "--url=http://127.0.0.1:1"})
	expect.That(t, status == 1 && strings.Count(stderr, "\n") == 1,
		"without an exporter: exit status %d, want 1 and one line: %s", status, stderr)
}

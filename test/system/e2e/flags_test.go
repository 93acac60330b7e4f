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
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	cmd := command(ctx, args, env...)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	_ = cmd.Run() // the state tells how
	expect.That(t, ctx.Err() == nil, "%q: still runs after %v", args, startTimeout)
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
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

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// check says of how many pods that hold devices the cgroups can be read, and what follows if not.
func TestCheckWorks(t *testing.T) {
	t.Parallel()
	uid := func(i int) string { return fmt.Sprintf("6c61b571-6b3c-4d5e-8f0b-9b8d5c1a%04d", i) }
	n := newNode(t)
	n.setPods(pod("team", "seen", "claim-seen", gpu(0)), pod("team", "blind", "claim-blind", gpu(1)))
	for i, name := range []string{"seen", "blind"} {
		n.addPod("team", name, uid(i))
	}
	args := append(n.flags(flags{"inventory.file": n.inventory(gpus(2))}).Args(), "check", "-o", "json")
	reads := func(i int) {
		n.mkdir(cgroup(uid(i)))
		n.write(cgroup(uid(i))+"/cpu.stat", "usage_usec 1000\n")
		n.write(cgroup(uid(i))+"/memory.stat", "anon 4096\nfile 4096\npgfault 10\n")
	}
	const some = "CPU and memory of 1 of 2 pods that hold devices are readable, storage of 0, network of 0; for the " +
		"others it is unknown whether a claim is stalled (no_host)"
	for i, want := range []struct {
		before       func()
		status, text string
	}{
		{func() { reads(0) }, "WARN", some},
		{func() { n.endPod(uid(1)) }, "WARN", some}, // it has no cgroup
		{
			func() { reads(1) },
			"OK", "CPU and memory of 2 of 2 pods that hold devices are readable, storage of 0, network of 0",
		},
	} {
		want.before()
		_, stdout, stderr := run(t, args)
		var report struct {
			Findings []struct{ Status, What, Text string }
		}
		err := json.Unmarshal([]byte(stdout), &report)
		must.That(t, err == nil, "%v: %s %s", err, stdout, stderr)
		at := slices.IndexFunc(report.Findings, func(f struct{ Status, What, Text string }) bool {
			return f.What == "pods' cgroups"
		})
		expect.That(t, at >= 0 && report.Findings[at].Status == want.status && report.Findings[at].Text == want.text,
			"check %d: %s", i, stdout)
	}
}

// The program reports the version that the Makefile sets: with --version and in a metric.
func TestVersion(t *testing.T) {
	t.Parallel()
	version, revision := os.Getenv("VERSION"), os.Getenv("REVISION")
	must.That(t, version != "" && version != "unknown" && revision != "",
		"VERSION=%q and REVISION=%q are not a version: run make test-e2e in a clone", version, revision)
	out, err := command(t.Context(), []string{"--version"}).CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	said := string(out)
	if want := fmt.Sprintf("dra-exporter, version %s (branch: ", version); !strings.HasPrefix(said, want) ||
		!strings.Contains(said, "revision: "+revision+")") ||
		!regexp.MustCompile(`build date: +\d{4}-\d\d-\d\dT`).MatchString(said) {
		t.Errorf("--version prints %s, want %s…, revision %s and a date", said, want, revision)
	}
	p := start(t, newNode(t).flags(flags{}))
	_, ok := p.scrape().value("dra_exporter_build_info", "version", version, "revision", revision)
	expect.That(t, ok, "there is no dra_exporter_build_info of version %s and revision %s", version, revision)
}

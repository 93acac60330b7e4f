package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/simnode"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// runDemo runs the demo on a free port, and returns its status and output.
func runDemo(ctx context.Context, t *testing.T, args ...string) (status int, stdout, stderr string) {
	var out strings.Builder
	status, stderr = runDemoTo(ctx, t, &out, args...)
	return status, out.String(), stderr
}

// runDemoTo is runDemo with a writer for the demo's output.
func runDemoTo(ctx context.Context, t *testing.T, stdout io.Writer, args ...string) (status int, stderr string) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var errs strings.Builder
	status = run(ctx, append([]string{"--listen=" + live.FreeAddress(t)}, args...), stdout, &errs)
	left, err := os.ReadDir(temporary)
	expect.That(t, err == nil && len(left) == 0, "left behind: %v, %v", left, err)
	return status, errs.String()
}

// TestDemo runs the demo for a few seconds, with the exporter's own main function, a real socket
// and real files.
func TestDemo(t *testing.T) {
	status, stdout, stderr := runDemo(t.Context(), t, "--for=3s", "--seed=2")
	expect.That(t, status == 0 && stderr == "", "status %d: %s", status, stderr)
	for _, want := range []string{
		`page +http://127`, `top +go run ./exporter/cmd/dra-exporter top --url=127.0.0.1:\d+\n`,
		`pods simulated +(1[8-9]|2[0-5])`, `joined +23 devices \(1[6-9] of them held\), (1|2)\d claims, (1|2)\d pods`,
		`energy +(\d+\.\d) kJ`,
	} {
		expect.That(t, regexp.MustCompile(want).MatchString(stdout), "output does not match %q:\n%s", want, stdout)
	}
}

// The node with one driver alone: its devices, and the pods that hold them.
func TestOneDriver(t *testing.T) {
	for driverName, want := range map[string]string{
		simnode.NICDriver:      `joined +4 devices \(3 of them held\), 3 claims, 3 pods`,
		simnode.PluginResource: `joined +3 devices \(2 of them held\), 0 claims, 2 pods`,
	} {
		status, stdout, stderr := runDemo(t.Context(), t, "--for=3s", "--driver="+driverName)
		expect.That(t, status == 0 && stderr == "" && regexp.MustCompile(want).MatchString(stdout),
			"%s: status %d: %s\n%s", driverName, status, stderr, stdout)
	}
}

// interrupter interrupts a demo as soon as it prints something.
type interrupter struct {
	strings.Builder
	interrupt func()
}

func (i *interrupter) Write(text []byte) (int, error) {
	i.interrupt()
	return i.Builder.Write(text)
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &interrupter{interrupt: cancel}
	status, stderr := runDemoTo(ctx, t, out)
	expect.That(t, status == 0 && strings.Contains(out.String(), "pods simulated"),
		"status %d: %s\n%s", status, out, stderr)
}

func TestNothingJoined(t *testing.T) {
	status, _, stderr := runDemo(t.Context(), t, "--for=1ns")
	expect.That(t, status == exitFailure && strings.Contains(stderr, errNothing.Error()), "status %d: %s", status, stderr)
}

func TestBadFlags(t *testing.T) {
	for _, flag := range []string{"--for=soon", "--seed=-1", "--hang=3s", "more"} {
		if status, _, stderr := runDemo(t.Context(), t, flag); status != exitUsage || !strings.Contains(stderr, "usage:") {
			t.Errorf("%s: status %d: %s", flag, status, stderr)
		}
	}
	if status, _, _ := runDemo(t.Context(), t, "--help"); status != 0 {
		t.Errorf("--help: status %d", status)
	}
	status, _, stderr := runDemo(t.Context(), t, "--for=2s", "--listen=nowhere.invalid:1")
	expect.That(t, status == exitFailure && strings.Contains(stderr, "run exporter"),
		"bad address: status %d: %s", status, stderr)
}

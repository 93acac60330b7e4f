package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// runDemo runs the demo on a free port, and returns its status and output.
func runDemo(ctx context.Context, t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return runDemoOn(ctx, t, freeAddress(t), args...)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return address
}

func runDemoOn(
	ctx context.Context, t *testing.T, address string, args ...string,
) (status int, stdout, stderr string) {
	t.Helper()
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var out, errs strings.Builder
	status = run(ctx, append([]string{"--listen=" + address}, args...), &out, &errs)
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	return status, out.String(), errs.String()
}

// TestDemo runs the demo for a few seconds, with the exporter's own main function, a real socket
// and real files.
func TestDemo(t *testing.T) {
	status, stdout, stderr := runDemo(t.Context(), t, "--for=4s", "--seed=2")
	if status != 0 || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	for _, want := range []string{
		`page +http://127`, `top +go run ./exporter/cmd/dra-exporter top --url=127.0.0.1:\d+\n`,
		`pods simulated +(1[6-9]|2[0-3])`, `joined +20 devices \(1[4-7] of them held\), (1|2)\d claims, (1|2)\d pods`,
		`energy +(\d+\.\d) kJ`,
	} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("output does not match %q:\n%s", want, stdout)
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	status, stdout, stderr := runDemo(ctx, t)
	if status != 0 || !strings.Contains(stdout, "pods simulated") {
		t.Errorf("status %d: %s\n%s", status, stdout, stderr)
	}
}

func TestNothingJoined(t *testing.T) {
	status, _, stderr := runDemo(t.Context(), t, "--for=1ns")
	if status != exitFailure || !strings.Contains(stderr, errNothing.Error()) {
		t.Errorf("status %d: %s", status, stderr)
	}
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
	if status != exitFailure || !strings.Contains(stderr, "run exporter") {
		t.Errorf("bad address: status %d: %s", status, stderr)
	}
}

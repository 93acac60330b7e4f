// Package live runs programs for system tests, and queries a real Prometheus.
package live

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// startTimeout is how long a program may take to start on a slow machine.
const startTimeout = 3 * time.Minute

// Start starts a program and waits until it answers a GET of ready with status 200. The test fails
// at once if the program ends before. When the test ends, the program is interrupted and awaited.
// Its output is logged if the test fails.
func Start(t testing.TB, cmd *exec.Cmd, client *http.Client, ready string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the status is in ProcessState
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
		_ = log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), said)
		}
	})
	Await(t, startTimeout, ready+" answers", func() error {
		err := Get(client, ready)
		select {
		case <-ended:
			t.Fatalf("%s ended before %s answered: %v", filepath.Base(cmd.Path), ready, cmd.ProcessState)
		default:
		}
		return err
	})
}

// Get returns an error unless a GET of an address is answered with status 200.
func Get(client *http.Client, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, response.Status)
	}
	return nil
}

// Await retries until there is no error. It ends the test if that takes too long.
func Await(t testing.TB, atMost time.Duration, what string, try func() error) {
	t.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(atMost); ; <-again.C {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s: %v", atMost, what, err)
		}
	}
}

// FreeAddress returns a local address that is not in use.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

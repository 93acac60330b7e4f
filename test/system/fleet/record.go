package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/test/live"
)

// recording has the expositions of the program at two times.
type recording struct {
	first, last []byte
	at          time.Time     // of the last
	between     time.Duration // the two
}

// record returns the exposition of the program of a checkout on its simulated node, as soon as its
// counters count, and that of a later time.
func record(ctx context.Context, checkout string, lasting time.Duration) (r recording, err error) {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return r, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "demo")
	build := exec.CommandContext(ctx, "go", "build", "-C", checkout, "-o", program, "./test/demo")
	if said, err := build.CombinedOutput(); err != nil {
		return r, fmt.Errorf("build the demo of %s: %w\n%s", checkout, err, said)
	}
	address, release, err := live.Reserve()
	if err != nil {
		return r, err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	demo := exec.CommandContext(ctx, program, "--listen="+address)
	demo.Stderr = os.Stderr
	demo.Cancel = func() error { return demo.Process.Signal(syscall.SIGTERM) }
	demo.WaitDelay = time.Minute
	if err := demo.Start(); err != nil {
		return r, fmt.Errorf("start the demo: %w", err)
	}
	defer func() {
		cancel()
		_ = demo.Wait() // it ends by the signal
	}()
	page := "http://" + address + "/metrics"
	const attempts = 120
	counted := regexp.MustCompile(`(?m)^dra_claim_allocated_seconds_total.* [1-9][0-9.]*$`)
	var began time.Time
	for i := 0; ; i++ { // until it listens, and counters count: they are 0 at first
		if r.first, err = get(ctx, page); counted.Match(r.first) {
			began = time.Now()
			break
		}
		if i == attempts {
			return r, errors.Join(errors.New("the counters of the demo do not increase"), err)
		}
		wait(ctx, time.Second)
	}
	wait(ctx, lasting)
	r.last, err = get(ctx, page)
	r.at = time.Now()
	r.between = r.at.Sub(began)
	return r, err
}

// wait waits for a time, or until the context ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// get returns the body of a page.
func get(ctx context.Context, url string) (body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// record returns the exposition of the program of a checkout, on its simulated node, after the node
// has run for a time.
func record(ctx context.Context, checkout string, lasting time.Duration) (exposition []byte, err error) {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "demo")
	build := exec.CommandContext(ctx, "go", "build", "-C", checkout, "-o", program, "./test/demo")
	if said, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the demo of %s: %w\n%s", checkout, err, said)
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	demo := exec.CommandContext(ctx, program, "--listen="+address)
	demo.Stderr = os.Stderr
	demo.Cancel = func() error { return demo.Process.Signal(syscall.SIGTERM) }
	demo.WaitDelay = time.Minute
	if err := demo.Start(); err != nil {
		return nil, fmt.Errorf("start the demo: %w", err)
	}
	defer func() {
		cancel()
		_ = demo.Wait() // it ends by the signal
	}()
	page := "http://" + address + "/metrics"
	const attempts = 60
	for range attempts { // until it listens
		if _, err = get(ctx, page); err == nil {
			break
		}
		wait(ctx, time.Second)
	}
	wait(ctx, lasting)
	return get(ctx, page)
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

func freeAddress(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

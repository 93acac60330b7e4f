package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/kmsg"
	"github.com/dra-exporter/dra-exporter/exporter/program"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

// runExporter runs the program's own main function on the node until ctx ends.
func (d demo) runExporter(ctx context.Context, node *simnode.Node, stderr io.Writer) error {
	args := append(node.Args(), "--web.listen-address="+d.listen, "--web.last-scrape-timeout=0s", "--log.level=warn",
		"--fit.after=20s", "--stalled.after="+simnode.StalledAfter(d.hang).String())
	sources := []program.Source{
		{
			Name: "sim", Help: "Read the simulated devices.",
			New: func(driver.Host) (driver.Source, error) { return node.Source(), nil },
		},
		{Name: "kmsg", Help: "Read the simulated kernel log.", New: kmsg.FromHost},
	}
	if status := program.Run(ctx, args, sources, io.Discard, stderr); status != 0 {
		return fmt.Errorf("run exporter: exit status %d", status)
	}
	return nil
}

// readyTimeout is how long the exporter may take to be ready, and to answer.
const readyTimeout = 30 * time.Second

// waitReady waits for the exporter's first snapshot. It returns an error if the exporter ends
// before, or takes too long.
func waitReady(ctx context.Context, listen string, exporter <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !ready(ctx, listen) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the exporter: %w", ctx.Err())
		case err := <-exporter:
			return cmp.Or(err, errEnded)
		case <-ticker.C:
		}
	}
	return nil
}

func ready(ctx context.Context, listen string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

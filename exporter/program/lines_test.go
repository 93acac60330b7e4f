package program

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// gate is a writer that blocks until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(p)
}

func (g *gate) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.String()
}

// Logging never waits for a writer that blocks. Lines above the limits of lines and of bytes are
// dropped and counted. The count is logged when the writer no longer blocks. The method end waits
// no longer than its timeout.
func TestLogNeverWaits(t *testing.T) {
	for name, size := range map[string]int{"lines": 10, "bytes": 10_000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &gate{open: make(chan struct{})}
				q := newLineQueue(g)
				log := slog.New(slog.NewTextHandler(q, nil))
				dropped := 0
				q.onDrop(func(n int) { dropped += n; log.Warn("dropped", "lines", n) })
				go q.run()
				begun, text := time.Now(), strings.Repeat("x", size)
				const all = 3 * maxLines
				for range all {
					log.Info("line", "text", text)
				}
				took := time.Since(begun)
				expect.That(t, took <= 0, "logging took %v", took)
				q.end(flushTimeout)
				expect.Is(t, time.Since(begun), flushTimeout, "the end took")
				close(g.open)
				synctest.Wait()
				if written := strings.Count(g.text(), text); written == 0 || written+dropped != all || dropped < all/2 {
					t.Errorf("%d lines are written, %d dropped, of %d", written, dropped, all)
				}
				if want := fmt.Sprintf("msg=dropped lines=%d", dropped); !strings.Contains(g.text(), want) {
					t.Errorf("the log does not have %q", want)
				}
			})
		})
	}
}

// The program serves, samples and ends although it logs each tick to a full pipe that nobody reads.
func TestFullPipeForTheLog(t *testing.T) {
	var ends [2]int
	must.Do(t, syscall.Pipe2(ends[:], syscall.O_CLOEXEC))
	reader, full := os.NewFile(uintptr(ends[0]), "reader"), os.NewFile(uintptr(ends[1]), "log")
	must.Do(t, syscall.SetNonblock(ends[1], true))
	for {
		if _, err := syscall.Write(ends[1], make([]byte, 4096)); err != nil {
			break
		}
	}
	must.Do(t, syscall.SetNonblock(ends[1], false))
	address := live.FreeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	status := make(chan int)
	dir := t.TempDir()
	go func() {
		status <- Run(ctx, []string{
			"--kube=off", "--web.last-scrape-timeout=0s", "--log.level=debug",
			"--kubelet.root=" + dir, "--path.podlogs=" + dir,
			"--web.listen-address=" + address, "--path.procfs=" + dir, "--path.sysfs=" + dir,
		}, nil, io.Discard, full)
	}()
	for seen := map[string]bool{}; len(seen) < 3; time.Sleep(10 * time.Millisecond) {
		url := "http://" + address + "/metrics"
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		must.Do(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if _, after, found := strings.Cut(string(body), "\ndra_exporter_snapshot_timestamp_seconds "); found && err == nil {
			at, _, _ := strings.Cut(after, "\n")
			seen[at] = true
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	expect.Is(t, <-status, exitOK, "exit status")
	_ = reader.Close() // this ends the write that blocks
	_ = full.Close()
}

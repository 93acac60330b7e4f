package program

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
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

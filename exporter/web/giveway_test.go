package web

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// All answers but those to probes wait while other work is more urgent.
func TestRequestsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		urgent := make(chan struct{})
		handler := NewHandler(Config{
			MetricsPath: "/metrics", Scrapes: &Scrapes{}, Pprof: true, Latest: func() *exposition.Snapshot { return nil },
			GiveWay: func(ctx context.Context) {
				select {
				case <-urgent:
				case <-ctx.Done():
				}
			},
		})
		answered := map[string]time.Time{}
		var mu sync.Mutex
		var asking sync.WaitGroup
		routes := Routes("/metrics")
		for _, route := range routes {
			if route.Kind == KindMetrics || route.Kind == KindProfile {
				continue // they need a renderer, and seconds
			}
			asking.Go(func() {
				r := httptest.NewRequest(http.MethodGet, route.Example, http.NoBody)
				handler.ServeHTTP(httptest.NewRecorder(), r)
				mu.Lock()
				defer mu.Unlock()
				answered[route.Example] = time.Now()
			})
		}
		begun := time.Now()
		time.Sleep(time.Second)
		close(urgent)
		asking.Wait()
		for _, route := range routes {
			at, asked := answered[route.Example]
			expect.That(t, !asked || at.Equal(begun) == (route.Kind == KindProbe),
				"%s is answered after %v", route.Example, at.Sub(begun))
		}
		expect.That(t, len(answered) >= 10, "only %d paths were asked for", len(answered))
	})
}

// An answer that is being made or sent waits at its next piece.
func TestPiecesGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		var pause time.Duration
		d.giveWay = func(context.Context) { time.Sleep(pause) }
		took := func(encoding string) time.Duration {
			from := time.Now()
			d.get(httptest.NewRecorder(), "a", encoding, nil)
			return time.Since(from)
		}
		d.before = func() { pause = time.Second }
		expect.Is(t, took("gzip"), time.Second, "an answer of one piece is made in")
		d.body = make([]byte, 3*pieceSize)
		d.latest = &exposition.Snapshot{}
		if took := took(""); took < 4*time.Second {
			t.Errorf("an answer is made, and three pieces are sent, in %v", took)
		}
	})
}

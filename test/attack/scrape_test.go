package attack

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// scrapeAttacks are those of many clients.
func scrapeAttacks() []attack {
	return []attack{
		{name: "200 concurrent gzip scrapes", run: concurrentScrapes},
	}
}

// attackTime is how long clients attack.
func attackTime() time.Duration {
	if *all {
		return 10 * time.Second
	}
	return 2 * time.Second
}

func concurrentScrapes(t testing.TB) {
	g := newTarget(t, nil)
	g.expectHeld(t, g.during(attackTime(), func(ctx context.Context) {
		var clients sync.WaitGroup
		for range 200 {
			clients.Go(func() { g.scrapeOver(ctx) })
		}
		clients.Wait()
	}))
}

// scrapeOver scrapes again and again, with a connection of its own.
func (g *target) scrapeOver(ctx context.Context) {
	client := newClient()
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url("/metrics"), http.NoBody)
		if err != nil {
			g.t.Error(err)
			return
		}
		request.Header.Set("Accept-Encoding", "gzip")
		response, err := client.Do(request)
		if err != nil {
			return // the program has ended, or the attack
		}
		_, _ = io.Copy(io.Discard, response.Body) // as above
		response.Body.Close()
	}
}

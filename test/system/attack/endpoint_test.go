package attack

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// hostileEndpoints answer with as many series as an answer can have. Each is of another device with
// a long name, and each answer has other devices.
func hostileEndpoints(t testing.TB) {
	var pages [2][]byte
	long := strings.Repeat("y", 210)
	for n := range pages {
		for i := range 1 << 16 {
			pages[n] = fmt.Appendf(pages[n], "reading_%d{uuid=\"GPU-%s%06d%d\"} 1\n", i%15, long, i, n)
		}
	}
	var answers atomic.Int64
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(pages[answers.Add(1)%2]) // the program may not read all of it
	}))
	t.Cleanup(hostile.Close)
	node := largenode.Start(t)
	config := must.Get(os.ReadFile(node.Path("scrape.yaml")))(t)
	g := launch(t, node, map[string]string{"source.scrape.config": node.Write(t, "hostile.yaml",
		string(config)+largenode.Endpoint("hostile-a", hostile.URL)+largenode.Endpoint("hostile-b", hostile.URL))})
	logged := func() int { return strings.Count(g.Log(), "an input exceeds its limits") }
	f := g.during(10*attackTime(), func(ctx context.Context) {
		enough := 2 * (answers.Load() + int64(attackTime().Seconds()))
		for answers.Load() < enough || *before == "" && logged() < 2 {
			if pause(ctx) != nil {
				return
			}
		}
	})
	g.expectHeld(t, f)
	if *before == "" && logged() != 2 {
		t.Errorf("that there is more than is used is not logged once for each endpoint:\n%s", g.Log())
	}
}

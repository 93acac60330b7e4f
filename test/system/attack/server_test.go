package attack

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
)

// redirectingServer redirects the requests for pods to another server.
func redirectingServer(t testing.TB) {
	var stolen atomic.Int64
	thief := serveAPI(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			stolen.Add(1)
		}
	}))
	node := largenode.Start(t)
	server := &redirects{Handler: newSliceHandler(t, node, 0), thief: thief}
	g := launch(t, node, map[string]string{
		"kube": "auto", "inventory.file": "", "kubeconfig": kubeconfig(t, node, serveAPI(t, server)),
	})
	g.await("aware of the node", g.complete)
	f := g.during(attackTime(), func(ctx context.Context) {
		for server.count.Load() == 0 {
			if pause(ctx) != nil {
				break
			}
		}
		<-ctx.Done()
	})
	g.expectHeld(t, f)
	n := stolen.Load()
	expect.That(t, n <= 0, "another server got the token %d times", n)
	expect.That(t, server.count.Load() != 0, "the exporter did not ask for what is redirected")
	g.expectShown(`dra_exporter_source_errors_total{reason="redirected",source="pods"}`)
}

// redirects answers requests for pods with redirects, and passes all others to a handler.
type redirects struct {
	http.Handler
	thief string
	count atomic.Int64
}

// ServeHTTP implements [http.Handler].
func (s *redirects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/pods") {
		s.count.Add(1)
		http.Redirect(w, r, s.thief+r.URL.Path, http.StatusTemporaryRedirect)
		return
	}
	s.Handler.ServeHTTP(w, r)
}

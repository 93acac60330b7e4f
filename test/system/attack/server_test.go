package attack

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/largenode"
)

// serverAttacks are the attacks by an API server, or by another server in its place.
func serverAttacks() []attack {
	return []attack{
		{name: "redirects, an endless list and a storm of bookmarks", short: true, run: hostileServer},
	}
}

// maxProcessor is the limit of the share of a processor that the exporter of a large node uses.
const maxProcessor = 0.6

// hostileServer redirects the list of pods to another server, lists slices of other nodes without
// end, and sends bookmarks of the node's slices as fast as it can.
func hostileServer(t testing.TB) {
	var stolen atomic.Int64
	thief := serveAPI(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			stolen.Add(1)
		}
	}))
	node := largenode.Start(t)
	server := &stormServer{Handler: newSliceHandler(t, node, 0), thief: thief}
	g := launch(t, node, map[string]string{
		"kube": "auto", "inventory.file": "", "kubeconfig": kubeconfig(t, node, serveAPI(t, server)),
	})
	g.await("aware of the node", g.complete)
	processor := func() float64 {
		a, err := g.scrape(honestTimeout)
		if err != nil {
			t.Fatal(err)
		}
		seconds, err := valueOf(a.body, "process_cpu_seconds_total")
		if err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	used := processor()
	f := g.during(2*attackTime(), func(ctx context.Context) {
		for server.redirected.Load() == 0 || server.pages.Load() == 0 || server.bookmarks.Load() < 10_000 {
			if pause(ctx) != nil {
				break
			}
		}
		<-ctx.Done()
	})
	used = (processor() - used) / f.lasted.Seconds()
	g.t.Logf("%d redirects, %d pages of one list, %d bookmarks; %.2f processors",
		server.redirected.Load(), server.pages.Load(), server.bookmarks.Load(), used)
	g.expectHeld(t, f)
	if n := stolen.Load(); n > 0 {
		t.Errorf("another server got the token %d times", n)
	}
	if server.redirected.Load() == 0 || server.pages.Load() == 0 || server.bookmarks.Load() == 0 {
		t.Error("the exporter did not ask for what attacks it")
	}
	if used > maxProcessor {
		timed(t).Errorf("the exporter takes %.2f processors, want %.2f at most", used, maxProcessor)
	}
	g.expectShown(`dra_exporter_source_errors_total{reason="redirected",source="pods"}`)
}

// stormServer serves the node's slices of a handler, and attacks on all other paths.
type stormServer struct {
	http.Handler
	thief                        string
	redirected, pages, bookmarks atomic.Int64
}

// ServeHTTP chooses the attack by the path.
func (s *stormServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	slices, query := strings.HasSuffix(r.URL.Path, "/resourceslices"), r.URL.Query()
	switch {
	case strings.HasSuffix(r.URL.Path, "/pods"):
		s.redirected.Add(1)
		http.Redirect(w, r, s.thief+r.URL.Path, http.StatusTemporaryRedirect)
	case slices && query.Get("watch") != "":
		for n := 6; ; n++ {
			_, err := fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1",`+
				`"metadata":{"resourceVersion":"%d"}}}`+"\n", n)
			if err != nil {
				return // the exporter has closed it
			}
			s.bookmarks.Add(1)
		}
	case slices && query.Get("fieldSelector") == "spec.nodeName=":
		page := s.pages.Add(1)
		_, _ = fmt.Fprintf(w, `{"metadata":{"resourceVersion":"5","continue":"after-%d"},"items":[]}`, page)
	default:
		s.Handler.ServeHTTP(w, r)
	}
}

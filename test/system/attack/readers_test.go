package attack

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/largenode"
)

// sharers is how many pods share the one device of a node that is small and busy.
const sharers = 250

// readerAttacks are those of clients that read all there is: each path of the server's own table.
func readerAttacks() []attack {
	all := func(kinds ...string) []clients {
		var out []clients
		for _, route := range web.Routes("/metrics") {
			if route.Kind == web.KindProfile {
				continue // off by default
			}
			for _, kind := range kinds {
				out = append(out, clients{kind + ":" + route.Example, 24})
			}
		}
		return out
	}
	large := func(crowd ...clients) func(testing.TB) {
		return func(t testing.TB) {
			attackBy(newTarget(t, nil), crowd...)
		}
	}
	return []attack{
		{name: "24 readers of each path", run: large(all("read")...)},
		{name: "24 slow readers, and unfinished requests, of each path", run: large(all("slow", "unfinished")...)},
		{name: "20 readers of incidents, one device of 250 sharers", run: oneDevice(clients{"read:/api/v1/incidents", 20})},
		{
			name: "250 readers of a history, one device of 250 sharers",
			run:  oneDevice(clients{"read:/api/v1/history?device=gpu-0", 250}),
		},
		{name: "24 readers of each path, one device of 250 sharers", run: oneDevice(all("read")...)},
	}
}

// oneDevice attacks a node of one device whose errors rise, which 250 pods share. Others come and
// go: whom the errors hit changes, and so there are many incidents.
func oneDevice(crowd ...clients) func(testing.TB) {
	return func(t testing.TB) {
		node := largenode.Start(t)
		var pods []*v1.PodResources
		for i := range sharers {
			name := fmt.Sprintf("sharer-%d", i)
			share := podresourcestest.Share(largenode.Driver, largenode.Name, "gpu-0", "share-of-"+name)
			claim := podresourcestest.Claim("team-0", name, share)
			pods = append(pods, podresourcestest.Pod("team-0", name, podresourcestest.Container("main", claim)))
		}
		setPods(t, node, pods)
		served := servePods(t, node, pods)
		g := launch(t, node, nil)
		g.base, g.pods = pods, served
		g.await("aware of the node", g.complete)
		g.t.Logf("without an attack: %v", g.during(20*time.Second, func(ctx context.Context) { <-ctx.Done() }))
		f := g.attackedBy(crowd...)
		g.expectHeld(t, f)
		a, err := g.scrape(honestTimeout)
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(g.Log(), "msg=incident ")
		longest, err := valueOf(a.body, "dra_exporter_longest_tick_seconds")
		t.Logf("%d incidents; the longest tick took %.2f s (%v)", n, longest, err)
	}
}

// read asks for a path again and again, uncompressed, with a connection of its own.
func (g *target) read(ctx context.Context, path string) {
	client := newClient(g.trust)
	client.Transport.(*http.Transport).DialContext = attacker().DialContext
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url(path), http.NoBody)
		if err != nil {
			return // never
		}
		response, err := client.Do(request)
		if err != nil {
			backOff(ctx) // refused
			continue
		}
		_, _ = io.Copy(io.Discard, response.Body) // as above
		response.Body.Close()
		if response.StatusCode == http.StatusServiceUnavailable {
			backOff(ctx)
		}
	}
}

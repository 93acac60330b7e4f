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

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/largenode"
)

// sharers is how many pods share the one device of a node that is small and busy.
const sharers = 250

// fleet is a kind of node that clients attack whose paths are those of the server's own table.
type fleet struct {
	name  string
	of    string // follows the name of an attack in README.md
	short bool
	start func(t testing.TB) *target
}

func fleets() []fleet {
	return []fleet{
		{name: "64 devices", start: manyDevicesShared},
		{name: "one device", of: ", one device of 250 sharers", short: true, start: oneDeviceShared},
	}
}

// siege is an attack on a fleet. One follows the other on the same program.
type siege struct {
	name  string
	short bool
	run   func(g *target)
}

func sieges() []siege {
	by := func(crowds ...[]clients) func(*target) {
		var all []clients
		for _, crowd := range crowds {
			all = append(all, crowd...)
		}
		return func(g *target) { attackBy(g, all...) }
	}
	paths := strings.Join(paths(), ",")
	readers := []clients{{"read:" + paths, 24}}
	slow := []clients{{"slow:" + paths, 24}, {"unfinished:" + paths, 24}, {"body:" + paths, 24}}
	incidents := []clients{{"read:/api/v1/incidents", 20}}
	history := []clients{{"read:/api/v1/history?device=gpu-0", 250}}
	crowds := []clients{{"scrape", 200}, {"idle", 2000}}
	return []siege{
		{name: "24 readers of each path", short: true, run: by(readers)},
		{name: "24 slow readers, requests and bodies of each path", short: true, run: by(slow)},
		{name: "20 readers of incidents", run: by(incidents)},
		{name: "250 readers of a history", run: by(history)},
		{name: "all of these, scrapes and idle clients at once", run: by(readers, slow, incidents, history, crowds)},
		{name: "pages of other sites ask for each path", short: true, run: (*target).expectOtherSitesRefused},
	}
}

// paths are those of the server's own table, but for those that are off by default.
func paths() []string {
	var out []string
	for _, route := range web.Routes("/metrics") {
		if route.Kind != web.KindProfile {
			out = append(out, route.Example)
		}
	}
	return out
}

// run runs the attacks on the fleet. Where times are judged, as many incidents are open as are kept
// when they begin.
func (f fleet) run(t *testing.T) {
	judge := func(t testing.TB) testing.TB {
		if *before != "" {
			return lenient{t, "would fail: "}
		}
		return t
	}
	g := f.start(judge(t))
	if *all || *before != "" {
		g.warmUp()
	}
	for _, s := range sieges() {
		if !s.short && !*all && *before == "" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			of := g.t
			defer func() { g.t = of }()
			g.t = judge(t)
			g.forgetPeak()
			s.run(g)
		})
	}
}

// maxWarmUp is how long short pods come and go before the first attack. On one device as many
// incidents are open by then as are kept, on 64 one a device that has errors.
const maxWarmUp = 90 * time.Second

// warmUp lets short pods come and go until as many incidents are open as are kept. With -full it
// does so again until the flight recorder has all that it keeps: pods are shown, and judged, for
// some minutes after their end.
func (g *target) warmUp() {
	until := time.Now()
	if *full {
		until = until.Add(recorder.DefaultKeep)
	}
	enough := func() bool {
		a, err := g.scrape(honestTimeout)
		return err == nil && openIncidents(a.body) >= recorder.MaxIncidents && !time.Now().Before(until)
	}
	for again := true; again; again = time.Now().Before(until) {
		f := g.during(maxWarmUp, func(ctx context.Context) {
			for !enough() && ctx.Err() == nil {
				backOff(ctx)
			}
		})
		a, err := g.scrape(honestTimeout)
		g.t.Logf("without an attack, for %v: %v; %d incidents are open, %v", f.lasted.Round(time.Second), f,
			openIncidents(a.body), err)
		f.expectCharged(g.t)
	}
}

// openIncidents returns how many incidents an exposition says to be open.
func openIncidents(body string) (n int) {
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "dra_exporter_incidents_open{") {
			var some float64
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &some)
			n += int(some)
		}
	}
	return n
}

// manyDevicesShared is the large node, with short pods.
func manyDevicesShared(t testing.TB) *target {
	node := largenode.Start(t)
	served := servePods(t, node, largenode.PodList())
	g := launch(t, node, nil)
	g.pods = served
	g.await("aware of the node", g.complete)
	return g
}

// oneDeviceShared is a node of one device whose errors rise, which 250 pods share. Others come and
// go: whom the errors hit changes, and so there are many incidents.
func oneDeviceShared(t testing.TB) *target {
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
	return g
}

// expectOtherSitesRefused asks for each path as a browser does for a page of another site: by a
// name that this site owns (DNS rebinding), and as another origin. None is answered but metrics and
// probes, which scrapers ask for by any name and which no browser shows to another origin.
func (g *target) expectOtherSitesRefused() {
	for _, route := range web.Routes("/metrics") {
		for name, want := range map[string]int{
			"Host: evil.example.com":           http.StatusMisdirectedRequest,
			"Origin: https://evil.example.com": http.StatusForbidden,
			"Sec-Fetch-Site: cross-site":       http.StatusForbidden,
			"Host: " + g.Address:               http.StatusOK,
		} {
			switch route.Kind {
			case web.KindMetrics, web.KindProbe:
				want = http.StatusOK
			case web.KindProfile:
				want = http.StatusNotFound
			case web.KindAPI, web.KindPage:
			}
			header, value, _ := strings.Cut(name, ": ")
			status, allowed := g.ask(route.Example, header, value)
			for again := 0; status == http.StatusServiceUnavailable && again < 10; again++ {
				backOff(g.t.Context()) // until the readers of the attack before are gone
				status, allowed = g.ask(route.Example, header, value)
			}
			if status != want || allowed != "" {
				g.t.Errorf("%s with %q: status %d, want %d; pages of %q may read it", route.Example, name, status, want, allowed)
			}
		}
	}
	g.expectRejected(`dra_exporter_input_rejected_total{input="requests",reason="forbidden"}`)
}

// ask asks for a path with one more header, and returns the status, and of which origins pages may
// read the answer.
func (g *target) ask(path, header, value string) (status int, allowed string) {
	g.t.Helper()
	request, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.url(path), http.NoBody)
	if err != nil {
		g.t.Fatal(err)
	}
	request.Header.Set(header, value)
	if header == "Host" {
		request.Host = value
	}
	response, err := g.client.Do(request)
	if err != nil {
		g.t.Fatal(err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // the status tells
	return response.StatusCode, response.Header.Get("Access-Control-Allow-Origin")
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

package attack

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
)

// sharers is the number of pods that share the only device of the small, busy node.
const sharers = 250

// maxQuietAge is the limit of the age of a snapshot while no pod starts, with an interval of a
// second.
const maxQuietAge = 1100 * time.Millisecond

func quietReaders(t testing.TB) {
	g := newTarget(t)
	f := g.attackedBy(clients{"read:" + strings.Join(paths(), ","), 24})
	g.expectHeld(t, f)
	expect.That(timed(t), f.oldest <= maxQuietAge, "a snapshot was %v old, want at most %v", f.oldest, maxQuietAge)
}

// fleet is a kind of node. Clients attack it on all paths of the server's own table.
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

// siege is an attack on a fleet. All run on the same program, one after the other.
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
	}
}

// paths returns the paths of the server's own table, except those that are off by default.
func paths() []string {
	var out []string
	for _, route := range web.Routes("/metrics") {
		if route.Kind != web.KindProfile {
			out = append(out, route.Example)
		}
	}
	return out
}

// run runs the attacks on the fleet. If durations are checked, the highest number of incidents is
// open when the attacks begin.
func (f fleet) run(t *testing.T) {
	g := f.start(t)
	if *all {
		g.warmUp()
	}
	for _, s := range sieges() {
		if !s.short && !*all {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			of := g.t
			defer func() { g.t = of }()
			g.t = t
			g.forgetPeak()
			s.run(g)
		})
	}
}

// maxWarmUp is the longest time for which short pods run before the first attack. Then the highest
// number of incidents is open on one device, and on 64 devices one for each device with errors.
const maxWarmUp = 90 * time.Second

// warmUp runs short pods until the highest number of incidents is open. With -full it continues
// until the flight recorder is full: ended pods are shown, and judged, for some minutes.
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

// openIncidents returns the number of open incidents in an exposition.
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

// oneDeviceShared is a node with one device, which has more and more errors and which 250 pods
// share. Other pods start and end, so that the errors hit other pods each time and make many
// incidents.
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

// read requests a path repeatedly, uncompressed, over its own connection.
func (g *target) read(ctx context.Context, path string) { g.readOf(ctx, path) }

func (g *target) readOf(ctx context.Context, path string, headers ...string) {
	client := newClient(g.trust)
	client.Transport.(*http.Transport).DialContext = g.attacker().DialContext
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		a, err := live.Ask(ctx, client, g.url(path), headers...)
		if err != nil || a.Status == http.StatusServiceUnavailable && len(headers) == 0 { // refused
			backOff(ctx)
		}
	}
}

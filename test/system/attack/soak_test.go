package attack

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var scale = flag.Float64("scale", 0.001, "size of the soak; 1 is the whole one")

// The numbers of events in a complete soak.
const (
	soakScrapes  = 100_000
	soakClaims   = 10_000
	soakRestarts = 50 // of the kubelet
	soakOutages  = 20 // of the API server

	maxBatch = 100 // claims that come and go together
	scrapers = 4

	// judgedFrom is the smallest size of a soak for which memory is compared: during a short soak,
	// memory still grows that is allocated only once.
	judgedFrom = 0.1

	// remembered is the time for which the exporter remembers the holders of a device, for late
	// readings (rememberFor of exporter/ledger). With every change of the holders, it forgets older
	// ones.
	remembered = 10*time.Minute + 5*time.Second
)

// soak is a soak in progress.
type soak struct {
	*target
	t         *testing.T
	server    *kubetest.Server
	batchSize int
	done      done
}

// done has the numbers of events so far.
type done struct{ scrapes, claims, restarts, outages int }

// The program runs for a long time: scrapes, pods that start and end with their claims, restarts of
// the kubelet, outages of the API server. The exporter sees every claim. At the end, memory,
// goroutines, files and series are as at the beginning.
func TestSoak(t *testing.T) {
	s := startSoak(t)
	claims := max(1, int(math.Round(*scale*soakClaims)))
	batches := max(1, claims/maxBatch)
	s.batchSize = claims / batches
	// A tenth of the batches precedes the comparison, so that the heap and the pools of buffers and
	// connections have reached their sizes.
	warm := max(1, batches/10)
	for i := range warm {
		s.batch(i, due(i, soakRestarts), due(i, soakOutages))
	}
	s.done = done{}
	was := s.settle()
	for i := range batches {
		s.batch(warm+i, due(i, soakRestarts), due(i, soakOutages))
		if peak, _ := s.resident(); (i+1)%10 == 0 {
			t.Logf("%d of %d batches, at most %d MiB resident", i+1, batches, peak>>20)
		}
	}
	if *scale >= judgedFrom {
		t.Logf("waiting %v, then one more batch", remembered)
		time.Sleep(remembered)
		s.batch(warm+batches, false, false)
	}
	is := s.settle()
	peak, over := s.resident()
	t.Logf("%d scrapes, %d claims, %d restarts of the kubelet, %d outages of the API server; at most %d MiB resident:",
		s.done.scrapes, s.done.claims, s.done.restarts, s.done.outages, peak>>20)
	t.Logf("%-12s %10s %10s", "", "before", "after")
	for _, name := range slices.Sorted(maps.Keys(was)) {
		t.Logf("%-12s %10.5g %10.5g", name, was[name], is[name])
	}
	expect.That(t, !over, "the program was over its limit of memory")
	for name, slack := range map[string]float64{
		resident: was[resident]/10 + 8, heap: was[heap]/10 + 1, goroutines: 8, files: 8, series: 0,
	} {
		if (name == resident || name == heap) && *scale < judgedFrom {
			continue
		}
		expect.That(t, is[name] <= was[name]+slack,
			"%s: %.5g after the soak, %.5g before, want at most %.3g more", name, is[name], was[name], slack)
	}
	expect.That(t, is[series] == was[series], "%v series after the soak, %v before", is[series], was[series])
}

// due reports whether an event with this number in a complete soak occurs in batch i. Events are
// spread evenly, and occur at least once.
func due(i, often int) bool {
	const batches = soakClaims / maxBatch
	return i%(batches/often) == 0
}

// startSoak starts the program with an API server that has the node's slice.
func startSoak(t *testing.T) *soak {
	server, kubeconfig := largenode.StartAPI(t)
	large := largenode.Start(t)
	s := &soak{t: t, server: server, target: launch(t, large, map[string]string{
		"kube": "auto", "kubeconfig": kubeconfig, "inventory.file": "",
		"retention": "2s",
	}, "--web.pprof")}
	s.await("aware of the node", s.complete)
	return s
}

// scrapeAll scrapes n times, with several clients. Most answers are not decompressed, since that
// costs more than the exporter needs to answer.
func (s *soak) scrapeAll(n int) {
	const looks = 50 // one scrape in so many is looked at
	var clients sync.WaitGroup
	for i := range scrapers {
		clients.Go(func() {
			for j := range (n + i) / scrapers {
				scrape := s.discard
				if j%looks == 0 {
					scrape = func() error {
						_, err := s.scrape(time.Minute)
						return err
					}
				}
				if err := scrape(); err != nil {
					s.t.Errorf("a scrape failed: %v", err)
					return
				}
			}
		})
	}
	clients.Wait()
}

// discard scrapes and reads the compressed answer to its end.
func (s *soak) discard() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, err := live.Ask(ctx, s.client, s.url("/metrics"), s.headers()...)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("scrape: status %d", a.Status)
	}
	return err
}

// batch starts pods with a claim each, waits until the exporter shows all of them, and ends them.
// In the meantime the exporter is scraped. On request, the kubelet restarts and the API server is
// away.
func (s *soak) batch(i int, restart, outage bool) {
	scrapes := s.batchSize * soakScrapes / soakClaims
	scraped := make(chan struct{})
	go func() {
		defer close(scraped)
		s.scrapeAll(scrapes)
	}()
	defer func() {
		<-scraped
		s.done.scrapes += scrapes
	}()
	pods := largenode.PodList()
	for j := range s.batchSize {
		pods = append(pods, s.start(fmt.Sprintf("soak-%d-%d", i, j), j%largenode.Devices))
	}
	if outage {
		s.server.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
		s.server.Expire()
	}
	must.Do(s.t, s.node.Kubelet.SetPods(pods...))
	if restart {
		must.Do(s.t, s.node.Kubelet.Restart(s.t.Context(), 200*time.Millisecond, 500*time.Millisecond))
		s.done.restarts++
	}
	prefix := fmt.Sprintf("pod=\"soak-%d-", i)
	s.await("shows the claims", func() error { return s.shows(prefix, s.batchSize) })
	if outage {
		s.server.Fail(nil)
		s.done.outages++
	}
	s.done.claims += s.batchSize
	for j := range s.batchSize {
		name := fmt.Sprintf("soak-%d-%d", i, j)
		s.server.Delete(kubetest.Pods, soakNamespace, name)
		s.server.Delete(kubetest.Claims, soakNamespace, name)
	}
	must.Do(s.t, s.node.Kubelet.SetPods(largenode.PodList()...))
}

const soakNamespace = "soak"

// start creates a pod and its claim on a share of a device at the API server, and returns it as the
// kubelet lists it.
func (s *soak) start(name string, device int) *v1.PodResources {
	gpu := fmt.Sprintf("gpu-%d", device)
	largenode.Put(s.server, soakNamespace, name, name, gpu, "share-of-"+name)
	share := podresourcestest.Share(largenode.Driver, largenode.Name, gpu, "share-of-"+name)
	return podresourcestest.Pod(soakNamespace, name,
		podresourcestest.Container("main", podresourcestest.Claim(soakNamespace, name, share)))
}

// shows returns an error unless this number of claims of pods with this label is shown.
func (s *soak) shows(label string, want int) error {
	a, err := s.scrape(time.Minute)
	if err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(a.body) {
		if strings.HasPrefix(line, "dra_pod_claim_info{") && strings.Contains(line, label) {
			n++
		}
	}
	if n != want {
		return fmt.Errorf("%d claims are shown, want %d", n, want)
	}
	return nil
}

// The values that the soak compares.
const (
	resident   = "resident MiB"
	heap       = "heap MiB"
	goroutines = "goroutines"
	files      = "open files"
	series     = "series"
)

// settle waits until no pod of a batch is shown. Then it returns the lowest of each value over some
// time, after garbage collections.
func (s *soak) settle() map[string]float64 {
	s.await("without the pods that have ended", func() error {
		a, err := s.scrape(time.Minute)
		if n := strings.Count(a.body, `namespace="`+soakNamespace+`"`); err == nil && n > 0 {
			err = fmt.Errorf("%d of their series are shown", n)
		}
		return err
	})
	looks := 2
	if *scale >= judgedFrom {
		looks = 10
	}
	least := map[string]float64{}
	for range looks {
		for name, v := range s.values() {
			if was, known := least[name]; !known || v < was {
				least[name] = v
			}
		}
	}
	return least
}

// values collects the exporter's garbage and returns the values.
func (s *soak) values() map[string]float64 {
	s.t.Helper()
	profile, err := decompressed(must.Get(live.Ask(s.t.Context(), s.client, s.url("/debug/pprof/heap?gc=1&debug=1")))(s.t))
	must.Do(s.t, err)
	time.Sleep(time.Second) // until the metrics are those of another rendering
	a := must.Get(s.scrape(time.Minute))(s.t)
	values := map[string]float64{}
	for name, in := range map[string]struct{ text, key string }{
		resident:   {a.body, "\nprocess_resident_memory_bytes "},
		heap:       {profile, "\n# HeapAlloc = "},
		goroutines: {a.body, "\ngo_goroutines "},
		files:      {a.body, "\nprocess_open_fds "},
		series:     {a.body, "\ndra_exporter_series "},
	} {
		_, after, _ := strings.Cut(in.text, in.key)
		value, _, _ := strings.Cut(after, "\n")
		if values[name], err = strconv.ParseFloat(value, 64); err != nil {
			s.t.Fatalf("%s: %v", name, err)
		}
		if strings.HasSuffix(name, "MiB") {
			values[name] /= 1 << 20
		}
	}
	return values
}

package exporter

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// chain has everything that keeps data about claims and pods, from the answers of the kubelet and
// the API server to the exposition. At each tick every device has another claim, of another pod.
type chain struct {
	devices   int
	tick      int
	node      *bookNode
	kube      *kube.Node
	inventory driver.Inventory
	ledger    *ledger.Ledger
	limiter   *exposition.Limiter
	latest    *exposition.Snapshot
	renderer  *exposition.Renderer
}

func newChain(devices int) *chain {
	c := &chain{devices: devices, inventory: driver.Inventory{}, limiter: exposition.NewLimiter(50_000, nil)}
	for d := range devices {
		c.inventory[benchID(d)] = driver.Entry{Hardware: driver.Hardware{UUID: fmt.Sprint("GPU-", d)}}
	}
	config := exportertest.LedgerConfig()
	config.Retention = time.Minute
	c.ledger = ledger.New(config)
	c.node = newBookNode(c, c.inventory, time.Now)
	c.kube = kube.NewNode(kube.Config{
		API: c, Name: "node", Book: c.node.Book, Jitter: func() float64 { return 0 },
		Report: func(string, time.Duration, error) {}, Absent: func(string, error) {},
		Reject: func(string, driver.Rejections) {},
	})
	latest := func() *exposition.Snapshot { return c.latest }
	c.renderer = exposition.New(prometheus.NewRegistry(), latest, exposition.Config{})
	return c
}

func (c *chain) name(tick, d int) string { return fmt.Sprintf("training-%d-%d", tick, d) }

// List answers as the kubelet.
func (c *chain) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	out := &v1.ListPodResourcesResponse{}
	for d := range c.devices {
		id, name := benchID(d), c.name(c.tick, d)
		claim := &v1.DynamicResource{
			ClaimNamespace: "team", ClaimName: name, ClaimResources: []*v1.ClaimResource{{
				DriverName: id.Driver, PoolName: id.Pool, DeviceName: id.Device,
				CdiDevices: []*v1.CDIDevice{{Name: "k8s.example.com/claim=" + name}},
			}},
		}
		out.PodResources = append(out.PodResources, &v1.PodResources{
			Namespace: "team", Name: name,
			Containers: []*v1.ContainerResources{{Name: "main", DynamicResources: []*v1.DynamicResource{claim}}},
		})
	}
	return out, nil
}

// Instance implements [podresources.Lister].
func (c *chain) Instance() podresources.Instance { return "" }

// Get answers as the API server.
func (c *chain) Get(_ context.Context, path string, _ url.Values) (io.ReadCloser, error) {
	answer := `{"versions":[{"version":"v1"}]}`
	if _, name, ok := strings.Cut(path, "/resourceclaims/"); ok {
		var tick, d int
		if _, err := fmt.Sscanf(name, "training-%d-%d", &tick, &d); err != nil {
			return nil, err
		}
		id := benchID(d)
		answer = fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"team","uid":"claim-%s"},"status":{
			"reservedFor":[{"resource":"pods","name":%q,"uid":"uid-%s"}],
			"allocation":{"devices":{"results":[{"request":"gpu","driver":%q,"pool":%q,"device":%q}]}}}}`,
			name, name, name, name, id.Driver, id.Pool, id.Device)
	}
	return io.NopCloser(strings.NewReader(answer)), nil
}

// step is a tick in which all pods end, and others begin.
func (c *chain) step(t *testing.T) {
	now := time.Now()
	c.tick++
	book := c.node.Book
	for d := range c.devices {
		before, name := c.name(c.tick-1, d), c.name(c.tick, d)
		book.PodDeleted("uid-"+before, now)
		book.PodChanged(podresources.PodFacts{
			Pod: podresources.Pod{Namespace: "team", Name: name}, UID: "uid-" + name, Created: now, Started: true, Running: 1,
			Meta:   &podresources.PodMeta{OwnerKind: "Job", OwnerName: name},
			Claims: []podresources.PodClaim{{Name: "gpu", Claim: name}},
		}, now)
		book.Changed(podresources.Change{At: now, PodUID: "uid-" + name})
	}
	c.observe(t)
}

// observe is the rest of a tick: all devices are read.
func (c *chain) observe(t *testing.T) {
	now, book := time.Now(), c.node.Book
	must.Get(c.node.Observe(t.Context()))(t)
	held, _ := book.Holds(now, time.Time{})
	wanted := holders.Wanted{Claims: map[podresources.Claim]holders.WantedClaim{}}
	for d := range c.devices / 8 { // more takes too long
		claim := podresources.Claim{Namespace: "team", Name: c.name(c.tick, d)}
		wanted.Claims[claim] = held.Wanted.Claims[claim]
	}
	c.kube.Want(wanted)
	synctest.Wait()
	view, _ := c.node.Describe()
	in := join.Input{View: view, Inventory: c.inventory}
	source := join.SourceSamples{Name: "test"}
	for d := range c.devices {
		source.Samples = append(source.Samples, driver.Sample{
			Hardware: driver.Hardware{UUID: fmt.Sprint("GPU-", d)}, Readings: []driver.Reading{
				{Quantity: driver.Utilization, Value: 0.5, At: now},
				{Quantity: driver.Power, Value: 300, At: now},
				{Quantity: driver.MemoryUsed, Value: 1e9, At: now},
				{Quantity: driver.Energy, Value: 300 * float64(now.Sub(jointest.Start())/time.Second), At: now},
				{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: float64(c.tick), At: now},
			},
		})
	}
	in.Sources = []join.SourceSamples{source}
	c.latest = c.limiter.Apply(c.ledger, c.ledger.Advance(join.Join(in), now))
	if c.tick%5 == 0 {
		must.Get(c.renderer.Write(io.Discard, expfmt.NewFormat(expfmt.TypeOpenMetrics)))(t)
	}
}

// Memory for claims and pods is freed when they have ended: 25 000 take as much as 5 000. The
// ledger still knows when those that ended within the last ten minutes, and are no longer exported,
// held a device.
func TestEndedClaimsAreFreed(t *testing.T) {
	devices := 50
	if testmain.RaceEnabled || testing.Short() {
		devices = 20
	}
	const pause = 30 * time.Second
	early, late := 100, 500 // ticks
	const shown = 4         // ticks for which a claim is exported
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		newChain(1).step(t) // allocates what a process needs once
		before := liveHeap()
		c := newChain(devices)
		go c.kube.FollowClaims(ctx)
		live := map[int]uint64{}
		for c.tick < late {
			c.step(t)
			if c.tick == early || c.tick == late {
				live[c.tick] = liveHeap() - before
			}
			time.Sleep(pause)
		}
		before = liveHeap()
		for range 12 * time.Minute / pause {
			c.observe(t)
			time.Sleep(pause)
		}
		for range shown { // ended holders are dropped when a device's holders change
			c.step(t)
			time.Sleep(pause)
		}
		each := (before - liveHeap()) / uint64(devices*(int(10*time.Minute/pause)-shown))
		t.Logf("%d KiB after %d claims, %d KiB after %d: %d bytes for each of the last 10 minutes", live[early]>>10,
			early*devices, live[late]>>10, late*devices, each)
		expect.That(t, live[late] <= (live[early]+live[early]/10),
			"the heap has %d KiB after %d claims, %d KiB after %d", live[early]>>10, early*devices, live[late]>>10, late*devices)
		// 4580 bytes are measured: the ledger's accounts with their distributions, the timelines, and the
		// Book's memory of deleted pods, whose UIDs never hold again.
		if each > 4900 && !testmain.RaceEnabled {
			t.Errorf("a claim of the last 10 minutes takes %d bytes", each)
		}
		expect.That(t, len(c.latest.Claims) >= 2*c.devices && c.latest.Dropped <= 0,
			"%d claims are exported, %d series dropped", len(c.latest.Claims), c.latest.Dropped)
		runtime.KeepAlive(c)
	})
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // the second frees what has finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The cost in new series of a pod of 20 s with a claim, with and without --pod.min-lifetime, as in
// METRICS.md.
func TestSeriesOfShortPods(t *testing.T) {
	for minLifetime, pods := range map[time.Duration]int{
		0: exposition.SeriesOfShortPod, time.Minute: exposition.SeriesOfWorkload + 1, // its dra_pod_info
	} {
		h := exportertest.NewHistory(t)
		config := exportertest.LedgerConfig()
		config.MinLifetime = minLifetime
		h.Ledger = ledger.New(config)
		series := map[string]int{} // by the beginning of their families' names
		seen := map[string]bool{}
		for second := range 40 {
			switch second {
			case 5:
				h.Hold("c", "p").Holders[0].Meta = &podresources.PodMeta{WorkloadKind: "Job", WorkloadName: "train"}
			case 25:
				h.Free("c")
			}
			link := func(direction string) driver.Reading {
				return driver.Reading{
					Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", direction}, Value: float64(second),
				}
			}
			h.Read(append(exportertest.Gauges(0.5, 1e9, 100), link("receive"), link("transmit"))...)
			h.Pass(time.Second)
			for _, f := range exportertest.Decode(t, exportertest.Render(h.Last, exposition.Config{})) {
				for _, m := range f.Metric {
					// Others are of a driver.
					if name := f.GetName() + fmt.Sprint(m.Label); !seen[name] && strings.Contains(name, "namespace") {
						seen[name] = true
						series[strings.Join(strings.SplitN(name, "_", 3)[:2], "_")]++
					}
				}
			}
		}
		expect.Is(t, series["dra_claim"], exposition.SeriesOfShortClaim, "%v: series of claims", minLifetime)
		expect.Is(t, series["dra_pod"], pods, "%v: series of pods", minLifetime)
	}
}

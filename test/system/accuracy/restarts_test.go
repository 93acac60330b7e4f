package accuracy

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	testnode "github.com/dra-exporter/dra-exporter/test/node"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/simnode"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

const (
	maxErrorRestarts = 0.01 // of devices, and of holders that are there from the begin to the end
	betweenRestarts  = 10 * time.Second
	receiptsAfter    = 3 * time.Second // the retention: a receipt is made at the latest when it is over
	settled          = 5 * time.Second // until a reading is charged, and a receipt is made
	minReceipts      = 10
)

// restart has the way in which the program ends, the time until the next start, and the next build.
type restart struct {
	how     string
	end     func(p *live.Program)
	away    time.Duration
	program string
}

// The real program reads four GPUs by their energy counters. It is killed, stopped, replaced by
// another build, and away for a minute. Two of the GPUs are held all the time, one of them by two
// claims. On the others, pods run back to back, also while the program is away. The totals of all
// devices, and of the holders that exist all the time, equal the counters. The unattributed part
// and the errors of the other pods are printed.
func TestRestarts(t *testing.T) {
	program, next := os.Getenv("DRA_EXPORTER"), otherBuild(t)
	must.That(t, program != "", "DRA_EXPORTER is not set: run this with make")
	t.Parallel()
	stop := func(p *live.Program) { p.Stop() }
	restarts := []restart{
		{"kill -9", (*live.Program).Kill, 3 * time.Second, program},
		{"SIGTERM", stop, 0, program},
		{"upgrade to another build", stop, time.Second, next},
		{"a minute away", stop, time.Minute, next},
		{"kill -9 and a rollback", (*live.Program).Kill, time.Second, program},
	}
	r := newRestarted(t)
	p := r.start(t, program)
	stalls, stopWatching := standstill.Watch()
	t.Cleanup(stopWatching)
	var playing sync.WaitGroup
	ending := make(chan struct{})
	for i, device := range []string{"gpu-2", "gpu-3"} {
		playing.Go(func() { r.play(t, device, uint64(i), ending) })
	}
	for _, of := range restarts {
		time.Sleep(betweenRestarts)
		begun := time.Now()
		of.end(p)
		time.Sleep(of.away)
		p = r.start(t, of.program)
		t.Logf("%s: %v without readings", of.how, time.Since(begun).Round(100*time.Millisecond))
	}
	time.Sleep(betweenRestarts)
	close(ending)
	playing.Wait()
	r.meters.freeze(t, time.Now())
	r.compare(t, p, stalls())
}

// otherBuild returns the path of another build of the program: one with another version.
func otherBuild(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "dra-exporter")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join("..", "..", ".."), "-trimpath",
		"-ldflags=-X github.com/prometheus/common/version.Version=next", "-o", path, "./exporter/cmd/dra-exporter")
	said, err := build.CombinedOutput()
	must.That(t, err == nil, "build another version of the program: %v: %s", err, said)
	return path
}

// restarted is a node on which programs with the same state run one after the other.
type restarted struct {
	node   *simnode.Node
	meters *meters
	flags  []string
}

func newRestarted(t *testing.T) *restarted {
	root, err := os.MkdirTemp("", "acc") //nolint:usetesting // t.TempDir's path is too long for a socket
	must.Do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	devices := []simnode.Device{simnode.GPU(2, 0), simnode.Shared(simnode.GPU(2, 1)), simnode.GPU(2, 2), simnode.GPU(2, 3)}
	node := must.Get(simnode.New(root, 2, devices, simnode.Options{}))(t)
	must.Do(t, node.Start())
	t.Cleanup(node.Close)
	for pod, request := range map[string]simnode.Request{
		"alone": {Devices: []string{"gpu-0"}, Load: sim.Ramp(0.2, 0.9, 20*time.Second)},
		"most":  {Devices: []string{"gpu-1"}, Memory: "60Gi", Load: sim.Constant(0.9)},
		"least": {Devices: []string{"gpu-1"}, Memory: "20Gi", Load: sim.Constant(0.3)},
	} {
		must.Do(t, start(node, pod, request))
	}
	m := &meters{node: node, source: node.Source()}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	config := filepath.Join(root, "scrape.yaml")
	endpoint := "endpoints:\n" + testnode.Endpoint("meters", server.URL, simnode.GPUDriver,
		"name: energy, quantity: energy", "name: power, quantity: power", "name: utilization, quantity: utilization")
	must.Do(t, os.WriteFile(config, []byte(endpoint), 0o600))
	return &restarted{node, m, append(node.Args(),
		"--web.listen-address=127.0.0.1:0", "--web.last-scrape-timeout=0s", "--source.scrape.config="+config,
		"--state.dir="+filepath.Join(root, "state"), "--retention="+receiptsAfter.String(),
	)}
}

// start starts a pod with a claim.
func start(node *simnode.Node, name string, request simnode.Request) error {
	request.Name = "gpu"
	return node.StartPod(simnode.PodSpec{Namespace: "batch", Name: name, Claims: []simnode.ClaimSpec{{
		Name: "gpu", Requests: []simnode.Request{request},
	}}})
}

// start starts a build of the program, and waits until it serves.
func (r *restarted) start(t *testing.T, path string) *live.Program {
	p := live.Launch(t, exec.CommandContext(context.Background(), path, r.flags...))
	live.Await(t, time.Minute, "the exporter is ready",
		func() error { return live.Get(http.DefaultClient, "http://"+p.Address+"/readyz") })
	return p
}

// play runs pod after pod on a device until the end.
func (r *restarted) play(t *testing.T, device string, seed uint64, ending <-chan struct{}) {
	random := rand.New(rand.NewPCG(3, seed))
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-pod-%d", device, i)
		if err := start(r.node, name, simnode.Request{Devices: []string{device}, Load: load(random)}); err != nil {
			t.Error(err)
			return
		}
		select {
		case <-ending:
			return
		case <-time.After(2*time.Second + time.Duration(random.Float64()*float64(10*time.Second))):
		}
		if err := r.node.StopPod("batch", name); err != nil {
			t.Error(err)
			return
		}
	}
}

// meters serves the energy counters of the devices, which also increase between readings.
type meters struct {
	node   *simnode.Node
	source driver.Source

	mu          sync.Mutex
	first, last *reading
	frozen      time.Time // when the readings stopped to change; zero: they change
}

// reading has the served counters, and the energy that each pod had used until then.
type reading struct {
	at     time.Time
	text   string
	joules map[string]float64 // by device
	used   map[string]float64 // joules by pod
}

func (m *meters) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.frozen.IsZero() {
		now, err := m.read(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if m.first == nil {
			m.first = now
		}
		m.last = now
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = io.WriteString(w, m.last.text)
}

func (m *meters) read(ctx context.Context) (*reading, error) {
	samples, err := m.source.Sample(ctx)
	if err != nil {
		return nil, err
	}
	out := &reading{joules: map[string]float64{}, used: map[string]float64{}}
	var text strings.Builder
	var at time.Time
	for _, s := range samples {
		for _, r := range s.Readings {
			switch r.Quantity {
			case driver.Energy:
				out.joules[s.Hardware.UUID], at = r.Value, r.At
				fallthrough
			case driver.Power, driver.Utilization:
				fmt.Fprintf(&text, "%v{uuid=%q} %v\n", r.Quantity, s.Hardware.UUID, r.Value)
			}
		}
	}
	out.at, out.text = at, text.String()
	for _, use := range m.node.Uses(at) {
		out.used[use.Pod.Name] = use.Truth.Joules
	}
	return out, nil
}

// freeze makes all further readings equal to the first one after a time.
func (m *meters) freeze(t *testing.T, after time.Time) {
	live.Await(t, time.Minute, "the last pods that ended are read", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.last.at.After(after) {
			return fmt.Errorf("the last reading is of %v", m.last.at)
		}
		m.frozen = time.Now()
		return nil
	})
}

// compare compares the values of the last program with the counters.
func (r *restarted) compare(t *testing.T, p *live.Program, still []standstill.Span) {
	first, last := r.meters.first, r.meters.last
	var report present.Report
	live.Await(t, time.Minute, "the last reading is charged", func() error {
		if get(t, p.Address, "/api/v1/snapshot", &report); report.Time.Before(r.meters.frozen.Add(settled)) {
			return fmt.Errorf("the snapshot is of %v", report.Time)
		}
		return nil
	})
	for i := range report.Devices {
		d := &report.Devices[i]
		truth := last.joules[d.UUID] - first.joules[d.UUID]
		expectJoules(t, d.Device, valueOf(d.Values), truth)
		t.Logf("%s: %.1f %% are unattributed", d.Device, 100*valueOf(d.Unattributed)/truth)
	}
	charged := map[string]float64{}
	for i := range report.Pods {
		charged[report.Pods[i].Name] = valueOf(report.Pods[i].Values)
	}
	for pod, before := range first.used {
		if !cameAndWent(pod) {
			expectJoules(t, pod, charged[pod], last.used[pod]-before)
		}
	}
	r.compareOthers(t, p, still)
}

// expectJoules compares the energy of a device, or of a holder, with the truth.
func expectJoules(t *testing.T, name string, got, truth float64) {
	off := got/truth - 1
	t.Logf("%s: %.1f J of %.1f J, %+.3f %%", name, got, truth, 100*off)
	expect.That(t, math.Abs(off) < maxErrorRestarts, "%s has %.1f J, want %.1f", name, got, truth)
}

// compareOthers compares the receipts of the short pods with their bounds, and prints their errors.
// A pod has one receipt, and none if it started and ended while the program was away.
func (r *restarted) compareOthers(t *testing.T, p *live.Program, still []standstill.Span) {
	t.Helper()
	var receipts present.ReceiptsReport
	get(t, p.Address, "/api/v1/receipts", &receipts)
	pods := truthOf(r.node, r.meters.frozen, still)
	n, within, charged, truth, bounds, seen := 0, 0, 0.0, 0.0, 0.0, map[string]bool{}
	for _, receipt := range receipts.Receipts {
		f, pod := receipt.Figure(driver.Energy), receipt.Pods[0].Name
		if f == nil || f.ErrorBound == nil || !cameAndWent(pod) || seen[pod] {
			t.Errorf("the receipt of %s: %+v", pod, receipt)
			continue
		}
		seen[pod] = true
		actual := pods[pod].joules
		n, charged, truth, bounds = n+1, charged+f.ConsumedQuantity, truth+actual, bounds+*f.ErrorBound
		if off := math.Abs(f.ConsumedQuantity - actual); off <= *f.ErrorBound+pods[pod].still*actual {
			within++
		} else {
			t.Logf("%s: %.1f J ± %.1f, the truth is %.1f", pod, f.ConsumedQuantity, *f.ErrorBound, actual)
		}
	}
	t.Logf("%d of %d receipts of pods that came and went are within their bounds; together they have %.1f %% of the "+
		"energy of these pods, ± %.1f %%", within, n, 100*charged/truth, 100*bounds/truth)
	expect.That(t, n >= minReceipts && float64(within) >= withinBounds*float64(n),
		"%d of %d receipts are within their bounds, want all of at least %d", within, n, minReceipts)
}

// cameAndWent reports whether play started the pod.
func cameAndWent(pod string) bool { return strings.Contains(pod, "-pod-") }

// valueOf returns the energy among values.
func valueOf(values []present.ValueReport) float64 {
	for i := range values {
		if values[i].Quantity == driver.Energy.String() {
			return values[i].Value
		}
	}
	return math.NaN()
}

// get reads a JSON response of the program.
func get(t *testing.T, address, path string, into any) {
	must.Do(t, live.JSON(t.Context(), http.DefaultClient, "http://"+address+path, into))
}

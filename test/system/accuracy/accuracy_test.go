// Package accuracy measures the errors of the metrics of short pods in a real Prometheus.
package accuracy

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/program"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/simnode"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

const (
	gpus           = 8
	partitions     = 4 // of one more GPU
	playing        = 90 * time.Second
	scrapeInterval = 15 * time.Second
	slowRefresh    = 30 * time.Second
	xidInterval    = 1700 * time.Millisecond        // of errors on the first GPU; each has its own
	xidTiming      = 250 * time.Millisecond         // how far off the begin or end of a pod may be seen
	settling       = slowRefresh + 2*scrapeInterval // until the last pods' metrics are scraped

	maxErrorCreated  = 0.02
	maxErrorZeroHold = 0.05
	// of pods on partitions, which share their GPU's power while each of them changes it
	maxErrorPartitions = 0.05
)

// The exporters that the test runs at the same time on one node.
const (
	exact    = "exact"    // without --counter.zero-hold
	held10   = "held10"   // with 10 s, less than a scrape interval
	held15   = "held15"   // with a scrape interval
	held     = "held"     // with a little more, the default
	gauges   = "gauges"   // devices without an energy counter
	slow     = "slow"     // devices that refresh every 30 s
	slowHeld = "slowheld" // both
	polling  = "polling"  // without events of ownership changes
)

// Pods of 2 to 7 s run back to back on each of 8 GPUs and on each of the 4 partitions of another
// GPU. They are scraped every 15 s. The test compares the energy and the active time of each pod,
// from the raw samples, with the true values. For pods on partitions, the true energy is their part
// of the energy of the GPU. Nothing can be measured while the machine is stalled: the bounds are
// wider by the share of stalled time.
func TestShortPods(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "acc") //nolint:usetesting // t.TempDir's path is too long for a socket
	must.Do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	node := newNode(t, root)
	nowhere := []string{"--path.sysfs=" + filepath.Join(root, "none"), "--path.cdi=" + filepath.Join(root, "none")}
	const none = "--counter.zero-hold=0s"
	exporters := map[string]string{
		exact:    startExporter(t, node, sim.Options{}, none),
		held10:   startExporter(t, node, sim.Options{}, "--counter.zero-hold=10s"),
		held15:   startExporter(t, node, sim.Options{}, "--counter.zero-hold=15s"),
		held:     startExporter(t, node, sim.Options{}),
		gauges:   startExporter(t, node, sim.Options{WithoutEnergyCounter: true}, none),
		slow:     startExporter(t, node, sim.Options{Refresh: slowRefresh}, none),
		slowHeld: startExporter(t, node, sim.Options{Refresh: slowRefresh}),
		polling:  startExporter(t, node, sim.Options{}, append(nowhere, none)...),
	}
	debug.SetMemoryLimit(int64(len(exporters)) * debug.SetMemoryLimit(-1))
	created := startPrometheus(t, scrapeInterval, exporters, "--enable-feature=created-timestamp-zero-ingestion")
	plain := startPrometheus(t, scrapeInterval, exporters)

	stalls, stopWatching := standstill.Watch()
	t.Cleanup(stopWatching)
	begun := time.Now()
	time.Sleep(2 * time.Second) // the exporters find the devices before the first pod starts
	simulate(t, node, begun.Add(playing))
	time.Sleep(settling)
	at := time.Now()
	still := stalls()
	pods, parts := truthOf(node, at, still).split()
	expect.That(t, len(pods) >= gpus*10, "only %d pods were simulated", len(pods))
	table := &report{pods: pods}
	withCreated := table.add("created timestamps ingested", measure(t, created, exact, at))
	withHold := table.add("default Prometheus, default zero-hold (20 s)", measure(t, plain, held, at))
	table.add("default Prometheus, zero-hold 15 s", measure(t, plain, held15, at))
	table.add("default Prometheus, zero-hold 10 s", measure(t, plain, held10, at))
	table.add("default Prometheus, no zero-hold", measure(t, plain, exact, at))
	table.add("default zero-hold, created timestamps too", measure(t, created, held, at))
	table.add("energy as integral of power, created timestamps", measure(t, created, gauges, at))
	slowly := table.add("source refreshes every 30 s, created timestamps", measure(t, created, slow, at))
	table.add("source refreshes every 30 s, default zero-hold", measure(t, plain, slowHeld, at))
	table.add("polling at 1 s only, created timestamps", measure(t, created, polling, at))
	table.add("other exporters: each scrape interval to its owner at the scrape", byScrape(t, plain, node, at))
	ofParts := &report{pods: parts}
	divided := ofParts.add("created timestamps ingested", measure(t, created, exact, at))
	dividedGauge := ofParts.add("energy as integral of power, created timestamps", measure(t, created, gauges, at))
	t.Logf("%d pods on %d partitions of a GPU\n%s", len(parts), partitions, ofParts)
	t.Logf("%d pods of 2 to 7 s on %d GPUs in %v, scraped every %v\n%sthe machine was stalled %d times, %v in total, "+
		"%.2f %% of each pod's time on average",
		len(pods), gpus, playing, scrapeInterval, table, len(still), standstill.Total(still), 100*pods.meanStalled())

	compareErrors(t, created, node, at, still)
	for _, name := range []string{exact, gauges, slow} {
		compareReceipts(t, name, exporters[name], pods)
	}
	withCreated.hold(t, maxErrorCreated+pods.meanStalled())
	withHold.hold(t, maxErrorZeroHold+pods.meanStalled())
	divided.hold(t, maxErrorPartitions+parts.meanStalled())
	dividedGauge.hold(t, maxErrorPartitions+parts.meanStalled())
	expect.That(t, slowly.missed <= 0, "the slow source misses %d of %d pods", slowly.missed, len(pods))
	// If a refresh interval extends beyond the first or the last pod, the time without a pod gets
	// its share.
	expect.That(t, math.Abs(slowly.total-1) <= 0.1+pods.meanStalled(),
		"the slow source reports %.1f %% of the energy of all pods together, want about 100", 100*slowly.total)
}

func newNode(t *testing.T, root string) *simnode.Node {
	var devices []simnode.Device
	for i := range gpus {
		gpu := simnode.GPU(1, i)
		gpu.XIDEvery, gpu.XID = xidInterval+time.Duration(i)*100*time.Millisecond, 31
		devices = append(devices, gpu)
	}
	devices = append(devices, simnode.PartitionedGPU(1, gpus, partitions)...)
	node := must.Get(simnode.New(root, 1, devices, simnode.Options{}))(t)
	must.Do(t, node.Start())
	t.Cleanup(node.Close)
	return node
}

// startExporter runs the program on the node until the test ends, and returns its address. It takes
// its memory from the limit of this process, which it lowers to its own: without a new limit, each
// exporter would have less than the one before, and forget who held what before a slow source tells
// what they used.
func startExporter(t *testing.T, node *simnode.Node, devices sim.Options, flags ...string) string {
	debug.SetMemoryLimit(math.MaxInt64)
	address := live.FreeAddress(t)
	sources := []program.Source{{
		Name: "sim",
		New:  func(driver.Host) (driver.Source, error) { return node.SourceWith(devices), nil },
	}}
	args := []string{"--web.listen-address=" + address, "--web.last-scrape-timeout=0s", "--log.level=warn"}
	for _, arg := range node.Args() {
		name, _, _ := strings.Cut(arg, "=")
		if !slices.ContainsFunc(flags, func(flag string) bool { return strings.HasPrefix(flag, name+"=") }) {
			args = append(args, arg)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var said bytes.Buffer
	running.Go(func() {
		expect.Is(t, program.Run(ctx, append(args, flags...), sources, &said, &said), 0, "the exporter ended with")
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if t.Failed() {
			t.Logf("the log of exporter %v: %s", flags, live.Brief(said.String()))
		}
	})
	live.Await(t, time.Minute, "the exporter is ready",
		func() error { return live.Get(http.DefaultClient, "http://"+address+"/readyz") })
	return address
}

// compareErrors compares the errors that hit each pod with the errors of its GPU while the pod held
// it. It omits pods during which the machine was stalled.
func compareErrors(t *testing.T, p live.Prometheus, node *simnode.Node, at time.Time, still []standstill.Span) {
	t.Helper()
	got := map[string]int{}
	selector := fmt.Sprintf("max_over_time(dra_pod_errors_total{exporter=%q,kind=\"xid\"}%s)", exact, window)
	for _, s := range query(t, p, selector, at) {
		got[s.Labels["pod"]] = int(s.Samples[0].Value)
	}
	compared, all := 0, 0
	for _, use := range node.Uses(at) {
		around := standstill.Span{From: use.From.Add(-margin), To: use.To.Add(margin)}
		if strings.Contains(use.Pod.Name, "partition") || around.Overlap(still) > 0 {
			continue
		}
		compared++
		least := node.XIDs(use.Device, use.From.Add(xidTiming), use.To.Add(-xidTiming))
		most := node.XIDs(use.Device, use.From.Add(-xidTiming), use.To.Add(xidTiming))
		if n := got[use.Pod.Name]; n < least || n > most {
			t.Errorf("%s is said to be hit by %d errors, its GPU had %d to %d while it was held", use.Pod.Name, n, least, most)
		}
		all += got[use.Pod.Name]
	}
	t.Logf("%d errors hit %d pods while the machine was not stalled", all, compared)
}

// simulate runs pod after pod on every device until the end.
func simulate(t *testing.T, node *simnode.Node, end time.Time) {
	var playing sync.WaitGroup
	var devices []string
	for gpu := range gpus {
		devices = append(devices, fmt.Sprintf("gpu-%d", gpu))
	}
	for part := range partitions {
		devices = append(devices, fmt.Sprintf("gpu-%d-partition-%d", gpus, part))
	}
	for number, device := range devices {
		random := rand.New(rand.NewPCG(1, uint64(number)))
		playing.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				name := fmt.Sprintf("%s-pod-%d", device, i)
				spec := simnode.PodSpec{Namespace: "batch", Name: name, Claims: []simnode.ClaimSpec{{
					Name:     "gpu",
					Requests: []simnode.Request{{Name: "gpu", Devices: []string{device}, Load: load(random)}},
				}}}
				if err := node.StartPod(spec); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(2*time.Second + time.Duration(random.Float64()*float64(5*time.Second)))
				if err := node.StopPod("batch", name); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	playing.Wait()
}

// load is the load of a pod: constant, or rising or falling over ten seconds.
func load(random *rand.Rand) sim.Profile {
	level := func() float64 { return 0.1 + 0.9*random.Float64() }
	if random.IntN(2) == 0 {
		return sim.Constant(level())
	}
	return sim.Ramp(level(), level(), 10*time.Second)
}

// usage is the true or measured use of a pod.
type usage struct{ joules, active float64 }

// truth is the true use of each pod.
type truth map[string]*pod

type pod struct {
	usage
	still float64 // the share of its time in which the machine was stalled
}

func truthOf(node *simnode.Node, at time.Time, still []standstill.Span) truth {
	out := truth{}
	for _, use := range node.Uses(at) {
		p := out[use.Pod.Name]
		if p == nil {
			p = &pod{still: standstill.Span{
				From: use.From.Add(-margin),
				To:   use.To.Add(margin),
			}.Overlap(still).Seconds() / use.To.Sub(use.From).Seconds()}
			out[use.Pod.Name] = p
		}
		p.joules += use.Truth.Joules
		p.active += use.Truth.ActiveSeconds
	}
	return out
}

// split returns the pods on GPUs and those on partitions.
func (t truth) split() (whole, parts truth) {
	whole, parts = truth{}, truth{}
	for name, p := range t {
		if strings.Contains(name, "partition") {
			parts[name] = p
		} else {
			whole[name] = p
		}
	}
	return whole, parts
}

// meanStalled returns the mean share of the pods' time in which the machine was stalled.
func (t truth) meanStalled() float64 {
	sum := 0.0
	for _, p := range t {
		sum += p.still
	}
	return sum / float64(len(t))
}

const window = "[10m]"

// measure returns the use of the pods according to a Prometheus: the last raw sample minus the
// first, which is 0 through created timestamps or --counter.zero-hold.
func measure(t *testing.T, p live.Prometheus, exporter string, at time.Time) figures {
	f := figures{raw: map[string]usage{}, increase: map[string]usage{}}
	each := func(metric string, set func(*usage, float64)) {
		selector := fmt.Sprintf("%s{exporter=%q}%s", metric, exporter, window)
		for _, s := range query(t, p, selector, at) {
			update(f.raw, s, s.Samples[len(s.Samples)-1].Value-s.Samples[0].Value, set)
		}
		for _, s := range query(t, p, "increase("+selector+")", at) {
			update(f.increase, s, s.Samples[0].Value, set)
		}
	}
	each("dra_pod_energy_joules_total", func(u *usage, v float64) { u.joules += v })
	each("dra_pod_active_seconds_total", func(u *usage, v float64) { u.active += v })
	return f
}

func update(usages map[string]usage, s live.Series, value float64, set func(*usage, float64)) {
	u := usages[s.Labels["pod"]]
	set(&u, value)
	usages[s.Labels["pod"]] = u
}

// byScrape is the method of other exporters: the use of a device in a scrape interval is charged to
// its holder at the scrape.
func byScrape(t *testing.T, p live.Prometheus, node *simnode.Node, at time.Time) figures {
	f := figures{raw: map[string]usage{}}
	uses := node.Uses(at)
	each := func(metric string, set func(*usage, float64)) {
		for _, s := range query(t, p, fmt.Sprintf("%s{exporter=%q}%s", metric, exact, window), at) {
			for i := 1; i < len(s.Samples); i++ {
				for _, use := range uses {
					now := s.Samples[i].At
					if use.Device.Device == s.Labels["device"] && !use.From.After(now) && (use.To.IsZero() || use.To.After(now)) {
						u := f.raw[use.Pod.Name]
						set(&u, s.Samples[i].Value-s.Samples[i-1].Value)
						f.raw[use.Pod.Name] = u
					}
				}
			}
		}
	}
	each("dra_device_energy_joules_total", func(u *usage, v float64) { u.joules += v })
	each("dra_device_active_seconds_total", func(u *usage, v float64) { u.active += v })
	return f
}

// figures are the uses of the pods according to one method.
type figures struct{ raw, increase map[string]usage }

// summary compares figures with the truth.
type summary struct {
	name           string
	joules, active float64 // mean relative errors
	increase       float64 // of energy by increase(); NaN: none
	seen, pods     int     // pods with any sample
	missed         int     // pods without a sample although the machine was not stalled
	total          float64 // the energy of all pods together, divided by the true one
}

// hold fails the test if a mean exceeds its bound or a pod is missing.
func (s summary) hold(t *testing.T, bound float64) {
	expect.That(t, s.joules <= bound,
		"%s: mean relative error of energy is %.2f %%, want at most %.2f", s.name, 100*s.joules, 100*bound)
	expect.That(t, s.active <= bound,
		"%s: mean relative error of active time is %.2f %%, want at most %.2f", s.name, 100*s.active, 100*bound)
	expect.That(t, s.missed <= 0, "%s: %d of %d pods are missing", s.name, s.missed, s.pods)
}

// report formats a table of summaries.
type report struct {
	pods truth
	rows []summary
}

func (r *report) add(name string, f figures) summary {
	s := summary{name: name, pods: len(r.pods), increase: math.NaN()}
	if f.increase != nil {
		s.increase = 0
	}
	said, actual, n := 0.0, 0.0, float64(len(r.pods))
	for name, pod := range r.pods {
		got, ok := f.raw[name]
		switch {
		case ok && got.joules > 0:
			s.seen++
		case pod.still < maxStalled:
			s.missed++
		}
		said, actual = said+got.joules, actual+pod.joules
		s.joules += math.Abs(got.joules-pod.joules) / pod.joules / n
		s.active += math.Abs(got.active-pod.active) / pod.active / n
		s.increase += math.Abs(f.increase[name].joules-pod.joules) / pod.joules / n
	}
	s.total = said / actual
	r.rows = append(r.rows, s)
	return s
}

// String returns the table.
func (r *report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "METHOD\tENERGY ERROR\tACTIVE ERROR\tBY INCREASE()\tPODS SEEN\tENERGY OF ALL")
	for _, s := range r.rows {
		increase := "-"
		if !math.IsNaN(s.increase) {
			increase = fmt.Sprintf("%.2f %%", 100*s.increase)
		}
		_, _ = fmt.Fprintf(w, "%s\t%.2f %%\t%.2f %%\t%s\t%.1f %%\t%.1f %%\n",
			s.name, 100*s.joules, 100*s.active, increase, 100*float64(s.seen)/float64(s.pods), 100*s.total)
	}
	_ = w.Flush() // to a buffer
	return b.String()
}

// margin is the time before and after a pod in which a stall affects its figures: the use between
// two readings, a second apart, is divided by time.
const margin = time.Second

// maxStalled is the share of stalled time in the life of a pod, which is at least 2 s, from which
// on the pod may be missed.
const maxStalled = 0.2

const prometheusConfig = `
global: {scrape_interval: %s, scrape_timeout: 10s}
scrape_configs:
- job_name: dra-exporter
  honor_labels: true
  static_configs:
%s`

// startPrometheus starts a Prometheus that scrapes the exporters, given as addresses by name, until
// the test ends.
func startPrometheus(t *testing.T, interval time.Duration, exporters map[string]string,
	flags ...string,
) live.Prometheus {
	var targets strings.Builder
	for name, address := range exporters {
		fmt.Fprintf(&targets, "  - {targets: [%q], labels: {exporter: %q}}\n", address, name)
	}
	return live.StartPrometheus(t,
		live.PrometheusOptions{Config: fmt.Sprintf(prometheusConfig, interval, &targets), Flags: flags})
}

// query evaluates an expression at a time. A range selector gives the raw samples.
func query(t *testing.T, p live.Prometheus, expression string, at time.Time) []live.Series {
	return must.Get(p.Query(t.Context(), expression, at))(t)
}

// withinBounds is the part of the pods whose true use is within the bounds of their claims'
// receipts.
const withinBounds = 0.99

// compareReceipts compares the receipt of each pod's claim with the truth. Nothing is read while
// the machine is stalled: the bounds are wider by the share of stalled time.
func compareReceipts(t *testing.T, exporter, address string, pods truth) {
	t.Helper()
	var report present.ReceiptsReport
	get(t, address, "/api/v1/receipts", &report)
	compared, within, missing := 0, 0, len(pods)
	var relative float64
	for _, r := range report.Receipts {
		if len(r.Pods) != 1 {
			t.Errorf("%s: a receipt of %d pods: %+v", exporter, len(r.Pods), r.Pods)
			continue
		}
		pod := pods[r.Pods[0].Name]
		if pod == nil {
			continue // of a partition
		}
		missing--
		for q, truth := range map[driver.Quantity]float64{driver.Energy: pod.joules, driver.ActiveSeconds: pod.active} {
			f := r.Figure(q)
			if f == nil || f.ErrorBound == nil {
				t.Errorf("%s: the receipt of %s has no %s with a bound", exporter, r.Pods[0].Name, q)
				continue
			}
			compared++
			relative += *f.ErrorBound / truth
			if math.Abs(f.ConsumedQuantity-truth) <= *f.ErrorBound+pod.still*truth {
				within++
			} else {
				t.Logf("%s: %s: %s is %.1f ± %.1f, the truth is %.1f", exporter, r.Pods[0].Name, q, f.ConsumedQuantity,
					*f.ErrorBound, truth)
			}
		}
	}
	t.Logf("%s: of %d figures of receipts %d are within their bounds, which are %.0f %% on average; %d are missing",
		exporter, compared, within, 100*relative/float64(compared), missing)
	expect.That(t, compared >= len(pods) && float64(within) >= withinBounds*float64(compared),
		"%s: of %d figures of receipts only %d are within their bounds", exporter, compared, within)
	expect.That(t, missing <= len(pods)/100, "%s: %d of %d receipts are missing", exporter, missing, len(pods))
}

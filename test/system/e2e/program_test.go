package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
)

const (
	startTimeout   = 3 * time.Minute
	stopTimeout    = 30 * time.Second
	maxScrapeTime  = time.Second
	scrapeAttempts = 5
)

// program is a running exporter.
type program struct {
	*live.Program
	t      *testing.T
	client *http.Client
}

// flags are flags by name. One with an empty value is a boolean.
type flags = node.Flags

// command returns the program with env as its complete environment, in a time zone whose clocks
// change every 5 s, with the sources of all quantities.
func command(ctx context.Context, args []string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Getenv(programPath), args...)
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "TZ=" + os.Getenv(zonePath),
		"DRA_EXPORTER_METRICS_QUANTITY_SOURCE=on", "DRA_EXPORTER_METRICS_DETAILS=on",
	}, env...)
	return cmd
}

// start starts the program, waits until it serves its first snapshot, and stops it when the test
// ends.
func start(t *testing.T, f flags, env ...string) *program {
	p := launch(t, f, env...)
	p.eventually("ready", func() bool { return p.status("/readyz") == http.StatusOK })
	return p
}

// launch starts the program, waits until it listens, and stops it when the test ends.
func launch(t *testing.T, f flags, env ...string) *program {
	return &program{
		Program: live.Launch(t, command(context.Background(), f.Args(), env...)), t: t,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout},
	}
}

// answer is a response of the program.
type answer = live.Answer

// get requests a path. The headers are alternating names and values.
func (p *program) get(path string, headers ...string) (answer, error) {
	return live.Ask(context.Background(), p.client, "http://"+p.Address+path, headers...)
}

// page requests a path that must exist.
func (p *program) page(path string, headers ...string) answer {
	a, err := p.get(path, headers...)
	must.That(p.t, err == nil, "get %s: %v", path, err)
	must.That(p.t, a.Status == http.StatusOK, "get %s: status %d: %.300s", path, a.Status, a.Body)
	return a
}

// status returns the status of a path, or 0 without a response.
func (p *program) status(path string) int {
	a, err := p.get(path)
	if err != nil {
		return 0
	}
	return a.Status
}

// scrape scrapes the program, which must always answer in time.
func (p *program) scrape() metrics { return parseMetrics(p.t, p.timely().Body) }

// timely scrapes the program and checks the duration. A program that waits during scrapes is always
// slow; if the machine is stalled, only one or two scrapes are.
func (p *program) timely() answer {
	p.t.Helper()
	var slow []time.Duration
	for {
		a := p.page("/metrics")
		if a.Took <= maxScrapeTime {
			return a
		}
		if slow = append(slow, a.Took); len(slow) == scrapeAttempts {
			p.t.Errorf("the scrapes took %v, want at most %v", slow, maxScrapeTime)
			return a
		}
	}
}

// lastScrape scrapes a program that waits for its last scrape.
func (p *program) lastScrape() metrics { return parseMetrics(p.t, p.page("/metrics").Body) }

// eventually waits until a condition holds.
func (p *program) eventually(what string, is func() bool) { p.within(startTimeout, what, is) }

func (p *program) within(timeout time.Duration, what string, is func() bool) {
	for deadline := time.Now().Add(timeout); !is(); time.Sleep(50 * time.Millisecond) {
		must.That(p.t, p.Running(), "not %s: the program has ended: %v", what, p.State())
		must.That(p.t, !time.Now().After(deadline), "not %s within %v", what, timeout)
	}
}

// cpu returns the processor time of the program.
func (p *program) cpu() time.Duration { return must.Get(p.CPU())(p.t) }

// memory returns a field of /proc/PID/status in bytes: VmRSS or VmHWM.
func (p *program) memory(field string) int64 { return must.Get(p.Memory(field))(p.t) }

// The names of the node and of the driver of its devices.
const (
	nodeName  = "node1"
	gpuDriver = "gpu.example.com"
)

// machine is a node of a test.
type machine struct {
	*node.Node
	t       *testing.T
	kubelet *podresourcestest.Kubelet
}

// newNode returns a node whose kubelet serves no pods.
func newNode(t *testing.T) *machine {
	n := newNodeWithoutKubelet(t)
	n.startKubelet()
	return n
}

// newNodeWithoutKubelet returns a node whose kubelet does not serve yet.
func newNodeWithoutKubelet(t *testing.T) *machine {
	n := node.New(t, nodeName)
	return &machine{Node: n, t: t, kubelet: n.Kubelet}
}

func (n *machine) startKubelet() { must.Do(n.t, n.Start()) }

func (n *machine) path(name string) string { return n.Path(filepath.FromSlash(name)) }

func (n *machine) mkdir(name string) { must.Do(n.t, os.MkdirAll(n.path(name), 0o755)) }

func (n *machine) write(name, text string) string {
	must.Do(n.t, os.WriteFile(n.path(name), []byte(text), 0o644))
	return n.path(name)
}

// append appends to a file.
func (n *machine) append(name, text string) {
	f, err := os.OpenFile(n.path(name), os.O_APPEND|os.O_WRONLY, 0)
	must.Do(n.t, err)
	_, err = f.WriteString(text)
	must.Do(n.t, errors.Join(err, f.Close()))
}

func (n *machine) setPods(pods ...*v1.PodResources) { must.Do(n.t, n.kubelet.SetPods(pods...)) }

// flags returns the flags that make the program use this node.
func (n *machine) flags(more flags) flags {
	return n.Flags().With(flags{
		"web.listen-address": "127.0.0.1:0", "web.last-scrape-timeout": "0s", "counter.zero-hold": "0s",
		"metrics.details": "on",
	}).With(more)
}

// addPod creates the log folder of a pod and its cgroup with processes.
func (n *machine) addPod(namespace, name, uid string) {
	must.Do(n.t, n.MakeLogs(namespace, name, uid))
	n.mkdir(cgroup(uid))
	n.write(cgroup(uid)+"/cgroup.events", "populated 1\nfrozen 0\n")
}

// endPod removes the cgroup of a pod.
func (n *machine) endPod(uid string) { must.Do(n.t, n.RemoveCgroup(uid)) }

func cgroup(uid string) string { return node.Cgroup(uid) }

// pod is a pod with one container that holds one claim on these devices.
func pod(namespace, name, claim string, devices ...*v1.ClaimResource) *v1.PodResources {
	return podresourcestest.Pod(namespace, name,
		podresourcestest.Container("main", podresourcestest.Claim(namespace, claim, devices...)))
}

// gpu returns a device of the node's own pool.
func gpu(i int) *v1.ClaimResource {
	return podresourcestest.Device(gpuDriver, nodeName, fmt.Sprintf("gpu-%d", i))
}

// uuid returns the UUID of gpu i.
func uuid(i int) string { return node.UUID(i) }

// slice returns a ResourceSlice of a driver's devices, each given as a name and the YAML of its
// attributes.
func slice(driver string, devices ...[2]string) string {
	return node.Slice(nodeName, driver, devices...)
}

// gpus returns a ResourceSlice of GPUs with UUIDs.
func gpus(n int) string { return node.GPUs(nodeName, gpuDriver, n) }

// inventory writes an inventory file.
func (n *machine) inventory(objects ...string) string {
	return n.write("inventory.yaml", strings.Join(objects, ""))
}

// vendor starts a fake vendor's exporter.
func vendor(t *testing.T, h http.HandlerFunc) string {
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections() // handlers that hang
		server.Close()
	})
	return server.URL
}

// fixed returns a handler that serves an exposition.
func fixed(exposition string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = fmt.Fprint(w, exposition) // the client closed the connection
	}
}

// endpoint returns an endpoint of a scrape configuration, for GPUs by UUID.
func endpoint(name, url string) string {
	return node.Endpoint(name, url, gpuDriver, "name: utilization, quantity: utilization", "name: power, quantity: power",
		"name: memory, quantity: memory_used", "name: temperature, quantity: temperature, labels: {sensor: gpu}",
		"name: traffic_total, quantity: io_bytes, labels: {link: pcie, direction: receive}")
}

// scrapeConfig writes a scrape configuration.
func (n *machine) scrapeConfig(endpoints ...string) string {
	return n.write("scrape.yaml", "endpoints:\n"+strings.Join(endpoints, ""))
}

// metrics is a parsed exposition.
type metrics struct {
	live.Metrics
	t *testing.T
}

func parseMetrics(t *testing.T, body []byte) metrics {
	return metrics{must.Get(live.ParseMetrics(body))(t), t}
}

// sum returns the sum of the values of those rows, and how many there are.
func (m metrics) sum(name string, labels ...string) (sum float64, n int) {
	for _, row := range m.Rows(name, labels...) {
		sum += live.ValueOf(row)
		n++
	}
	return sum, n
}

// value returns the value of the only row with these labels, and false if there is none.
func (m metrics) value(name string, labels ...string) (float64, bool) {
	rows := m.Rows(name, labels...)
	must.That(m.t, len(rows) <= 1, "%d rows of %s%q, want one", len(rows), name, labels)
	if len(rows) == 0 {
		return 0, false
	}
	return live.ValueOf(rows[0]), true
}

// want checks the value of the only row with these labels.
func (m metrics) want(want float64, name string, labels ...string) {
	got, ok := m.value(name, labels...)
	expect.That(m.t, ok && got == want, "%s%q is %v (there: %v), want %v", name, labels, got, ok, want)
}

// wantNone checks that there is no such row.
func (m metrics) wantNone(name string, labels ...string) {
	rows := m.Rows(name, labels...)
	expect.That(m.t, len(rows) == 0, "%d rows of %s%q, want none", len(rows), name, labels)
}

// is reports whether the only row with these labels has that value.
func (m metrics) is(want float64, name string, labels ...string) bool {
	got, ok := m.value(name, labels...)
	return ok && got == want
}

// positive reports whether there is one row with these labels and its value is above 0.
func (m metrics) positive(name string, labels ...string) bool {
	got, ok := m.value(name, labels...)
	return ok && got > 0
}

// report gets the snapshot.
func (p *program) report() present.Report {
	var r present.Report
	d := json.NewDecoder(bytes.NewReader(p.page("/api/v1/snapshot").Body))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	must.That(p.t, err == nil, "decode the snapshot: %v", err)
	return r
}

// conserved checks that the values of claims and the unattributed value sum to the device's value,
// and the values of pods to the claim's. It returns the number of comparisons.
func conserved(t *testing.T, r present.Report) int {
	t.Helper()
	compared, wrong := invariant.Conserved(&r)
	for _, err := range wrong {
		t.Error(err)
	}
	return compared
}

// incidents returns the response of /api/v1/incidents.
func (p *program) incidents() []*recorder.Incident {
	var out present.IncidentsReport
	must.Do(p.t, json.Unmarshal(p.page("/api/v1/incidents").Body, &out))
	return out.Incidents
}

// holders returns the number of pods that hold a device.
func holders(p *program) int { return len(p.scrape().Rows("dra_pod_claim_info")) }

// checkRate checks that the kubelet was called at most 3 times in any second.
func checkRate(t *testing.T, calls []time.Time) {
	const most = 3
	for i := most; i < len(calls); i++ {
		within := calls[i].Sub(calls[i-most])
		expect.That(t, within >= time.Second, "calls %d to %d came within %v, want at least 1 s", i-most, i, within)
	}
}

package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/driver/kmsg"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/simnode"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// runDemo runs the demo on a free port, and returns its status and output.
func runDemo(ctx context.Context, t *testing.T, args ...string) (status int, stdout, stderr string) {
	var out strings.Builder
	status, stderr = runDemoTo(ctx, t, &out, args...)
	return status, out.String(), stderr
}

// runDemoTo is runDemo with a writer for the demo's output.
func runDemoTo(ctx context.Context, t *testing.T, stdout io.Writer, args ...string) (status int, stderr string) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var errs strings.Builder
	status = run(ctx, append([]string{"--listen=" + live.FreeAddress(t)}, args...), stdout, &errs)
	left, err := os.ReadDir(temporary)
	expect.That(t, err == nil && len(left) == 0, "left behind: %v, %v", left, err)
	return status, errs.String()
}

// TestDemo runs the demo for a few seconds, with the exporter's own main function, a real socket
// and real files.
func TestDemo(t *testing.T) {
	status, stdout, stderr := runDemo(t.Context(), t, "--for=3s", "--seed=2")
	expect.That(t, status == 0 && stderr == "", "status %d: %s", status, stderr)
	for _, want := range []string{
		`page +http://127`, `top +go run ./exporter/cmd/dra-exporter top --url=127.0.0.1:\d+\n`,
		`pods simulated +(1[8-9]|2[0-5])`, `joined +23 devices \(1[6-9] of them held\), (1|2)\d claims, (1|2)\d pods`,
		`energy +(\d+\.\d) kJ`,
	} {
		expect.That(t, regexp.MustCompile(want).MatchString(stdout), "output does not match %q:\n%s", want, stdout)
	}
}

// The node with one driver alone: its devices, and the pods that hold them.
func TestOneDriver(t *testing.T) {
	for driverName, want := range map[string]string{
		simnode.NICDriver:      `joined +4 devices \(3 of them held\), 3 claims, 3 pods`,
		simnode.PluginResource: `joined +3 devices \(2 of them held\), 0 claims, 2 pods`,
	} {
		status, stdout, stderr := runDemo(t.Context(), t, "--for=3s", "--driver="+driverName)
		expect.That(t, status == 0 && stderr == "" && regexp.MustCompile(want).MatchString(stdout),
			"%s: status %d: %s\n%s", driverName, status, stderr, stdout)
	}
}

// interrupter interrupts a demo as soon as it prints something.
type interrupter struct {
	strings.Builder
	interrupt func()
}

func (i *interrupter) Write(text []byte) (int, error) {
	i.interrupt()
	return i.Builder.Write(text)
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &interrupter{interrupt: cancel}
	status, stderr := runDemoTo(ctx, t, out)
	expect.That(t, status == 0 && strings.Contains(out.String(), "pods simulated"),
		"status %d: %s\n%s", status, out, stderr)
}

func TestNothingJoined(t *testing.T) {
	status, _, stderr := runDemo(t.Context(), t, "--for=1ns")
	expect.That(t, status == exitFailure && strings.Contains(stderr, errNothing.Error()), "status %d: %s", status, stderr)
}

func TestBadFlags(t *testing.T) {
	for _, flag := range []string{"--for=soon", "--seed=-1", "--hang=3s", "more"} {
		if status, _, stderr := runDemo(t.Context(), t, flag); status != exitUsage || !strings.Contains(stderr, "usage:") {
			t.Errorf("%s: status %d: %s", flag, status, stderr)
		}
	}
	if status, _, _ := runDemo(t.Context(), t, "--help"); status != 0 {
		t.Errorf("--help: status %d", status)
	}
	status, _, stderr := runDemo(t.Context(), t, "--for=2s", "--listen=nowhere.invalid:1")
	expect.That(t, status == exitFailure && strings.Contains(stderr, "run exporter"),
		"bad address: status %d: %s", status, stderr)
}

// asked is the exporter's input from the demo's node: the kubelet's list and the inventory.
type asked struct {
	holders.Asker
	*simnode.Node
	listed driver.Inventory
	dates  holders.Dates
	view   podresources.View
}

func (n *asked) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	return n.Kubelet.Answer()
}

func (*asked) Instance() podresources.Instance { return "" }

func (n *asked) Describe() (podresources.View, driver.Inventory) {
	held, signs := n.Book.Holds(time.Now(), n.view.At)
	n.view = n.dates.Date(alone(held.Allocations), signs, time.Now())
	return n.view, n.listed
}

// alone returns the allocations with what the API server says of their pods.
func alone(allocations []podresources.Allocation) []podresources.Allocation {
	out := slices.Clone(allocations)
	for i := range out {
		out[i].Holders = slices.Clone(out[i].Holders)
		for j := range out[i].Holders {
			out[i].Holders[j].Meta = &podresources.PodMeta{Alone: true}
		}
	}
	return out
}

// documents has the incidents in a state folder: their last stored documents, and their numbers of
// occurrences, which are stored at each tick.
type documents struct {
	mu      sync.Mutex
	stored  map[string][]byte
	tallies []byte
}

func (d *documents) keep(t *testing.T) func(kind, id string, content any) {
	return func(_, id string, content any) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if i, ok := content.(*recorder.Incident); ok {
			text, err := json.Marshal(i)
			expect.OK(t, err)
			d.stored[id] = text
		}
	}
}

func (d *documents) incidents(t *testing.T) (out []*recorder.Incident) {
	for _, text := range d.stored {
		i := &recorder.Incident{}
		err := json.Unmarshal(text, i)
		must.That(t, err == nil && i.Valid(), "a document is damaged: %v: %+v", err, i)
		out = append(out, i)
	}
	return out
}

// restore passes the incidents to a recorder, as at the start of a process.
func (d *documents) restore(t *testing.T, r *recorder.Recorder) {
	r.Restore(d.incidents(t))
	if d.tallies == nil {
		return
	}
	must.Do(t, r.RestoreTallies(d.tallies))
}

// live runs an exporter of the node with the demo's flags for a time, and ends it like a kill.
func (d *documents) live(t *testing.T, node *simnode.Node, length time.Duration) {
	t.Helper()
	flag := func(name string) string {
		for _, arg := range node.Args() {
			if value, found := strings.CutPrefix(arg, "--"+name+"="); found {
				return value
			}
		}
		t.Fatalf("the node has no flag %s", name)
		return ""
	}
	content := must.Get(os.ReadFile(flag("inventory.file")))(t)
	listed, _, err := inventory.ParseSlices(content, simnode.Name)
	must.Do(t, err)
	log, processes := slog.New(slog.DiscardHandler), podresources.NewProcesses(flag("path.procfs"))
	metrics := exporter.NewSelfMetrics(prometheus.NewRegistry(), simnode.Name, nil, log)
	of := &asked{Node: node, listed: listed}
	of.Asker = holders.Asker{
		Lister: of, Limiter: &podresources.Limiter{}, Book: holders.NewBook(time.Minute, nil), Now: time.Now,
		UID: podresources.NewPodLogs(flag("path.podlogs"), nil).UID,
	}
	works := podresources.NewPodWorks(podresources.NewCgroups(flag("path.sysfs"), time.Now),
		podresources.NewPodProcesses(flag("path.procfs"), time.Now), flag("path.procfs"))
	flight := recorder.New(recorder.Config{
		Interval: time.Second, StalledAfter: simnode.StalledAfter(simnode.DefaultHang),
		Works: func(uids []string) map[string]podresources.PodWork {
			if len(uids) == 0 {
				return nil
			}
			work, err := works.Of(uids)
			expect.OK(t, err)
			return work
		},
	})
	d.restore(t, flight)
	sampler := exporter.NewSampler(exporter.SamplerConfig{
		Interval: time.Second, Deadline: 5 * time.Second, MaxAge: time.Minute, Now: time.Now, Owners: of, Inventory: of,
		Sources: []driver.Source{
			node.Source(), kmsg.New(driver.Host{
				Kmsg: flag("path.kmsg"), Sysfs: flag("path.sysfs"), Procfs: flag("path.procfs"), PodOf: processes.PodUID,
			}),
		},
		PodOf: processes.PodUID, Ledger: ledger.New(ledger.Config{Retention: 5 * time.Minute, IdleThreshold: 0.01}),
		Limiter: exposition.NewLimiter(0, nil), Metrics: metrics,
		Recorder: exporter.NewFlightRecorder(flight, metrics, log, d.keep(t), nil),
	})
	ctx, kill := context.WithTimeout(t.Context(), length)
	defer kill()
	sampler.Run(ctx)
	d.tallies = flight.Tallies()
}

// story has the events of one kind on one device, or of the source.
type story struct {
	onset, last time.Time
	times       int
	end         time.Time // the zero time: not over
	pods        string
}

// The exporter's incidents of the demo, with its default flags, are equal to the demo's own log in
// onset, last occurrence, count, end and hits, although the exporter is killed in the middle.
func TestStory(t *testing.T) {
	const length, killed, away = 11*time.Minute + 30*time.Second, 7*time.Minute + 10*time.Second, 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		scenario := simnode.Demo(1, simnode.DefaultHang)
		// PodResources does not contain admin access.
		scenario.Standing = slices.DeleteFunc(scenario.Standing, func(p simnode.PodSpec) bool {
			return p.Name == "device-monitor-7xk2p"
		})
		node := must.Get(simnode.New(filepath.Join(t.TempDir(), "node"), 1, scenario.Devices, simnode.Options{
			Sim: sim.Options{Window: time.Second, Down: scenario.Outage},
		}))(t)
		ctx, stop := context.WithTimeout(t.Context(), length)
		defer stop()
		var playing sync.WaitGroup
		playing.Go(func() {
			expect.OK(t, scenario.Run(ctx, node))
		})
		d := &documents{stored: map[string][]byte{}}
		d.live(t, node, killed)
		time.Sleep(away)
		d.live(t, node, length-killed-away)
		playing.Wait()
		d.check(t, node.Begun(), scenario.Story(0, length))
	})
}

// check compares the incidents with the log.
func (d *documents) check(t *testing.T, begun time.Time, log []simnode.Trouble) {
	t.Helper()
	want, got := map[string]story{}, map[string]story{}
	for _, of := range log {
		key := strings.Join([]string{of.Kind, of.Code, of.Device}, " ")
		s := want[key]
		s.last, s.times, s.pods = begun.Add(of.At), s.times+1, strings.Join(of.Pods, " ")
		if s.times == 1 {
			s.onset = s.last
		}
		if of.For > 0 {
			s.end = s.last.Add(of.For)
		}
		want[key] = s
	}
	last := recorder.New(recorder.Config{Interval: time.Second})
	d.restore(t, last)
	for _, i := range last.Incidents() {
		code := i.Code
		if i.Kind == recorder.ClaimStalled {
			code = ""
		}
		key := strings.Join([]string{string(i.Kind), code, i.Device.Device}, " ")
		_, again := got[key]
		expect.That(t, !again, "%s are several incidents", key)
		s := story{onset: i.Onset, last: i.Last, times: i.Count, pods: strings.Join(i.Pods(), " ")}
		if i.Kind == recorder.ClaimStalled {
			s.last = i.Onset // the detection is much later
		}
		if !i.Open() {
			s.end = *i.End
		}
		got[key] = s
		expect.That(t, i.Kind == recorder.SourceDown || i.Chart != nil && !i.Chart.Times[0].After(i.Onset),
			"%s has no recording of its onset", key)
	}
	near := func(a, b time.Time) bool { return a.Sub(b).Abs() <= 2*time.Second }
	for key, w := range want {
		g, found := got[key]
		if !found || !near(g.onset, w.onset) || !near(g.last, w.last) || g.times != w.times || !near(g.end, w.end) ||
			g.pods != w.pods {
			t.Errorf("%s:\ngot  %+v\nwant %+v", key, g, w)
		}
		delete(got, key)
	}
	for key, g := range got {
		t.Errorf("%s did not happen: %+v", key, g)
	}
}

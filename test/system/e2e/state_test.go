package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// meters is an endpoint with counters that also increase between readings: 1000 bytes a second
// each, from a large number on.
type meters struct {
	begun  time.Time
	faulty atomic.Bool  // GPU 0 has had an error, the first one of its code
	faults atomic.Int64 // how many errors of another code it has had
	memory atomic.Int64 // how many bytes are in use
}

const countedBefore = 1e12

func (m *meters) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	carried := countedBefore + 1000*time.Since(m.begun).Seconds()
	for i := range 2 {
		_, _ = fmt.Fprintf(w, "power{uuid=%[1]q} 100\nutilization{uuid=%[1]q} 0.5\nmemory{uuid=%[1]q} %[2]d\n", uuid(i),
			m.memory.Load())
		_, _ = fmt.Fprintf(w, "traffic_total{uuid=%q} %v\n", uuid(i), carried)
	}
	_, _ = fmt.Fprintf(w, "xid_total{uuid=%q,code=\"31\"} %d\n", uuid(0), m.faults.Load())
	if m.faulty.Load() {
		_, _ = fmt.Fprintf(w, "xid_total{uuid=%q,code=\"94\"} 1\n", uuid(0))
	}
}

const xids = "  - {name: xid_total, quantity: errors, labels: {kind: xid}, labels_from: {code: code}}\n"

// stateNode is a node of two GPUs that pods a and b hold.
func stateNode(t *testing.T) (n *machine, m *meters, f flags) {
	n = newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1)))
	m = &meters{begun: time.Now()}
	m.memory.Store(60 << 30)
	f = n.flags(flags{
		"inventory.file": n.inventory(gpus(2)), "state.dir": n.path("state"), "counter.zero-hold": "0s",
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor(t, m.ServeHTTP)) + xids),
		"web.created-samples":  "", "web.last-scrape-timeout": "0s",
	})
	return n, m, f
}

// held waits until claim-a was held for this time.
func (p *program) held(seconds float64) {
	p.eventually("the claim is charged", func() bool {
		held, ok := p.scrape().value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
		traffic, _ := p.lastScrape().value("dra_claim_io_bytes_total", "resourceclaim_name", "claim-a")
		return ok && held >= seconds && traffic > 0
	})
}

// counters returns the counters of devices, claims and pods, and the times at which they were
// created.
func (p *program) counters() map[string]float64 {
	out := map[string]float64{}
	for line := range strings.Lines(string(p.page("/metrics", "Accept", acceptOpenMetrics).Body)) {
		series, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		name, _, _ := strings.Cut(series, "{")
		if !found || !strings.HasPrefix(name, "dra_") || strings.HasPrefix(name, "dra_exporter_") ||
			!strings.HasSuffix(name, "_total") && !strings.HasSuffix(name, "_created") {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		must.That(p.t, err == nil, "%s: %v", line, err)
		out[series+"}"] = number
	}
	return out
}

// goesOn checks that the counters of a process continue those of the previous process.
func goesOn(t *testing.T, before, now map[string]float64) {
	t.Helper()
	n := 0
	for key, value := range before {
		next, there := now[key]
		switch {
		case !there:
			t.Errorf("%s is gone", key)
		case next < value, strings.Contains(key, "_created{") && next != value:
			t.Errorf("%s goes on from %v with %v", key, value, next)
		default:
			n++
		}
	}
	expect.That(t, n >= 20, "only %d counters go on", n)
}

// endings are the ways in which a program ends, and what has happened to its folder before.
func endings() map[string]func(p *program, f flags) {
	return map[string]func(p *program, f flags){
		"it ends":      func(p *program, _ flags) { p.Stop() },
		"it is killed": func(p *program, f flags) { p.killWritten(f) },
		"it is killed after a second program": func(p *program, f flags) {
			findLocked(p.t, f)
			p.killWritten(f)
		},
		"it is killed after check": func(p *program, f flags) {
			checkFolder(p.t, f)
			p.killWritten(f)
		},
	}
}

// findLocked runs a second program on the same folder: it runs without it, and reports that.
func findLocked(t *testing.T, f flags) {
	second := start(t, f)
	second.held(1)
	second.scrape().want(0, "dra_exporter_source_up", "source", "state")
	expect.That(t, second.lastScrape().positive("dra_exporter_source_errors_total", "source", "state", "reason", "locked"),
		"the second instance does not say that the folder is locked")
	second.Stop()
}

// checkFolder runs check: in the pod of the program, it reads the state folder of the program
// without changing it. Without a state folder, it reports that nothing is kept over a restart.
func checkFolder(t *testing.T, f flags) {
	folder, without := f["state.dir"], f.With(nil)
	delete(without, "state.dir")
	for _, of := range []struct {
		flags flags
		env   []string
		want  string
	}{
		{without, []string{"DRA_EXPORTER_STATE_DIR=" + folder}, folder + ": counters, incidents"},
		{
			without.With(flags{"node-name": "other"}),
			[]string{"DRA_EXPORTER_STATE_DIR=" + folder},
			"can't be used (other_node)",
		},
		{without, nil, "not set: counters, incidents and receipts are lost"},
	} {
		said, _ := command(t.Context(), append(of.flags.Args(), "check"), of.env...).Output() // its status is that of others
		lines := slices.Collect(strings.Lines(string(said)))
		expect.That(t, slices.ContainsFunc(lines, func(line string) bool {
			return strings.Contains(line, "state.dir") && strings.Contains(line, of.want)
		}), "check does not say %q of the folder:\n%s", of.want, said)
	}
}

// killWritten kills the program at a moment at which its state folder contains everything that it
// has served. On a busy machine, a tick may be served before it is written. If the program is
// killed then, its counters begin again: the tests of package state cover that.
func (p *program) killWritten(f flags) {
	p.eventually("what was served is written", func() bool {
		p.suspend()
		if !written(p.t, f["state.dir"]) {
			p.signal(syscall.SIGCONT)
			return false
		}
		p.Kill()
		return true
	})
}

// suspend stops all threads of the program. SIGCONT continues them.
func (p *program) suspend() {
	p.signal(syscall.SIGSTOP)
	p.eventually("the program is suspended", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		must.That(p.t, err == nil && len(threads) != 0, "the program has no threads: %v", err)
		return !slices.ContainsFunc(threads, func(name string) bool {
			stat, err := os.ReadFile(name)
			return err == nil && !bytes.Contains(stat, []byte(") T "))
		})
	})
}

func (p *program) signal(s syscall.Signal) {
	err := syscall.Kill(p.PID(), s)
	must.That(p.t, err == nil, "send %v: %v", s, err)
}

// written reports whether the newest segment of a state folder ends with a mark: a frame whose
// content is the letter M.
func written(t *testing.T, folder string) bool {
	segments, err := filepath.Glob(filepath.Join(folder, "state-*.log"))
	must.That(t, err == nil && len(segments) != 0, "segments: %q, %v", segments, err)
	b := must.Get(os.ReadFile(slices.Max(segments)))(t)
	n := len(b) - len("\x01\x00\x00\x00CRC.M")
	return n >= 0 && bytes.HasPrefix(b[n:], []byte{1, 0, 0, 0}) && bytes.HasSuffix(b, []byte("M"))
}

// What a restart must keep, however the program ended. Counters continue. What the devices counted
// in between is charged to the claims that held them all the time, and so are errors in between.
// Peaks are kept.
func TestStateOutlivesRestart(t *testing.T) {
	t.Parallel()
	for name, end := range endings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, m, f := stateNode(t)
			m.faults.Store(5)
			p := start(t, f)
			p.held(3)
			before, counters := p.scrape(), p.counters()
			end(p, f)
			n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "c", "claim-c", gpu(1)))
			m.faulty.Store(true)
			m.faults.Add(2)
			m.memory.Store(10 << 30)
			time.Sleep(4 * time.Second) // the program is away
			p = start(t, f)
			p.eventually("it reads", func() bool { return p.scrape().positive("dra_device_errors_total", "code", "94") })
			after := p.lastScrape()
			goesOn(t, counters, p.counters())
			after.want(1, "dra_claim_errors_total", "resourceclaim_name", "claim-a", "code", "94")
			after.want(2, "dra_claim_errors_total", "resourceclaim_name", "claim-a", "code", "31")
			after.want(10<<30, "dra_claim_memory_used_bytes", "resourceclaim_name", "claim-a")
			after.want(60<<30, "dra_claim_memory_used_peak_bytes", "resourceclaim_name", "claim-a")
			held, _ := after.value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
			was, _ := before.value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
			all, _ := after.value("dra_device_io_bytes_total", "device", "gpu-0")
			charged, _ := after.value("dra_claim_io_bytes_total", "resourceclaim_name", "claim-a")
			expect.That(t, held >= was+4 && charged >= 1000*(was+4) && charged >= 0.99*all-1500,
				"claim-a was held for %v s, then for %v s, and has %v of %v bytes", was, held, charged, all)
			nobody, _ := after.value("dra_device_unattributed_io_bytes_total", "device", "gpu-1")
			if c, _ := after.value("dra_claim_io_bytes_total", "resourceclaim_name", "claim-c"); c > 2500 || nobody < 2500 {
				t.Errorf("claim-c, which began meanwhile, has %v bytes; %v are unattributed", c, nobody)
			}
			after.wantNone("dra_claim_power_watts", "resourceclaim_name", "claim-b")
		})
	}
}

// A pod began while no program ran, on a node without holders before: it is charged from the
// creation of its cgroup. Another pod has no cgroup: it is charged from the time at which the
// kubelet lists it.
func TestBeganWhileAway(t *testing.T) {
	t.Parallel()
	const away, apart = 4 * time.Second, 2 * time.Second
	n, _, f := stateNode(t)
	n.setPods()
	p := start(t, f)
	p.eventually("it reads", func() bool { return p.scrape().positive("dra_device_io_bytes_total", "device", "gpu-1") })
	p.Kill()
	time.Sleep(away - apart) // the program is away
	n.addPod("team", "a", "uid-a")
	n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1)))
	time.Sleep(apart)
	p = start(t, f)
	p.held(apart.Seconds() + 1)
	counted := func(family, label, value string) float64 {
		v, ok := p.lastScrape().value(family, label, value)
		expect.That(t, ok, "there is no %s of %s", family, value)
		return v
	}
	a := counted("dra_claim_io_bytes_total", "resourceclaim_name", "claim-a")
	b := counted("dra_claim_io_bytes_total", "resourceclaim_name", "claim-b")
	nobody := counted("dra_device_unattributed_io_bytes_total", "device", "gpu-0")
	all := counted("dra_device_unattributed_io_bytes_total", "device", "gpu-1")
	least := 1000 * apart.Seconds() * 0.9
	expect.That(t, a >= b+least && nobody >= 1000*(away-apart).Seconds()*0.9 && all >= nobody+least,
		"claim-a has %v bytes, claim-b %v; of their devices' %v and %v are unattributed", a, b, nobody, all)
}

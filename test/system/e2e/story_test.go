package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

// The story of the demo in a tenth of its time.
const (
	storyXIDs    = 10 * time.Second
	storyFlaps   = 23 * time.Second
	storyHangs   = 30 * time.Second // and the claim is found to be stalled half as long later
	storyHangEnd = 75 * time.Second
	storyOutage  = 85 * time.Second
	storyEnd     = 95 * time.Second
	// lookAgain is the longest time after which the return of a GPU is noticed that was lost when
	// its driver's library was opened. The library is opened again after 10 s, and 20 s later.
	lookAgain = 22 * time.Second
)

// hastened returns the scenario of the demo in a shorter time.
func hastened() simnode.Scenario {
	s := simnode.Demo(1, storyHangs)
	s.Outage = sim.Span{First: storyOutage, Length: 5 * time.Second}
	for i := range s.Devices {
		switch d := &s.Devices[i]; d.Name {
		case "gpu-1":
			d.XIDEvery = storyXIDs
		case "gpu-4":
			d.Lost = sim.Span{First: 40 * time.Second, Length: 30 * time.Second}
		case "eth1":
			d.LinkDownEvery = storyFlaps
		}
	}
	s.Faults = nil
	for at := storyXIDs; at < s.Cycle; at += storyXIDs {
		s.Faults = append(s.Faults, simnode.Fault{At: at, Namespace: "team-nlp", Pod: "embedder-0", Device: "gpu-7"})
	}
	for i := range s.Visits {
		if s.Visits[i].To == simnode.HangEnd {
			s.Visits[i].To = storyHangEnd
		}
	}
	return s
}

// telling is a node of the demo whose devices are read as real ones are: by two vendors' exporters,
// and one GPU by its driver's library.
type telling struct {
	t        *testing.T
	scenario simnode.Scenario
	node     *simnode.Node
	library  *nvmltest.Machine
	first    atomic.Int64 // when a vendor's exporter first answered, since the node's begin
	paused   atomic.Int64 // the longest time for which the machine stood still
}

func newTelling(t *testing.T) *telling {
	t.Helper()
	s := hastened()
	root, err := os.MkdirTemp("", "e2e") //nolint:usetesting // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	library, err := nvmltest.New(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	library.Reset(1)
	node, err := simnode.New(root, 1, s.Devices, simnode.Options{
		Sim: sim.Options{Window: time.Second, Down: s.Outage}, PodsAPI: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Close)
	n := &telling{t: t, scenario: s, node: node, library: library}
	library.GPUs[0].SetUUID(n.device("gpu-4").Hardware.UUID, "NVIDIA H100")
	if err := library.Live(); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *telling) device(name string) *simnode.Device {
	return &n.scenario.Devices[slices.IndexFunc(n.scenario.Devices, func(d simnode.Device) bool { return d.Name == name })]
}

func (n *telling) elapsed() time.Duration { return time.Since(n.node.Begun()) }

// vendor returns the address of an exporter of the devices of a driver, except gpu-4. During an
// outage, it answers with a server error.
func (n *telling) vendor(driverName string) string {
	source := n.node.SourceWith(sim.Options{Window: time.Second})
	if driverName == simnode.GPUDriver {
		source = n.node.Source()
	}
	var mu sync.Mutex // a source is used by one at a time
	return vendor(n.t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n.first.CompareAndSwap(0, int64(n.elapsed()))
		samples, err := source.Sample(r.Context())
		if len(samples) == 0 {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		var text strings.Builder
		for i := range samples {
			h := &samples[i].Hardware
			if samples[i].Driver != driverName || h.UUID+h.NetDev == "" || h.UUID == n.library.GPUs[0].UUID() {
				continue
			}
			for _, reading := range samples[i].Readings {
				labels := fmt.Sprintf("hardware=%q,one=%q,two=%q", h.UUID+h.NetDev, reading.Labels[0], reading.Labels[1])
				fmt.Fprintf(&text, "%v{%s} %v\n", reading.Quantity, labels, reading.Value)
			}
		}
		fixed(text.String())(w, r)
	})
}

const storyMetrics = `  metrics:
  - {name: utilization, quantity: utilization}
  - {name: power, quantity: power}
  - {name: memory_used, quantity: memory_used}
  - {name: engine_utilization, quantity: engine_utilization, labels_from: {engine: one}}
  - {name: io_bytes, quantity: io_bytes, labels_from: {link: one, direction: two}}
  - {name: errors, quantity: errors, labels_from: {kind: one, code: two}}
`

// play plays the pods, and lets the library lose its GPU, until the test ends.
func (n *telling) play() (begun time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	begun = n.elapsed()
	playing.Go(func() {
		if err := n.scenario.Run(ctx, n.node); err != nil {
			n.t.Error(err)
		}
	})
	lost := n.device("gpu-4").Lost
	playing.Go(func() {
		const step = 50 * time.Millisecond
		for last := time.Now(); ctx.Err() == nil; {
			time.Sleep(step)
			n.paused.Store(max(n.paused.Load(), int64(time.Since(last)-step)))
			last = time.Now()
			now := n.elapsed()
			n.library.GPUs[0].Lost = 0
			if now >= lost.First && now < lost.First+lost.Length {
				n.library.GPUs[0].Lost = 1
			}
		}
	})
	n.t.Cleanup(func() { stop(); playing.Wait() })
	return begun
}

// happened has the events of one kind of a device or of the source.
type happened struct {
	Onset, Last time.Duration // since the begin of the node
	Times       int
	End         time.Duration // 0: it lasts
	Hit         string
	Possibly    string
}

// log returns the events until now, by the node.
func (n *telling) log(begun time.Duration) map[string]happened {
	out := map[string]happened{}
	now := n.elapsed()
	for _, of := range n.scenario.Story(begun, now) {
		key := strings.Join([]string{of.Kind, of.Code, of.Device}, " ")
		if of.At <= time.Duration(n.first.Load()) { // it was counted before it was read first
			continue
		}
		h, again := out[key]
		if !again {
			h.Onset = of.At
		}
		h.Last, h.Hit = of.At, strings.Join(of.Pods, " ")
		h.Times++
		if of.For > 0 && of.At+of.For <= now {
			h.End = of.At + of.For
		}
		out[key] = h
	}
	return out
}

// told returns the events until now, by the incidents of the program.
func (n *telling) told(p *program) map[string]happened {
	n.t.Helper()
	out := map[string]happened{}
	for _, i := range p.incidents() {
		since := func(at time.Time) time.Duration { return at.Sub(n.node.Begun()) }
		h := happened{
			Onset: since(i.Onset), Last: since(i.Last), Times: i.Count, Hit: strings.Join(i.Pods(), " "),
			Possibly: strings.Join(i.PossiblePods(), " "),
		}
		code := i.Code
		switch i.Kind {
		case recorder.ClaimStalled:
			code, h.Last = "", h.Onset // Last is when it was found
		case recorder.SourceDown, recorder.DeviceLost:
			h.Last = h.Onset // Last is when it was found
		}
		if !i.Open() {
			h.End = since(*i.End)
		}
		key := strings.Join([]string{string(i.Kind), code, i.Device.Device}, " ")
		if other, again := out[key]; again {
			key += " again"
			n.t.Errorf("%s are several incidents: %+v and %+v", key, other, h)
		}
		out[key] = h
	}
	return out
}

// sameTimes reports whether the incidents have the same counts as the events, and have ended if the
// events have.
func sameTimes(want, got map[string]happened) bool {
	for key, w := range want {
		if g := got[key]; g.Times != w.Times || (g.End == 0) != (w.End == 0) {
			return false
		}
	}
	return len(want) == len(got)
}

// The story of the demo: an XID that repeats, a job that hangs, a link that flaps, a GPU that its
// driver loses, and a source that fails. The incidents of the program equal the node's own events
// in onset, last occurrence, count, end and hits, although the program is killed in the middle and
// errors occur while no program runs.
func TestStory(t *testing.T) {
	t.Parallel()
	n := newTelling(t)
	config := filepath.Join(t.TempDir(), "scrape.yaml")
	text := "endpoints:\n"
	for _, of := range []struct{ name, driver, hardware string }{
		{"gpus", simnode.GPUDriver, "uuid"}, {"nics", simnode.NICDriver, "netdev"},
	} {
		text += fmt.Sprintf("- name: %s\n  url: %s\n  interval: 1s\n  refresh: 0s\n  driver: %s\n"+
			"  match: {label: hardware, hardware: %s}\n", of.name, n.vendor(of.driver), of.driver, of.hardware) + storyMetrics
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := flags{
		"web.listen-address": "127.0.0.1:0", "web.last-scrape-timeout": "0s", "counter.zero-hold": "0s",
		"source.scrape.config": config, "state.dir": filepath.Join(t.TempDir(), "state"),
		"stalled.after": simnode.StalledAfter(storyHangs).String(),
	}
	for _, arg := range n.node.Args() {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		f[name] = value
	}
	library := "LD_LIBRARY_PATH=" + filepath.Dir(n.library.Library)
	p := start(t, f, library)
	begun := n.play()

	p.eventually("the claim is stalled, and the GPU is lost", func() bool {
		told := n.told(p)
		_, stalled := told["claim_stalled  gpu-3"]
		_, lost := told["device_lost gpu_lost gpu-4"]
		return stalled && lost
	})
	p.eventually("the recordings are stored", func() bool {
		missing := func(i *recorder.Incident) bool { return !isStored(t, f["state.dir"], i.ID) }
		return !slices.ContainsFunc(p.incidents(), missing)
	})
	next := func(since time.Duration) time.Duration {
		return since + (n.elapsed() - since).Truncate(storyXIDs) + storyXIDs
	}
	const moment = 500 * time.Millisecond
	time.Sleep(next(0) - moment - n.elapsed())
	p.Kill()
	killed := n.elapsed()
	time.Sleep(max(next(0), next(begun)) + moment - n.elapsed()) // both GPUs have XIDs meanwhile
	p = start(t, f, library)
	back := n.elapsed()

	time.Sleep(storyEnd - n.elapsed())
	want, got := n.log(begun), n.told(p)
	for last := n.elapsed() + 2*storyXIDs; !sameTimes(want, got) && n.elapsed() < last; {
		time.Sleep(100 * time.Millisecond)
		want, got = n.log(begun), n.told(p)
	}
	const lost = "device_lost gpu_lost gpu-4"
	if g, w := got[lost], want[lost]; g.End > w.End && g.End < w.End+lookAgain {
		g.End = w.End
		got[lost] = g
	}
	slack := 3*time.Second + time.Duration(n.paused.Load())
	near := cmp.Comparer(func(a, b time.Duration) bool {
		if a, b := min(a, b), max(a, b); b > killed-time.Second && a < back+time.Second && b <= back+slack {
			return true // it was learned of when the program was back
		}
		return (a - b).Abs() <= slack
	})
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("the program was away from %v to %v, and times may be off by %v (-log +incidents):\n%s", killed, back, slack,
			diff)
	}
	for _, i := range p.incidents() {
		chart := p.recording(i.ID).Chart
		if i.Kind != recorder.SourceDown && (chart == nil || chart.Times[0].After(i.Onset)) {
			t.Errorf("%s has no recording of its onset", i.Text)
		}
	}
}

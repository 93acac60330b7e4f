package exporter

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/state"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// wholeNode is a node and a sampler with everything on: parsing the kubelet's answer, join, ledger
// with errors, peaks, distributions and advice, topology, flight recorder with incidents, stalled
// claims and receipts, and the limit. Its time is simulated.
type wholeNode struct {
	*node
	*Sampler
	kubelet  *wireKubelet
	recorder *recorder.Recorder
	began    time.Time
}

// wireKubelet is a kubelet that lists its pods in another order each time, as bytes.
type wireKubelet struct {
	podresources.Decoder
	pods [][]byte // with tags and lengths
	wire []byte
}

func newWireKubelet(tb testing.TB, devices, pods int) *wireKubelet {
	k := &wireKubelet{}
	for _, pod := range answer(devices, pods).PodResources {
		wire := must.Get(proto.Marshal(&v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{pod}}))(tb)
		k.pods = append(k.pods, wire)
	}
	return k
}

// shuffle makes the bytes of the next answer.
func (k *wireKubelet) shuffle() {
	rand.Shuffle(len(k.pods), func(i, j int) { k.pods[i], k.pods[j] = k.pods[j], k.pods[i] })
	k.wire = k.wire[:0]
	for _, pod := range k.pods {
		k.wire = append(k.wire, pod...)
	}
}

// List implements [podresources.Lister].
func (k *wireKubelet) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	return k.Decode(mem.BufferSlice{mem.SliceBuffer(k.wire)})
}

// Instance implements [podresources.Lister].
func (*wireKubelet) Instance() podresources.Instance { return "" }

// bookNode knows the holders of an inventory's devices by answers of a kubelet.
type bookNode struct {
	holders.Asker
	inventory driver.Inventory
	view      podresources.View
	dates     holders.Dates
}

func newBookNode(kubelet podresources.Lister, inventory driver.Inventory, now func() time.Time) *bookNode {
	return &bookNode{inventory: inventory, Asker: holders.Asker{
		Lister: kubelet, Limiter: &podresources.Limiter{}, Book: holders.NewBook(time.Minute, nil), Now: now,
	}}
}

func (n *bookNode) Describe() (podresources.View, driver.Inventory) {
	held, signs := n.Book.Holds(n.Now(), n.view.At)
	n.view = n.dates.Date(held.Allocations, signs, n.Now())
	return n.view, n.inventory
}

func newWholeNode(tb testing.TB, devices, pods int) *wholeNode {
	n := newNode(devices, pods)
	kubelet := newWireKubelet(tb, devices, pods)
	for i := range n.samples {
		for _, kind := range []string{"ecc_corrected", "ecc_uncorrected"} {
			n.samples[i].Readings = append(n.samples[i].Readings, driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{kind},
			})
		}
	}
	w := &wholeNode{
		kubelet: kubelet, node: n, began: n.now, recorder: recorder.New(recorder.Config{Interval: time.Second}),
	}
	source := funcSource{"bench", func(context.Context) ([]driver.Sample, error) { return n.samples, nil }}
	log := slog.New(slog.DiscardHandler)
	metrics := NewSelfMetrics(prometheus.NewRegistry(), "node1", nil, log)
	node := newBookNode(kubelet, n.in.Inventory, func() time.Time { return n.now })
	w.Sampler = NewSampler(SamplerConfig{
		Interval: time.Second, Deadline: 5 * time.Second, MaxAge: time.Minute, Now: func() time.Time { return n.now },
		Owners: node, Inventory: node, Paths: &fakePaths{},
		Sources: []driver.Source{source},
		Ledger:  ledger.New(exportertest.LedgerConfig()), Limiter: exposition.NewLimiter(0, nil), Metrics: metrics,
		Recorder: NewFlightRecorder(w.recorder, metrics, log, func(string, string, any) {}, func(*recorder.Incident, int) {}),
	})
	return w
}

// next advances a second, in which every reading swings. In each minute, every eighth device has an
// uncorrectable error, and every device a corrected one.
func (w *wholeNode) next() {
	w.now = w.now.Add(time.Second)
	w.kubelet.shuffle()
	minute := int(w.now.Sub(w.began).Seconds())%60 == 0
	w.swing(w.began, rand.Float64, func(device int, kind string) bool {
		return minute && (kind == "ecc_corrected" || device%8 == 0)
	})
}

// fill lets so much time pass that the ring is full.
func (w *wholeNode) fill(tb testing.TB, each func(tick int)) {
	const ticks = int(recorder.DefaultKeep/time.Second) + 60
	for tick := range ticks {
		w.next()
		w.Sampler.tick(tb.Context())
		each(tick)
	}
	history := w.recorder.History(recorder.Selection{Device: "gpu-7"})
	n := len(history.Times)
	must.That(tb, n >= 600, "the ring has %d ticks, want at least 600", n)
}

// keepState lets the node keep in a folder what outlives the process, and returns how many bytes
// of it are written so far.
func (w *wholeNode) keepState(tb testing.TB) (written *int) {
	written = new(int)
	store := state.New(state.Config{
		Path: tb.TempDir(), Wrote: func(bytes int) { *written += bytes },
		Report: func(_ time.Duration, err error) {
			expect.OK(tb, err)
		},
	})
	store.Restore(tb.Context(), w.now)
	store.Add("ledger", w.Ledger)
	store.Add("stalls", w.recorder.Judge())
	store.Add("tallies", &WholePart{State: w.recorder.Tallies})
	w.State = store
	tb.Cleanup(func() { store.Close(context.Background(), w.now) })
	return written
}

// benchWhole measures ticks with everything on and a full ring, in CPU time: of this process and of
// the kernel for it. What sources read is made before.
func benchWhole(b *testing.B, devices, pods int) {
	defer debug.SetGCPercent(debug.SetGCPercent(30)) // as the program has it
	w := newWholeNode(b, devices, pods)
	written := w.keepState(b)
	w.fill(b, func(int) {})
	var spent, most time.Duration
	before := *written
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		w.next()
		b.StartTimer()
		userBefore, systemBefore := cpuTime(b)
		w.Sampler.tick(b.Context())
		user, system := cpuTime(b)
		took := user + system - userBefore - systemBefore
		spent, most = spent+took, max(most, took)
	}
	b.ReportMetric(spent.Seconds()*1e3/float64(b.N), "cpu-ms/op")
	b.ReportMetric(most.Seconds()*1e3, "cpu-ms/worst-tick")
	b.ReportMetric(float64(*written-before)/float64(b.N), "state-bytes/op")
	b.ReportMetric(float64(w.Latest().Series), "series")
}

// With everything on, a full ring, and after scrapes in both formats, 64 devices and 500 pods take
// no more of the heap than leaves the program below 104 MiB: README.md has what comes on top. The
// trends of the page take little beside that. With -short the node is an eighth of that.
func TestHeapOfLargeNode(t *testing.T) {
	if testmain.RaceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	// 19.1 and 3.1 MiB are measured: 0.4 MiB are charts of incidents, which are made in the tick, and
	// 0.4 MiB rows of holders, which are others than the answer's also without an API server.
	devices, pods, limit, recent := 64, 500, uint64(20<<20), uint64(4<<20)
	if testing.Short() {
		devices, pods, limit, recent = 8, 60, 3<<20, 1<<20 // 2.6 and 0.4 MiB are measured
	}
	before := heapInUse()
	w := newWholeNode(t, devices, pods)
	e := exposition.New(prometheus.NewRegistry(), w.Latest, exposition.Config{})
	w.fill(t, func(tick int) {
		if tick%60 != 0 {
			return
		}
		for _, format := range []expfmt.FormatType{expfmt.TypeProtoDelim, expfmt.TypeTextPlain} {
			var out bytes.Buffer
			must.Get(e.Write(&out, expfmt.NewFormat(format).WithEscapingScheme(model.NoEscaping)))(t)
		}
	})
	grown := heapInUse() - before
	expect.That(t, grown <= limit, "%d KiB of the heap, want at most %d", grown>>10, limit>>10)
	made := allocated(func() { w.recorder.Recent(recorder.DefaultKeep, 30) })
	t.Logf("%d KiB of the heap, %d KiB for the trends", grown>>10, made>>10)
	expect.That(t, made <= recent, "the trends of the page allocate %d KiB, want at most %d", made>>10, recent>>10)
	runtime.KeepAlive(w)
}

// allocated returns how many bytes of the heap a function takes, until garbage is collected.
func allocated(by func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	by()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

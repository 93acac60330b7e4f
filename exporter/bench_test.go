package exporter

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/state"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// node is a node under load: so many devices, divided among so many pods of one claim each, and 15
// readings a device.
type node struct {
	now     time.Time
	in      join.Input
	samples []driver.Sample
}

func newNode(devices, pods int) *node {
	n := &node{now: jointest.Start(), in: join.Input{Inventory: driver.Inventory{}}}
	for i := range devices {
		uuid := fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)
		n.in.Inventory[benchID(i)] = driver.Entry{
			Hardware: driver.Hardware{
				UUID: uuid, PCI: fmt.Sprintf("0000:%02x:%02x.0", i/32, i%32), Vendor: "example", Model: "Example 9000",
			},
			Capacity: []driver.Amount{{Resource: "memory", Value: 8e10}},
		}
		n.samples = append(n.samples, driver.Sample{Hardware: driver.Hardware{UUID: uuid}, Readings: benchReadings()})
	}
	parsed, _ := podresources.Bounds{}.Parse(answer(devices, pods))
	n.in.View.Allocations = jointest.Held(parsed...)
	n.in.Sources = []join.SourceSamples{{Name: "bench", Samples: n.samples}}
	return n
}

func benchID(i int) driver.ID {
	return driver.ID{Driver: jointest.Driver, Pool: "node-of-the-benchmark", Device: fmt.Sprintf("gpu-%d", i)}
}

// answer is one of the kubelet. With more devices than pods a pod has several.
func answer(devices, pods int) *v1.ListPodResourcesResponse {
	out := &v1.ListPodResourcesResponse{}
	for p := range pods {
		claim := &v1.DynamicResource{ClaimNamespace: "team", ClaimName: fmt.Sprintf("training-%d-gpus-x7k2p", p)}
		for d := p % devices; d < devices; d += pods {
			id := benchID(d)
			claim.ClaimResources = append(claim.ClaimResources, &v1.ClaimResource{
				DriverName: id.Driver, PoolName: id.Pool, DeviceName: id.Device, CdiDevices: []*v1.CDIDevice{
					{Name: "k8s.example.com/claim=" + claim.ClaimName},
				},
			})
		}
		out.PodResources = append(out.PodResources, &v1.PodResources{
			Namespace: "team", Name: fmt.Sprintf("training-%d", p),
			Containers: []*v1.ContainerResources{{Name: "main", DynamicResources: []*v1.DynamicResource{claim}}},
		})
	}
	return out
}

func benchReadings() []driver.Reading {
	reading := func(q driver.Quantity, labels ...string) driver.Reading {
		r := driver.Reading{Quantity: q, Value: 0.5}
		copy(r.Labels[:], labels)
		return r
	}
	return []driver.Reading{
		reading(driver.Utilization), reading(driver.EngineUtilization, "sm"),
		reading(driver.EngineUtilization, "tensor"), reading(driver.EngineUtilization, "dram"),
		reading(driver.Occupancy), reading(driver.MemoryUsed), reading(driver.MemoryCapacity),
		reading(driver.Power), reading(driver.Energy),
		reading(driver.Temperature, "core"), reading(driver.Clock, "sm"),
		reading(driver.IOBytes, "pcie", "receive"), reading(driver.IOBytes, "pcie", "transmit"),
		reading(driver.IOBytes, "nvlink", "receive"), reading(driver.IOBytes, "nvlink", "transmit"),
	}
}

// tick lets a second pass, in which every reading is refreshed.
func (n *node) tick() {
	n.now = n.now.Add(time.Second)
	n.in.View.At = n.now
	for i := range n.samples {
		for j := range n.samples[i].Readings {
			r := &n.samples[i].Readings[j]
			r.At = n.now
			switch r.Quantity {
			case driver.Energy, driver.IOBytes:
				r.Value += 100
			}
		}
	}
}

// swing sets every reading to what a device has that does almost nothing and the maximum in two
// minutes, with some per cent of noise, which differs by device. Counters count on, and errors
// where they happen.
func (n *node) swing(began time.Time, noise func() float64, happens func(device int, kind string) bool) {
	for i := range n.samples {
		phase := n.now.Sub(began).Minutes()/2 + float64(i)/float64(len(n.samples))
		for j := range n.samples[i].Readings {
			r := &n.samples[i].Readings[j]
			r.At = n.now
			level := (0.5 - 0.4*math.Cos(2*math.Pi*phase)) * (1 + 0.05*(2*noise()-1))
			switch r.Quantity {
			case driver.Energy, driver.IOBytes:
				r.Value += 1e3 * level
			case driver.MemoryCapacity:
				r.Value = 8e10
			case driver.MemoryUsed:
				r.Value = 8e10 * level
			case driver.Power:
				r.Value = 700 * level
			case driver.Errors:
				if happens(i, r.Labels[0]) {
					r.Value++
				}
			default:
				r.Value = level
			}
		}
	}
}

func sizes(b *testing.B, run func(b *testing.B, devices, pods int)) {
	b.Helper()
	for _, devices := range []int{8, 64, 512} {
		for _, pods := range []int{50, 500} {
			b.Run(fmt.Sprintf("devices=%d/pods=%d", devices, pods), func(b *testing.B) { run(b, devices, pods) })
		}
	}
}

// BenchmarkTick is what one tick costs: the kubelet's answer, the join, the ledger, each and all;
// and through the sampler, with everything on and a full ring.
func BenchmarkTick(b *testing.B) {
	for _, part := range []string{"parse", "join", "ledger", "all"} {
		b.Run(part, func(b *testing.B) {
			sizes(b, func(b *testing.B, devices, pods int) { benchTick(b, part, devices, pods) })
		})
	}
	b.Run("everything/devices=64/pods=500", func(b *testing.B) { benchWhole(b, 64, 500) })
}

func benchTick(b *testing.B, part string, devices, pods int) {
	n := newNode(devices, pods)
	l, limiter := ledger.New(exportertest.LedgerConfig()), exposition.NewLimiter(0, nil)
	for range 3 {
		n.tick()
		l.Advance(join.Join(n.in), n.now)
	}
	wire := must.Get(proto.Marshal(answer(devices, pods)))(b)
	parse := func() {
		var answer v1.ListPodResourcesResponse
		must.Do(b, proto.Unmarshal(wire, &answer))
		parsed, _ := podresources.Bounds{}.Parse(&answer)
		for i := range parsed { // the holds of [newNode]
			parsed[i].Holders = n.in.View.Allocations[i].Holders
		}
		n.in.View.Allocations = parsed
	}
	b.ReportAllocs()
	var s *exposition.Snapshot
	for b.Loop() {
		n.tick()
		switch part {
		case "parse":
			parse()
		case "join":
			join.Join(n.in)
		case "ledger":
			b.StopTimer()
			r := join.Join(n.in)
			b.StartTimer()
			s = limiter.Apply(l, l.Advance(r, n.now))
		default:
			parse()
			s = limiter.Apply(l, l.Advance(join.Join(n.in), n.now))
		}
	}
	if s != nil {
		b.ReportMetric(float64(s.Series), "series")
	}
}

// BenchmarkScrape is what one scrape costs, without compression, in text and as protobuf: by this
// renderer, and by the encoders of prometheus/common/expfmt, which get finished families.
func BenchmarkScrape(b *testing.B) {
	for name, format := range map[string]expfmt.FormatType{
		"text": expfmt.TypeTextPlain, "openmetrics": expfmt.TypeOpenMetrics, "protobuf": expfmt.TypeProtoDelim,
	} {
		of := expfmt.NewFormat(format).WithEscapingScheme(model.NoEscaping) // as Prometheus 3 asks
		b.Run(name, func(b *testing.B) {
			sizes(b, func(b *testing.B, devices, pods int) { benchScrape(b, of, devices, pods, false) })
		})
		b.Run(name+"/expfmt/devices=64/pods=500", func(b *testing.B) { benchScrape(b, of, 64, 500, true) })
	}
}

// benchScrape measures the answers for a snapshot after the first one, which makes the labels.
func benchScrape(b *testing.B, format expfmt.Format, devices, pods int, library bool) {
	n := newNode(devices, pods)
	l, limiter := ledger.New(exportertest.LedgerConfig()), exposition.NewLimiter(0, nil)
	var s *exposition.Snapshot
	began, noise := n.now, rand.New(rand.NewPCG(1, 2))
	for range 20 {
		n.tick()
		n.swing(began, noise.Float64, nil)
		s = limiter.Apply(l, l.Advance(join.Join(n.in), n.now))
	}
	e := exportertest.Render(s, exposition.Config{})
	var out bytes.Buffer
	write := func() { must.Get(e.Write(&out, format))(b) }
	if families := exportertest.Decode(b, e); library {
		write = func() {
			encoder := expfmt.NewEncoder(&out, format)
			for _, f := range families {
				must.Do(b, encoder.Encode(f))
			}
		}
	}
	write()
	b.ReportAllocs()
	userBefore, systemBefore := cpuTime(b)
	for b.Loop() {
		out.Reset()
		write()
	}
	user, system := cpuTime(b)
	var compressed bytes.Buffer
	z := must.Get(gzip.NewWriterLevel(&compressed, web.CompressionLevel))(b)
	must.Get(z.Write(out.Bytes()))(b)
	must.Do(b, z.Close())
	b.ReportMetric((user+system-userBefore-systemBefore).Seconds()*1e3/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(s.Series), "series")
	b.ReportMetric(float64(out.Len()), "bytes")
	b.ReportMetric(float64(compressed.Len()), "compressed-bytes")
}

// cpuTime returns for how long this process has computed, and the kernel for it.
func cpuTime(tb testing.TB) (user, system time.Duration) {
	tb.Helper()
	var usage unix.Rusage
	must.Do(tb, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano()), time.Duration(usage.Stime.Nano())
}

// BenchmarkState measures the cost and the size of writing the changes of a tick, and the whole
// state.
func BenchmarkState(b *testing.B) {
	for name, whole := range map[string]bool{"changes": false, "whole": true} {
		b.Run(name+"/devices=64/pods=500", func(b *testing.B) {
			n := newNode(64, 500)
			l := ledger.New(exportertest.LedgerConfig())
			written := 0
			store := state.New(state.Config{
				Path: b.TempDir(), Report: func(time.Duration, error) {}, Wrote: func(bytes int) { written += bytes },
			})
			store.Restore(b.Context(), time.Now())
			store.Add("ledger", l)
			n.now = time.Now()
			var used time.Duration
			noise := rand.New(rand.NewPCG(1, 2))
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				n.tick()
				for i := range n.samples {
					for j := range n.samples[i].Readings {
						n.samples[i].Readings[j].Value += noise.Float64() // no two devices do the same
					}
				}
				l.Advance(join.Join(n.in), n.now)
				begun, _ := cpuTime(b)
				b.StartTimer()
				if whole {
					store.Whole()
				}
				store.Commit(b.Context(), n.now)
				b.StopTimer()
				ended, _ := cpuTime(b)
				used += ended - begun
				b.StartTimer()
			}
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(written)/float64(b.N), "bytes/op")
		})
	}
}

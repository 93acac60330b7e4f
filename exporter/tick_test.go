package exporter

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu/amdgputest"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/rdma"
	"github.com/dra-exporter/dra-exporter/driver/rdma/rdmatest"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// machine has 64 partitions of AMD GPUs with a process on each, and as many RDMA devices. Each
// claim has one of both, and two pods.
type machine struct {
	root        string
	allocations []podresources.Allocation
	inventory   driver.Inventory
}

func newMachine(tb testing.TB, gpus, parts int) *machine {
	tb.Helper()
	m := &machine{root: tb.TempDir(), inventory: driver.Inventory{}}
	if gpus == 0 {
		return m
	}
	amdgputest.WriteCluster(tb, m.root, gpus, parts, gpus*parts)
	rdmatest.WriteCards(tb, m.root, gpus*parts)
	for n := range gpus * parts {
		var holders []podresources.Holder
		for p := range 2 {
			holders = append(holders, podresources.Holder{
				Pod: podresources.Pod{Namespace: "team", Name: fmt.Sprintf("training-%d-%d", n, p)}, UID: uid(n, p),
				Container: "main",
			})
		}
		drivertest.WriteTree(tb, m.root, fmt.Sprintf("proc/%d/cgroup: 0::/kubepods/pod%s/main\n", 100+n, uid(n, n%2)))
		for name, hardware := range map[string]driver.Hardware{
			"gpu.amd.com": {
				Kind: driver.KindPartition, Parent: fmt.Sprintf("0000:%02x:00.0", 0x10+n/parts), Instance: fmt.Sprint(n % parts),
			},
			"dra.net": {RDMADev: fmt.Sprintf("mlx5_%d", n)},
		} {
			id := driver.ID{Driver: name, Pool: "node-of-the-benchmark", Device: fmt.Sprintf("device-%d", n)}
			m.inventory[id] = driver.Entry{Hardware: hardware}
			m.allocations = append(m.allocations, podresources.Allocation{
				Claim: podresources.Claim{Namespace: "team", Name: fmt.Sprintf("claim-%d", n)}, Device: id, Holders: holders,
			})
		}
	}
	m.allocations = jointest.Held(m.allocations...)
	return m
}

func uid(claim, pod int) string { return fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", claim, pod) }

func (m *machine) sampler() *Sampler {
	node := newFakeNode(func(context.Context) (podresources.View, error) {
		return podresources.View{At: time.Now(), Allocations: m.allocations}, nil
	})
	node.inventory = m.inventory
	return NewSampler(SamplerConfig{
		Interval: time.Second, Deadline: 5 * time.Second, MaxAge: time.Minute, Now: time.Now, Owners: node, Inventory: node,
		Sources: []driver.Source{amdgpu.New(m.root), rdma.New(driver.Host{Sysfs: m.root, Procfs: m.root + "/proc"})},
		PodOf:   podresources.NewProcesses(m.root + "/proc").PodUID,
		Ledger:  ledger.New(exportertest.LedgerConfig()), Limiter: exposition.NewLimiter(0, nil),
		Metrics: NewSelfMetrics(prometheus.NewRegistry(), "node1", slog.New(slog.DiscardHandler)),
		Log:     slog.New(slog.DiscardHandler),
	})
}

// BenchmarkSampler measures a whole tick: reading the sources, finding the pods of processes, join,
// ledger and limit. There is one tick a second, since slow values are read every 10 s. The figures
// are the CPU time of a tick, of the program and the kernel: the mean of 11 ticks, and the maximum.
// The kubelet's answer is made before, and there is no scrape.
func BenchmarkSampler(b *testing.B) {
	for name, gpus := range map[string]int{"64": 8, "none": 0} {
		b.Run(name, func(b *testing.B) { benchSampler(b, newMachine(b, gpus, 8)) })
	}
}

func benchSampler(b *testing.B, m *machine) {
	s := m.sampler()
	const ticks = 11
	var user, system, most time.Duration
	for b.Loop() {
		s.tick(b.Context()) // the first one makes the labels of the series
		for range ticks {
			time.Sleep(time.Second)
			userBefore, systemBefore := cpuTime(b)
			s.tick(b.Context())
			userAfter, systemAfter := cpuTime(b)
			user, system = user+userAfter-userBefore, system+systemAfter-systemBefore
			most = max(most, userAfter-userBefore+systemAfter-systemBefore)
		}
	}
	active, latest := 0, s.Latest()
	for i := range latest.Devices {
		if latest.Devices[i].Up == book.UpNow {
			active++
		}
	}
	if active != len(m.inventory) {
		b.Fatalf("%d of %d devices are read", active, len(m.inventory))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(user.Seconds()*1e3/float64(ticks*b.N), "user-ms/tick")
	b.ReportMetric(system.Seconds()*1e3/float64(ticks*b.N), "system-ms/tick")
	b.ReportMetric(most.Seconds()*1e3, "ms/worst-tick")
	b.ReportMetric(float64(latest.Series), "series")
}

// cpuTime returns for how long this process has computed, and the kernel for it.
func cpuTime(tb testing.TB) (user, system time.Duration) {
	tb.Helper()
	var usage unix.Rusage
	must.Do(tb, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano()), time.Duration(usage.Stime.Nano())
}

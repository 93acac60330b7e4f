package exporter

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testclock"
)

// funcSource is a source made of a function.
type funcSource struct {
	name   string
	sample func(ctx context.Context) ([]driver.Sample, error)
}

func (s funcSource) Name() string                                        { return s.name }
func (s funcSource) Sample(ctx context.Context) ([]driver.Sample, error) { return s.sample(ctx) }

// fakeNode knows the holders of an inventory that does not change: the results of functions,
// without errors.
type fakeNode struct {
	answer    func(ctx context.Context) (podresources.View, error)
	inventory driver.Inventory
	now       func() time.Time

	mu    sync.Mutex
	view  podresources.View // the last answer
	dates holders.Dates     // of the goroutine of Describe
}

func newFakeNode(answer func(ctx context.Context) (podresources.View, error)) *fakeNode {
	return &fakeNode{answer: answer, inventory: testInventory(), now: time.Now}
}

func (n *fakeNode) Observe(ctx context.Context) (podresources.Observation, error) {
	view, err := n.answer(ctx)
	if err == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.view = view
	}
	return podresources.Observation{Asked: true}, err
}

func (n *fakeNode) Describe() (podresources.View, driver.Inventory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dates.Date(n.view.Allocations, holders.Signs{At: n.view.At}, n.now()), n.inventory
}

// on makes the node's holders and inventory those of the sampler.
func (c SamplerConfig) on(n *fakeNode) SamplerConfig {
	c.Owners, c.Inventory = n, n
	return c
}

func testGPU() driver.ID { return driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-0"} }

func testInventory() driver.Inventory {
	return driver.Inventory{testGPU(): {Hardware: driver.Hardware{UUID: "GPU-0"}}}
}

func goodSource(name string) funcSource {
	return funcSource{name: name, sample: func(context.Context) ([]driver.Sample, error) {
		return []driver.Sample{{
			Hardware: driver.Hardware{UUID: "GPU-0"},
			Readings: []driver.Reading{{Quantity: driver.Power, Value: 100, At: time.Now()}},
		}}, nil
	}}
}

func answering(context.Context) (podresources.View, error) {
	return podresources.View{At: time.Now()}, nil
}

// runSampler runs a sampler inside the bubble until f returns.
func runSampler(t *testing.T, config SamplerConfig, f func(s *Sampler, registry *prometheus.Registry)) {
	registry := prometheus.NewRegistry()
	config.Interval, config.Deadline, config.Now = time.Second, 5*time.Second, time.Now
	if config.Owners == nil {
		config = config.on(newFakeNode(answering))
	}
	config.Limiter = exposition.NewLimiter(0, nil)
	if config.Ledger == nil {
		config.Ledger = ledger.New(ledger.Config{Retention: 5 * time.Minute})
	}
	config.Metrics = NewSelfMetrics(registry, "node1", nil, slog.New(slog.DiscardHandler))
	config.MaxAge = time.Minute
	s := NewSampler(config)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	f(s, registry)
	cancel()
	<-ended
}

func TestHungSourceDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hung := funcSource{name: "hung", sample: func(context.Context) ([]driver.Sample, error) {
			<-release // a library call that heeds no deadline
			return nil, nil
		}}
		config := SamplerConfig{Sources: []driver.Source{hung, goodSource("good")}}
		runSampler(t, config, func(s *Sampler, registry *prometheus.Registry) {
			time.Sleep(10*time.Second + 500*time.Millisecond)
			latest := s.Latest()
			age := time.Since(latest.Time)
			expect.That(t, age <= time.Second, "the snapshot is %v old, want at most a second", age)
			expect.That(t, len(latest.Devices) == 1 && latest.Devices[0].Up == book.UpNow,
				"the other source's device is not up: %+v", latest.Devices)
			up, err := gaugeOf(registry, "dra_exporter_source_up", "hung")
			expect.That(t, err == nil && up == 0, "source_up of the hung source is %v, %v, want 0", up, err)
			close(release)
			time.Sleep(3 * time.Second)
			if up, err := gaugeOf(registry, "dra_exporter_source_up", "hung"); err != nil || up != 1 {
				t.Errorf("source_up is %v, %v after the call came back, want 1", up, err)
			}
		})
	})
}

func TestPanickingSourceFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := funcSource{name: "bad", sample: func(context.Context) ([]driver.Sample, error) { panic("no luck") }}
		config := SamplerConfig{Sources: []driver.Source{bad, goodSource("good")}}
		runSampler(t, config, func(s *Sampler, registry *prometheus.Registry) {
			time.Sleep(2500 * time.Millisecond)
			expect.That(t, s.Latest().Devices[0].Up == book.UpNow, "the other source's device is not up")
			if n := testutil.CollectAndCount(registry, "dra_exporter_source_errors_total"); n != 1 {
				t.Errorf("%d series of errors, want the one of the source that panicked", n)
			}
		})
	})
}

func TestHintTicksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hints := make(chan struct{}, 1)
		config := SamplerConfig{Sources: []driver.Source{goodSource("good")}, Hints: hints}
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			time.Sleep(1300 * time.Millisecond)
			hints <- struct{}{}
			time.Sleep(time.Millisecond)
			age := time.Since(s.Latest().Time)
			expect.That(t, age <= time.Millisecond, "the snapshot is %v old just after a hint", age)
			hint := s.Latest().Time
			time.Sleep(followUp + time.Millisecond)
			if next := s.Latest().Time.Sub(hint); next != followUp {
				t.Errorf("the tick after a hint's comes %v later, want %v", next, followUp)
			}
		})
	})
}

// A source's last readings are in the last snapshot.
func TestLastTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Sampler
		var asked time.Time
		runSampler(t, SamplerConfig{Sources: []driver.Source{goodSource("good")}},
			func(running *Sampler, _ *prometheus.Registry) {
				s = running
				time.Sleep(1700 * time.Millisecond)
				asked = time.Now()
			})
		expect.That(t, s.Latest().Time.Equal(asked),
			"the last snapshot is of %v, want of the end, %v", s.Latest().Time, asked)
	})
}

// gaugeOf returns the value of a gauge of a source.
func gaugeOf(registry *prometheus.Registry, name, source string) (float64, error) {
	families, err := registry.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == source {
				return m.GetGauge().GetValue(), nil
			}
		}
	}
	return 0, errors.New("no such series")
}

// The pods of the samples' processes are looked up, and divide shared devices.
func TestSamplerFindsPodsOfProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := funcSource{name: "good", sample: func(context.Context) ([]driver.Sample, error) {
			now := time.Now()
			process := driver.Process{PID: 42, Readings: []driver.Reading{{Quantity: driver.Utilization, Value: 0.5, At: now}}}
			readings := []driver.Reading{{Quantity: driver.Utilization, Value: 0.5, At: now}}
			return []driver.Sample{
				{Hardware: driver.Hardware{UUID: "GPU-0"}, Readings: readings, Processes: []driver.Process{process}},
			}, nil
		}}
		node := newFakeNode(func(ctx context.Context) (podresources.View, error) {
			view, err := answering(ctx)
			for _, name := range []string{"a", "b"} {
				view.Allocations = append(view.Allocations, podresources.Allocation{
					Claim: podresources.Claim{Namespace: "ns", Name: name}, Device: testGPU(),
					Holders: []podresources.Holder{
						{Pod: podresources.Pod{Namespace: "ns", Name: name}, Container: "main", UID: "uid-" + name},
					},
				})
			}
			return view, err
		})
		config := SamplerConfig{Sources: []driver.Source{source}, PodOf: func(pid int) string {
			return map[int]string{42: "uid-b"}[pid]
		}}.on(node)
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			time.Sleep(1500 * time.Millisecond)
			expect.Is(t, s.Latest().Devices[0].Attribution, join.AttributionProcess, "the device is divided")
		})
	})
}

// A procfs that hangs delays a tick once, and leaves the pods of processes that are known already
// for a while.
func TestHungProcfs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		lookups := 0
		source := funcSource{name: "good", sample: func(context.Context) ([]driver.Sample, error) {
			return []driver.Sample{{Hardware: driver.Hardware{UUID: "GPU-0"}, Processes: []driver.Process{{PID: 42}}}}, nil
		}}
		config := SamplerConfig{Sources: []driver.Source{source}, PodOf: func(int) string {
			if lookups++; lookups > 1 {
				<-release
			}
			return "uid"
		}}
		runSampler(t, config, func(s *Sampler, registry *prometheus.Registry) {
			const after = 300 * time.Millisecond // each regular tick
			time.Sleep(after)
			for range lookupTurns + 12 { // the first of them need not look up the process again
				time.Sleep(time.Second)
				age := time.Since(s.Latest().Time)
				expect.That(t, age <= after, "a snapshot is %v old", age)
			}
			if up, err := gaugeOf(registry, "dra_exporter_source_up", "processes"); err != nil || up != 0 {
				t.Errorf("source_up of the processes is %v, %v, want 0", up, err)
			}
			close(release)
			time.Sleep(2 * time.Second)
			if up, err := gaugeOf(registry, "dra_exporter_source_up", "processes"); err != nil || up != 1 {
				t.Errorf("source_up is %v, %v when it can be read, want 1", up, err)
			}
		})
	})
}

// The pod of a process is looked up when the process is new, while it has none, and at every tenth
// tick: a number that another process has got by then is that process's.
func TestPodsAreRemembered(t *testing.T) {
	pods := map[int]string{1: "a", 2: "b", 3: ""}
	lookups := map[int]int{}
	s := NewSampler(SamplerConfig{
		Interval: time.Second, Deadline: time.Second, Now: time.Now,
		Metrics: NewSelfMetrics(prometheus.NewRegistry(), "node1", nil, slog.New(slog.DiscardHandler)),
		PodOf: func(pid int) string {
			lookups[pid]++
			return pods[pid]
		},
	})
	of := func(pids ...int) map[int]string {
		var sample driver.Sample
		for _, pid := range pids {
			sample.Processes = append(sample.Processes, driver.Process{PID: pid})
		}
		return s.podsOf(t.Context(), []join.SourceSamples{{Samples: []driver.Sample{sample}}}, time.Now())
	}
	check := func(what string, got, want any) {
		expect.Equal(t, what, want, got)
	}
	for range 2 * lookupTurns {
		check("pods", of(1, 2, 3), map[int]string{1: "a", 2: "b", 3: ""})
	}
	check("lookups", lookups, map[int]int{1: 1 + 2, 2: 1 + 2, 3: 2 * lookupTurns})
	of(1, 3) // 2 has ended
	pods[1], pods[2] = "c", "d"
	check("pod of another process that has its number", of(1, 2, 3)[2], "d")
	for range lookupTurns {
		of(1, 2, 3)
	}
	check("pod of another process that no tick saw begin", of(1, 2, 3)[1], "c")
}

// Owners that panic, or hang beyond their deadline, have failed, and the last known holders count.
// A tick is delayed by no more than the wait.
func TestOwnersFail(t *testing.T) {
	for name, fail := range map[string]func(release chan struct{}){
		"panic": func(chan struct{}) { panic("no luck") },
		"hung":  func(release chan struct{}) { <-release },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer close(release)
				calls := 0
				node := newFakeNode(func(ctx context.Context) (podresources.View, error) {
					if calls++; calls > 2 {
						fail(release)
					}
					view, err := answering(ctx)
					view.Allocations = []podresources.Allocation{{
						Claim: podresources.Claim{Namespace: "ns", Name: "claim"}, Device: testGPU(),
						Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "ns", Name: "pod"}, Container: "main"}},
					}}
					return view, err
				})
				config := SamplerConfig{Sources: []driver.Source{goodSource("good")}}.on(node)
				runSampler(t, config, func(s *Sampler, registry *prometheus.Registry) {
					time.Sleep(12500 * time.Millisecond)
					age := time.Since(s.Latest().Time)
					expect.That(t, age <= 1300*time.Millisecond, "the snapshot is %v old", age)
					if latest := s.Latest(); latest.Devices[0].Attribution != join.AttributionExclusive {
						t.Errorf("the holder is lost: %+v", latest.Devices[0].Shares)
					}
					if up, err := gaugeOf(registry, "dra_exporter_source_up", "podresources"); err != nil || up != 0 {
						t.Errorf("source_up is %v, %v, want 0", up, err)
					}
				})
			})
		})
	}
}

// What is forgotten of who held what, because there is no room for it, is counted.
func TestForgottenHistoryIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode(func(context.Context) (podresources.View, error) {
			a := jointest.Allocation("gpu-0", "claim", time.Now().Format("pod-05"))
			return podresources.View{At: time.Now(), Allocations: []podresources.Allocation{a}}, nil
		})
		config := SamplerConfig{Ledger: ledger.New(ledger.Config{Retention: 5 * time.Minute, History: 1})}
		runSampler(t, config.on(node), func(s *Sampler, _ *prometheus.Registry) {
			time.Sleep(20 * time.Second)
			got := testutil.ToFloat64(s.Metrics.rejected.WithLabelValues("history", string(driver.ReasonTooMany)))
			expect.That(t, got >= 10 && got <= 40, "%v are counted", got)
		})
	})
}

// steppedSampler is a sampler whose source answers once, and hangs then, as its kubelet and procfs
// do.
func steppedSampler(t *testing.T, clock *testclock.Clock) *Sampler {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	asked, sampled, looked := 0, 0, 0
	answer := func(calls *int) {
		if *calls++; *calls > 1 {
			<-hang
		}
	}
	const pod = "11111111-1111-4111-8111-111111111111"
	node := newFakeNode(func(context.Context) (podresources.View, error) {
		answer(&asked)
		allocation := jointest.Allocation(testGPU().Device, "c", "p")
		allocation.Device, allocation.Holders[0].UID = testGPU(), pod
		return podresources.View{At: clock.Now(), Allocations: []podresources.Allocation{allocation}}, nil
	})
	node.now = clock.Now
	return NewSampler(SamplerConfig{
		Interval: time.Second, Deadline: 5 * time.Second, MaxAge: time.Minute, Now: clock.Now,
		Owners: node, Inventory: node,
		Sources: []driver.Source{funcSource{name: "slow", sample: func(context.Context) ([]driver.Sample, error) {
			answer(&sampled)
			return []driver.Sample{{
				Hardware:  driver.Hardware{UUID: "GPU-0"},
				Readings:  []driver.Reading{{Quantity: driver.Utilization, Value: 0.5, At: clock.Now()}},
				Processes: steppedProcesses(),
			}}, nil
		}}},
		PodOf: func(int) string {
			answer(&looked)
			return pod
		},
		Ledger: ledger.New(ledger.Config{Retention: 5 * time.Minute}), Limiter: exposition.NewLimiter(0, nil),
		Metrics: NewSelfMetrics(prometheus.NewRegistry(), "node1", nil, slog.New(slog.DiscardHandler)),
	})
}

// steppedProcesses is a process whose pod is to be found: for the second time when the pods of
// processes are looked up for the third.
func steppedProcesses() []driver.Process { return []driver.Process{{PID: lookupTurns - 3}} }

// However the wall clock is set, data of sources and the kubelet stays in use as long as usual, the
// sampler is healthy, and the next tick comes as soon as usual.
func TestSamplerWhenTheClockIsSet(t *testing.T) {
	steps := testclock.Steps()
	if testing.Short() { // each step waits a second
		steps = []time.Duration{steps[0], steps[len(steps)-1]}
	}
	for _, step := range steps {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			clock := testclock.New()
			s := steppedSampler(t, clock)
			tick := func(up book.Up, pods int) {
				t.Helper()
				s.tick(t.Context())
				d := &s.Latest().Devices[0]
				expect.That(t, d.Up == up && len(d.Shares) == 1, "up %v, want %v; held by %+v, want one", d.Up, up, d.Shares)
				processes := []join.SourceSamples{{Samples: []driver.Sample{{Processes: steppedProcesses()}}}}
				if got := s.podsOf(t.Context(), processes, clock.Now()); len(got) != pods {
					t.Errorf("the pods of %v are known, want %d", got, pods)
				}
			}
			tick(book.UpNow, 1)
			begun := clock.Now()
			clock.Set(step)
			clock.Pass(s.maxAge() - time.Second) // the source answered some moments after the clock began
			expect.OK(t, s.Health())
			tick(book.UpNow, 1)
			ticker, hints := time.NewTicker(time.Hour), make(chan struct{}, 1)
			defer ticker.Stop()
			hints <- struct{}{}
			s.Hints = hints
			if running, hinted := s.sleep(t.Context(), ticker, begun, time.Time{}); !running || !hinted {
				t.Error("a hint causes no tick")
			}
			s.Hints = nil
			if running, hinted := s.sleep(t.Context(), ticker, begun, begun.Add(time.Second)); !running || hinted {
				t.Error("a tick that was postponed does not come")
			}
			clock.Pass(s.maxAge())
			tick(book.Down, 0)
			clock.Set(-2 * step)
			clock.Pass(s.MaxAge)
			expect.That(t, s.Health() == nil, "not well after the time that is allowed")
			clock.Pass(1)
			expect.That(t, s.Health() != nil, "well although no tick came for long")
		})
	}
}

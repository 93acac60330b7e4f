package exporter

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testclock"
)

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
		Metrics: NewSelfMetrics(prometheus.NewRegistry(), "node1", slog.New(slog.DiscardHandler)),
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
			holders := func(up book.Up, pods int) {
				t.Helper()
				s.tick(t.Context())
				d := &s.Latest().Devices[0]
				expect.That(t, d.Up == up && len(d.Shares) == 1, "up %v, want %v; held by %+v, want one", d.Up, up, d.Shares)
				processes := []join.SourceSamples{{Samples: []driver.Sample{{Processes: steppedProcesses()}}}}
				if got := s.podsOf(t.Context(), processes, clock.Now()); len(got) != pods {
					t.Errorf("the pods of %v are known, want %d", got, pods)
				}
			}
			holders(book.UpNow, 1)
			begun := clock.Now()
			clock.Set(step)
			clock.Pass(s.maxAge() - time.Second) // the source answered some moments after the clock began
			expect.OK(t, s.Health())
			holders(book.UpNow, 1)
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
			holders(book.Down, 0)
			clock.Set(-2 * step)
			clock.Pass(s.MaxAge)
			expect.That(t, s.Health() == nil, "not well after the time that is allowed")
			clock.Pass(1)
			expect.That(t, s.Health() != nil, "well although no tick came for long")
		})
	}
}

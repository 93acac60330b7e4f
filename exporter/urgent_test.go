package exporter

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// readers work without a pause in every other second, 20 ms at a time. Whatever else wants a
// processor waits a millisecond for each of them that works.
type readers struct{ working atomic.Int64 }

func (r *readers) read(ctx context.Context, giveWay func(context.Context)) {
	for ctx.Err() == nil {
		if time.Now().Second()%2 == 0 {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		giveWay(ctx)
		r.working.Add(1)
		time.Sleep(20 * time.Millisecond)
		r.working.Add(-1)
	}
}

// steps takes a number of steps, each of which needs a processor.
func (r *readers) steps(n int) {
	for range n {
		time.Sleep(time.Millisecond + time.Duration(r.working.Load())*time.Millisecond)
	}
}

// With any number of readers, a snapshot is hardly older than the interval: the readers give way to
// a tick.
func TestAgeWithReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r readers
		source := goodSource("steps")
		sample := source.sample
		source.sample = func(ctx context.Context) ([]driver.Sample, error) {
			r.steps(4)
			return sample(ctx)
		}
		node := newFakeNode(func(ctx context.Context) (podresources.View, error) {
			r.steps(2)
			return answering(ctx)
		})
		config := SamplerConfig{Sources: []driver.Source{source}}.on(node)
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			ctx, cancel := context.WithCancel(t.Context())
			var reading sync.WaitGroup
			for range 24 {
				reading.Go(func() { r.read(ctx, s.GiveWay) })
			}
			time.Sleep(2 * time.Second)
			oldest := time.Duration(0)
			for range 20_000 {
				time.Sleep(time.Millisecond)
				oldest = max(oldest, time.Since(s.Latest().Time))
			}
			cancel()
			reading.Wait()
			expect.That(t, oldest <= 1100*time.Millisecond, "a snapshot is %v old, want at most 1.1 s", oldest)
		})
	})
}

// Others give way for little time, however slow a source is, and however often hints
// cause a tick.
func TestGiveWayEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := goodSource("slow")
		sample := slow.sample
		slow.sample = func(ctx context.Context) ([]driver.Sample, error) {
			time.Sleep(200 * time.Millisecond)
			return sample(ctx)
		}
		hints := make(chan struct{}, 1)
		config := SamplerConfig{Sources: []driver.Source{slow}, Hints: hints}
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			begun, waited := time.Now(), time.Duration(0)
			for time.Since(begun) < 10*time.Second {
				select {
				case hints <- struct{}{}:
				default:
				}
				from := time.Now()
				s.GiveWay(t.Context())
				waited += time.Since(from)
				time.Sleep(time.Millisecond)
			}
			most := 12 * urgentFor
			expect.That(t, waited != 0 && waited <= most, "others waited for %v of 10 s, want at most %v", waited, most)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			s.GiveWay(ended)
		})
	})
}

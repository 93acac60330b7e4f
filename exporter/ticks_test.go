package exporter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
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

// standingInventory is an inventory that stands from the second call on, until it is released.
type standingInventory struct {
	*fakeNode
	calls   *int
	release chan struct{}
}

func (i standingInventory) Describe() (podresources.View, driver.Inventory) {
	if *i.calls++; *i.calls > 1 {
		<-i.release
	}
	return i.fakeNode.Describe()
}

// While a tick does not return, the probes fail after MaxAge, not before, with its part, and
// succeed when it continues.
func TestStandingTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inventory := standingInventory{newFakeNode(answering), new(int), make(chan struct{})}
		config := SamplerConfig{Owners: inventory, Sources: []driver.Source{goodSource("good")}, Inventory: inventory}
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			check := func(after time.Duration, want string) {
				t.Helper()
				time.Sleep(after)
				got := ""
				if err := s.Health(); err != nil {
					got = err.Error()
				}
				expect.Is(t, got, want, "health")
			}
			check(time.Minute-time.Millisecond, "")
			check(2*time.Millisecond, "no snapshot for 1m0s: describing the inventory has not returned for 59s")
			close(inventory.release)
			check(2*time.Second, "")
		})
	})
}

// Before the first snapshot the probes fail as late as after it, and with a long interval not
// before three of them have passed.
func TestHealthBeforeTheFirstSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 1
		inventory := standingInventory{newFakeNode(answering), &calls, make(chan struct{})}
		config := SamplerConfig{Owners: inventory, Inventory: inventory}
		runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
			time.Sleep(time.Minute - time.Millisecond)
			expect.OK(t, s.Health())
			time.Sleep(2 * time.Millisecond)
			expect.That(t, s.Health() != nil, "healthy without a snapshot after a minute")
			close(inventory.release)
		})
		slow := Sampler{SamplerConfig: SamplerConfig{Interval: 21 * time.Second, MaxAge: time.Minute, Now: time.Now}}
		if err := slow.Health(); err != nil {
			t.Errorf("of a sampler that was not started: %v", err)
		}
		slow.progress.finish(time.Now())
		for _, healthy := range []bool{true, false} {
			time.Sleep(minTicks*slow.Interval - time.Second)
			if err := slow.Health(); (err == nil) != healthy {
				t.Errorf("health %v, want healthy: %v", err, healthy)
			}
		}
	})
}

// The longest tick is that of the last ten minutes.
func TestLongestTick(t *testing.T) {
	var l longest
	now := time.Unix(1e9, 0)
	for _, step := range []struct {
		pass, took, want time.Duration
	}{
		{0, 3 * time.Second, 3 * time.Second},
		{time.Second, time.Second, 3 * time.Second},
		{5 * time.Minute, 2 * time.Second, 3 * time.Second},
		{5 * time.Minute, time.Second, 2 * time.Second},
		{4 * time.Minute, time.Millisecond, 2 * time.Second},
		{2 * time.Minute, time.Millisecond, time.Second},
		{time.Hour, time.Millisecond, time.Millisecond},
	} {
		now = now.Add(step.pass)
		expect.Is(t, l.add(step.took, now), step.want, "%v later the longest", step.pass)
	}
}

// slowKubelet lists pods, and takes a while for each answer.
type slowKubelet struct {
	takes time.Duration

	mu   sync.Mutex
	pods []*v1.PodResources
}

// List implements [podresources.Lister].
func (k *slowKubelet) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	time.Sleep(k.takes / 2)
	k.mu.Lock()
	pods := k.pods
	k.mu.Unlock()
	time.Sleep(k.takes / 2)
	return &v1.ListPodResourcesResponse{PodResources: pods}, nil
}

// Instance implements [podresources.Lister].
func (*slowKubelet) Instance() podresources.Instance { return "1" }

// set makes the pods of these names be listed, each with a share of the device.
func (k *slowKubelet) set(names ...string) {
	var pods []*v1.PodResources
	for _, name := range names {
		id := testGPU()
		share := podresourcestest.Share(id.Driver, id.Pool, id.Device, "share-of-"+name)
		claim := podresourcestest.Claim("ns", name, share)
		pods = append(pods, podresourcestest.Pod("ns", name, podresourcestest.Container("main", claim)))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = pods
}

// Pods of half a second, one each second, are charged within a fifth of their time, whenever the
// first one comes after the start, though the kubelet lists them late, and it and a source answer
// slowly.
func TestShortPodsAreCharged(t *testing.T) {
	for slow := time.Duration(0); slow <= 120*time.Millisecond; slow += 40 * time.Millisecond {
		for first := time.Duration(0); first < 1200*time.Millisecond; first += 50 * time.Millisecond {
			t.Run(fmt.Sprintf("%v after the start, answers after %v", first, slow), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { shortPods(t, first, slow) })
			})
		}
	}
}

func shortPods(t *testing.T, first, slow time.Duration) {
	t.Helper()
	const life, listedAfter, slack = 500 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond
	kubelet, hints := &slowKubelet{takes: slow}, make(chan struct{}, 1)
	kubelet.set("old")
	node := newBookNode(kubelet, testInventory(), time.Now)
	node.Book = holders.NewBook(time.Minute, func() {
		select {
		case hints <- struct{}{}:
		default:
		}
	})
	source := funcSource{"slow", func(ctx context.Context) ([]driver.Sample, error) {
		time.Sleep(slow)
		return goodSource("").sample(ctx)
	}}
	config := SamplerConfig{Sources: []driver.Source{source}, Owners: node, Inventory: node, Hints: hints}
	podOf := func(name string) podresources.PodFacts {
		return podresources.PodFacts{
			Pod: podresources.Pod{Namespace: "ns", Name: name}, UID: name, Started: true, Running: 1, Local: true,
		}
	}
	runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
		node.Book.PodsListed([]podresources.PodFacts{podOf("old")}, true, time.Now())
		node.Book.Watching(time.Now(), time.Now())
		for s.Latest() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(first)
		began := map[string]time.Time{}
		for n := range 5 {
			name := fmt.Sprintf("short-%d", n)
			began[name] = time.Now()
			node.Book.PodChanged(podOf(name), began[name])
			node.Book.Changed(podresources.Change{At: began[name], PodUID: name})
			time.Sleep(listedAfter)
			kubelet.set("old", name)
			time.Sleep(life - listedAfter)
			node.Book.Changed(podresources.Change{At: time.Now(), PodUID: name, Gone: true})
			node.Book.PodDeleted(name, time.Now())
			kubelet.set("old")
			time.Sleep(life)
		}
		time.Sleep(3 * time.Second)
		for p := range s.Latest().Timeline.All() {
			begin, short := began[p.Pod.Name]
			if !short {
				continue
			}
			if early, late := begin.Sub(p.From), p.To.Sub(begin.Add(life)); max(early.Abs(), late.Abs()) > slack {
				t.Errorf("%s is charged from %v before its begin to %v after its end", p.Pod.Name, early, late)
			}
			delete(began, p.Pod.Name)
		}
		for name := range began {
			t.Errorf("%s is not there", name)
		}
	})
}

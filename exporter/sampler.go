package exporter

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Owners knows who holds what. Observe asks the kubelet, unless it was asked too recently, and
// returns what is believed: if it fails, the last known, with the error. It returns soon after ctx
// ends.
type Owners interface {
	Observe(ctx context.Context) (podresources.Observation, error)
}

// Inventory describes the node's devices. Describe completes the allocations by what is known of
// their claims, and returns the hardware of the node's devices, the allocated ones among them. It
// reads no file that has not changed, and does not change its argument.
type Inventory interface {
	Describe(view podresources.View) ([]podresources.Allocation, driver.Inventory)
}

// SamplerConfig configures a [Sampler].
type SamplerConfig struct {
	Interval  time.Duration
	Deadline  time.Duration // of one call of a source
	Owners    Owners
	Inventory Inventory
	Sources   []driver.Source            // in order of precedence
	PodOf     func(pid int) (uid string) // the pod of a process, "" for none; nil: unknown
	Ledger    *ledger.Ledger
	Limiter   *exposition.Limiter
	Metrics   *SelfMetrics
	// Hints has a value when something shows that ownership changed, which causes a tick. It may be
	// nil.
	Hints <-chan struct{}
	Now   func() time.Time
}

// Sampler ticks. At each tick it reads all sources side by side and then asks who holds what, so
// that the holders are known for the time of the readings. It does not wait for a slow source: its
// samples come with a later tick.
type Sampler struct {
	SamplerConfig
	workers []*worker
	done    chan *worker
	latest  atomic.Pointer[exposition.Snapshot]
	views   ownershipWorker
}

// NewSampler returns a sampler. [Sampler.Run] starts it.
func NewSampler(config SamplerConfig) *Sampler {
	s := &Sampler{SamplerConfig: config, done: make(chan *worker, len(config.Sources))}
	for _, source := range config.Sources {
		s.workers = append(s.workers, newWorker(source, config.Deadline))
	}
	s.views = ownershipWorker{
		owners: config.Owners, deadline: config.Deadline, wake: make(chan struct{}, 1), done: make(chan struct{}, 1),
	}
	return s
}

// Latest returns the latest snapshot, nil before the first.
func (s *Sampler) Latest() *exposition.Snapshot { return s.latest.Load() }

// minTickInterval is the shortest time between two ticks.
const minTickInterval = 50 * time.Millisecond

// Run ticks until ctx ends, and once more then. Goroutines of sources that hang outlive it.
func (s *Sampler) Run(ctx context.Context) {
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, w := range s.workers {
		go w.run(stop, s.done)
	}
	running.Go(func() { s.views.run(stop) })
	defer func() { cancel(); running.Wait() }()

	ticker := time.NewTicker(s.Interval)
	defer ticker.Stop()
	hinted := false
	for {
		begun := s.Now()
		retry := s.tick(stop)
		if again := s.Now().Add(followUp); hinted && (retry.IsZero() || again.Before(retry)) {
			retry = again
		}
		var running bool
		if running, hinted = s.sleep(ctx, ticker, begun, retry); !running {
			s.tick(stop)
			return
		}
	}
}

// followUp is the time from a tick that a hint caused to another one. When a pod's cgroup or CDI
// spec comes, its containers are about to start: without a second reading, a gauge would be taken
// to rise until the next regular tick.
const followUp = minTickInterval

// sleep waits for the next tick: the regular one, one that a hint causes, or one that was
// postponed. It returns false if ctx has ended, and whether a hint is the cause.
func (s *Sampler) sleep(ctx context.Context, ticker *time.Ticker, begun, retry time.Time) (running, hinted bool) {
	var again <-chan time.Time
	if !retry.IsZero() {
		timer := time.NewTimer(max(retry.Sub(s.Now()), minTickInterval))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-ctx.Done():
		return false, false
	case <-ticker.C:
		return true, false
	case <-again:
		return true, false
	case <-s.Hints:
	}
	gap := time.NewTimer(minTickInterval - s.Now().Sub(begun))
	defer gap.Stop()
	select {
	case <-ctx.Done():
		return false, true
	case <-gap.C:
		return true, true
	}
}

// tick makes one snapshot and returns when the kubelet may be asked again, if it could not be now.
func (s *Sampler) tick(ctx context.Context) (retry time.Time) {
	s.read(ctx)
	view := s.views.observe(ctx, s.wait())
	if view.fresh {
		if view.Asked {
			s.Metrics.Observe("podresources", view.Took, view.err, s.Now())
		}
		s.Metrics.Reject(view.Rejected.Of("podresources")...)
	}
	now := s.Now()
	in := join.Input{View: view.View, Sources: s.samples(now)}
	in.PodOf = s.podsOf(in.Sources)
	in.View.Allocations, in.Inventory = s.Inventory.Describe(view.View)
	result := join.Join(in)
	s.Metrics.Reject(result.Rejected...)
	s.latest.Store(s.Limiter.Apply(s.Ledger, s.Ledger.Advance(result, now)))
	return view.Retry
}

// wait is how long a tick waits for its sources, and then for the kubelet.
func (s *Sampler) wait() time.Duration { return min(s.Interval/4, 250*time.Millisecond) }

// read starts all idle sources and waits for them, at most for wait.
func (s *Sampler) read(ctx context.Context) {
	pending := 0
	for len(s.done) > 0 { // calls of earlier ticks
		<-s.done
	}
	started := map[*worker]bool{}
	for _, w := range s.workers {
		if w.start(s.Now()) {
			started[w] = true
			pending++
		}
	}
	timeout := time.NewTimer(s.wait())
	defer timeout.Stop()
	for pending > 0 {
		select {
		case w := <-s.done:
			if started[w] {
				pending--
			}
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// samples returns the newest samples of the sources, and records their outcomes.
func (s *Sampler) samples(now time.Time) []join.SourceSamples {
	out := make([]join.SourceSamples, 0, len(s.workers))
	for _, w := range s.workers {
		o := w.outcome(now, 3*s.Interval+s.Deadline)
		name := w.source.Name()
		if o.fresh {
			s.Metrics.Observe(name, o.took, o.err, now)
		}
		if counting, ok := w.source.(driver.RejectionCounter); ok {
			s.Metrics.RejectTotal(name, counting.Rejected())
		}
		out = append(out, join.SourceSamples{Name: name, Samples: o.samples})
	}
	return out
}

// maxPIDs is the largest number of processes whose pods are looked up at a tick.
const maxPIDs = 1 << 14

// podsOf finds the pods of the samples' processes.
func (s *Sampler) podsOf(sources []join.SourceSamples) map[int]string {
	if s.PodOf == nil {
		return nil
	}
	pods := map[int]string{}
	for _, source := range sources {
		for i := range source.Samples {
			for _, p := range source.Samples[i].Processes {
				if _, known := pods[p.PID]; !known && len(pods) < maxPIDs {
					pods[p.PID] = s.PodOf(p.PID)
				}
			}
		}
	}
	return pods
}

// ownershipWorker asks the owners in a goroutine of its own, so that a kubelet that hangs does not
// delay ticks: until it answers, the last known holders are used.
type ownershipWorker struct {
	owners   Owners
	deadline time.Duration
	wake     chan struct{}
	done     chan struct{}

	mu   sync.Mutex
	busy bool
	last observed
}

type observed struct {
	podresources.Observation
	err   error
	fresh bool // no tick has had it before
}

func (w *ownershipWorker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		call, cancel := context.WithTimeout(ctx, w.deadline)
		o, err := w.owners.Observe(call)
		cancel()
		w.mu.Lock()
		w.last, w.busy = observed{Observation: o, err: err, fresh: true}, false
		w.mu.Unlock()
		select {
		case w.done <- struct{}{}:
		default:
		}
	}
}

// observe asks, unless a request is in progress, waits for the answer at most for wait, and returns
// the newest answer.
func (w *ownershipWorker) observe(ctx context.Context, wait time.Duration) observed {
	w.mu.Lock()
	if !w.busy {
		w.busy = true
		select {
		case <-w.done:
		default:
		}
		w.wake <- struct{}{}
	}
	w.mu.Unlock()
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	select {
	case <-w.done:
	case <-timeout.C:
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.last
	w.last.fresh = false
	w.last.Rejected = nil
	return o
}

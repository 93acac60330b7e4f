package exporter

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Owners says who holds what. Observe asks the kubelet, if it may be asked now, and returns what is to be believed: at
// worst the last known, with the error. It returns soon after ctx ends.
type Owners interface {
	Observe(ctx context.Context) (podresources.Observation, error)
}

// Inventory describes the node's devices. Describe completes the allocations by what is known of their claims, and
// returns the hardware of the node's devices, the allocated ones among them. It reads no file that has not changed, and
// changes nothing of what it is given.
type Inventory interface {
	Describe(allocations []podresources.Allocation) ([]podresources.Allocation, driver.Inventory, []RejectedInput)
}

// SamplerConfig are a sampler's parts and settings.
type SamplerConfig struct {
	Interval  time.Duration
	Deadline  time.Duration // of one call of a source
	Owners    Owners
	Inventory Inventory
	Sources   []driver.Source            // in order of precedence
	PodOf     func(pid int) (uid string) // the pod of a process, "" for none; nil: unknown
	Ledger    *Ledger
	Metrics   *SelfMetrics
	// Hints are signs that ownership changed: they cause a tick at once. The channel may be nil.
	Hints <-chan struct{}
	Now   func() time.Time
}

// Sampler ticks: at each tick it reads all sources side by side and then asks who holds what, so that what was read is
// covered by what is known. A source that is slow or hangs is not waited for; what it has comes with a later tick.
type Sampler struct {
	SamplerConfig
	workers []*worker
	done    chan *worker
	latest  atomic.Pointer[Snapshot]
	views   ownershipWorker
}

// NewSampler returns a sampler that [Sampler.Run] starts.
func NewSampler(config SamplerConfig) *Sampler {
	s := &Sampler{SamplerConfig: config, done: make(chan *worker, len(config.Sources))}
	for _, source := range config.Sources {
		s.workers = append(s.workers, newWorker(source, config.Deadline))
	}
	s.views = ownershipWorker{owners: config.Owners, deadline: config.Deadline, wake: make(chan struct{}, 1), done: make(chan struct{}, 1)}
	return s
}

// Latest returns the last snapshot, nil before the first.
func (s *Sampler) Latest() *Snapshot { return s.latest.Load() }

// minGap is the shortest time between two ticks that hints cause.
const minGap = 50 * time.Millisecond

// Run ticks until ctx ends, and once more then, so that the last snapshot has all that can be known. Goroutines of
// sources that hang outlive it.
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

// followUp is how long after a tick that a hint caused another one follows: when a pod's cgroup or CDI spec comes, its
// containers are about to start, and a gauge that was read just before would be taken to rise until the next second.
const followUp = minGap

// sleep waits for the next tick: the regular one, one that a hint asks for, or one that was put off. It returns whether
// there is to be one, which is not so when ctx has ended, and whether a hint is the cause.
func (s *Sampler) sleep(ctx context.Context, ticker *time.Ticker, begun, retry time.Time) (running, hinted bool) {
	var again <-chan time.Time
	if !retry.IsZero() {
		timer := time.NewTimer(max(retry.Sub(s.Now()), minGap))
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
	gap := time.NewTimer(minGap - s.Now().Sub(begun))
	defer gap.Stop()
	select {
	case <-ctx.Done():
		return false, true
	case <-gap.C:
		return true, true
	}
}

// tick makes one snapshot and returns when the kubelet may be asked again, if it had to be spared now.
func (s *Sampler) tick(ctx context.Context) (retry time.Time) {
	s.read(ctx)
	view := s.views.observe(ctx, s.wait())
	if view.fresh {
		if view.Asked {
			s.Metrics.Observe("podresources", view.Took, view.err, s.Now())
		}
		for _, r := range view.Rejected {
			s.Metrics.Reject("podresources", r.Reason, r.Count)
		}
	}
	now := s.Now()
	in := Input{View: view.View, Sources: s.samples(now)}
	in.PodOf = s.podsOf(in.Sources)
	var rejected []RejectedInput
	in.View.Allocations, in.Inventory, rejected = s.Inventory.Describe(view.View.Allocations)
	result := Join(in)
	for _, r := range append(rejected, result.Rejected...) {
		s.Metrics.Reject(r.Input, r.Reason, r.Count)
	}
	s.latest.Store(s.Ledger.Advance(result, now))
	return view.Retry
}

// wait is how long a tick waits for its sources, and for the kubelet.
func (s *Sampler) wait() time.Duration { return min(s.Interval/4, 250*time.Millisecond) }

// read starts all sources that are idle and waits for them, though not for long.
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

// samples returns what the sources have, and reports how they did.
func (s *Sampler) samples(now time.Time) []SourceSamples {
	out := make([]SourceSamples, 0, len(s.workers))
	for _, w := range s.workers {
		o := w.outcome(now, 3*s.Interval+s.Deadline)
		name := w.source.Name()
		if o.fresh {
			s.Metrics.Observe(name, o.took, o.err, now)
		}
		if counting, ok := w.source.(interface{ Rejected() map[string]uint64 }); ok {
			s.Metrics.RejectTotal(name, counting.Rejected())
		}
		out = append(out, SourceSamples{Name: name, Samples: o.samples})
	}
	return out
}

// maxPIDs bounds the processes whose pods are looked up at a tick.
const maxPIDs = 1 << 14

// podsOf finds the pods of the samples' processes.
func (s *Sampler) podsOf(sources []SourceSamples) map[int]string {
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

// ownershipWorker asks the owners on a goroutine of its own, so that a kubelet that hangs delays no tick by more than
// a moment: the last known holders serve until it answers.
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
	fresh bool // not seen by a tick before
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

// observe asks, unless a question is under way, waits a little for the answer, and returns the newest one.
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

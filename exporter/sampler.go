package exporter

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Owners finds out who holds what. Observe asks the kubelet, unless it was asked too recently. It
// returns soon after ctx ends.
type Owners interface {
	Observe(ctx context.Context) (podresources.Observation, error)
}

// Inventory knows the node's devices. Describe returns who holds them, by all that Owners have
// found out, and the hardware of the node's devices, the held ones among them. It reads no file
// that has not changed. What it returns never changes; what is as before may be the same slice or
// map, which saves the reader work.
type Inventory interface {
	Describe() (podresources.View, driver.Inventory)
}

// SamplerConfig configures a [Sampler].
type SamplerConfig struct {
	Interval  time.Duration
	Deadline  time.Duration // of one call of a source
	Owners    Owners
	Inventory Inventory
	Sources   []driver.Source            // in order of precedence
	PodOf     func(pid int) (uid string) // the pod of a process, "" for none; nil: unknown
	Paths     Paths                      // for the topology of pods; nil: it is not wanted
	Ledger    *ledger.Ledger
	Limiter   *exposition.Limiter
	Metrics   *SelfMetrics
	// Hints has a value when something shows that ownership changed, which causes a tick. It may be
	// nil.
	Hints <-chan struct{}
	Now   func() time.Time
	// MaxAge is how old the latest snapshot may be until Health fails; three intervals at least.
	MaxAge time.Duration
	// Recorder is given each snapshot; nil: none.
	Recorder Recorder
	State    State // what outlives the process; nil: nothing
	Log      *slog.Logger
}

// State keeps what is to outlive the process. Commit is called before the snapshot of a tick is
// served, and returns soon.
type State interface {
	Commit(ctx context.Context, now time.Time)
}

// Recorder keeps what snapshots show, and may add to one what earlier ones are needed for. Record
// returns soon.
type Recorder interface {
	Record(s *ledger.Snapshot)
}

// Sampler ticks. At each tick it reads all sources side by side and then asks who holds what, so
// that the holders are known for the time of the readings. It does not wait for a slow source: its
// samples come with a later tick.
type Sampler struct {
	SamplerConfig
	workers   []*worker
	owners    owners
	joiner    join.Joiner
	topology  topologies
	processes driver.Worker[map[int]string]
	pods      map[int]string // of processes
	podsAt    time.Time      // when they were known last
	turn      int            // counts the ticks at which pods were looked up
	latest    atomic.Pointer[exposition.Snapshot]
	progress  progress
	ticks     longest
}

// NewSampler returns a sampler. [Sampler.Run] starts it.
func NewSampler(config SamplerConfig) *Sampler {
	s := &Sampler{SamplerConfig: config, topology: topologies{paths: config.Paths}}
	for _, source := range config.Sources {
		s.workers = append(s.workers, newWorker(source, config.Deadline, func(o driver.Outcome[[]driver.Sample]) {
			s.Metrics.Observe(source.Name(), o.Took, o.Err, s.Now())
		}))
	}
	s.owners.source = config.Owners
	s.owners.Operation, s.owners.Deadline, s.owners.Report = "ask the kubelet", config.Deadline, s.reportOwners
	s.processes = driver.Worker[map[int]string]{
		Operation: "find the pods of processes", Deadline: config.Deadline,
		Report: func(o driver.Outcome[map[int]string]) { s.Metrics.ObserveReader("processes", o.Took, o.Err, s.Now()) },
	}
	return s
}

// reportOwners records an answer of the kubelet, or that it hangs.
func (s *Sampler) reportOwners(o driver.Outcome[podresources.Observation]) {
	took := o.Took
	if o.Value.Asked {
		took = o.Value.Took
	} else if o.Err == nil {
		return // the kubelet was not asked
	}
	s.Metrics.Observe("podresources", took, o.Err, s.Now())
}

// Latest returns the latest snapshot, nil before the first.
func (s *Sampler) Latest() *exposition.Snapshot { return s.latest.Load() }

// minTickInterval is the shortest time between two ticks.
const minTickInterval = 50 * time.Millisecond

// Run ticks until ctx ends, and once more then. Goroutines of calls that are in progress outlive
// it.
func (s *Sampler) Run(ctx context.Context) {
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.progress.finish(s.Now())
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(stop) })
	defer func() { cancel(); watching.Wait() }()

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
	begun := s.Now()
	s.progress.enter("reading the sources", s.Now())
	s.read(ctx)
	s.progress.enter("asking the kubelet", s.Now())
	view := s.owners.observe(ctx, s.wait())
	if view.fresh {
		s.Metrics.Reject(view.Rejected.Of("podresources")...)
	}
	now := s.Now()
	in := join.Input{Sources: s.samples(now)}
	s.progress.enter("finding the pods of processes", now)
	in.PodOf = s.podsOf(ctx, in.Sources, now)
	s.progress.enter("describing the inventory", s.Now())
	in.View, in.Inventory = s.Inventory.Describe()
	s.progress.enter("joining", s.Now())
	result := s.joiner.Join(in)
	s.Metrics.Reject(result.Rejected...)
	result.Topology = s.topology.of(result.Devices, now)
	snapshot := s.Ledger.Advance(result, now)
	s.Metrics.Corrected(snapshot.Corrections)
	s.Metrics.Conflicts(map[string]int{join.ConflictKind: snapshot.Contradicted()})
	s.joiner.Recycle(&result)
	if s.Recorder != nil {
		s.progress.enter("recording", now)
		s.Recorder.Record(snapshot)
	}
	latest := s.Limiter.Apply(s.Ledger, snapshot)
	if s.State != nil {
		s.progress.enter("writing the state", s.Now())
		s.State.Commit(ctx, now)
	}
	s.latest.Store(latest)
	s.progress.finish(now)
	ended := s.Now()
	s.Metrics.LongestTick(s.ticks.add(ended.Sub(begun), ended))
	return view.Retry
}

// wait is how long a tick waits for its sources, and then for the kubelet.
func (s *Sampler) wait() time.Duration { return min(s.Interval/4, 250*time.Millisecond) }

// read starts all idle sources and waits for them, at most for wait.
func (s *Sampler) read(ctx context.Context) {
	var started []*worker
	for _, w := range s.workers {
		if w.start(ctx) {
			started = append(started, w)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, s.wait())
	defer cancel()
	for _, w := range started {
		w.Wait(waiting)
	}
}

// maxAge is how old the newest result of a call may be to be used.
func (s *Sampler) maxAge() time.Duration { return 3*s.Interval + s.Deadline }

// samples returns the newest samples of the sources.
func (s *Sampler) samples(now time.Time) []join.SourceSamples {
	out := make([]join.SourceSamples, 0, len(s.workers))
	for _, w := range s.workers {
		name := w.source.Name()
		samples, failed := w.samples(now, s.maxAge())
		if counting, ok := w.source.(driver.RejectionCounter); ok {
			s.Metrics.RejectTotal(name, counting.Rejected())
			if e, ok := w.source.(driver.Exampler); ok {
				s.Metrics.Implausible(name, e.Examples()...)
			}
		}
		out = append(out, join.SourceSamples{Name: name, Samples: samples, Failed: failed})
	}
	return out
}

// maxPIDs is the largest number of processes whose pods are looked up at a tick.
const maxPIDs = 1 << 14

// lookupTurns is at how many ticks one of them looks up the pod of a process again that the tick
// before knew. Within that time the number of a process that has ended may be that of another
// one, if no tick in between saw it gone.
const lookupTurns = 10

// podsOf finds the pods of the samples' processes: of those that are new since the tick before, of
// those that had none, and of a tenth of the others. While procfs hangs, those of before are used.
func (s *Sampler) podsOf(ctx context.Context, sources []join.SourceSamples, now time.Time) map[int]string {
	pids := processes(sources)
	if s.PodOf == nil || len(pids) == 0 {
		s.pods = nil
		return nil
	}
	var due []int
	s.turn++
	for pid := range pids {
		if s.pods[pid] == "" || (pid+s.turn)%lookupTurns == 0 {
			due = append(due, pid)
		}
	}
	found, err := s.processes.Do(ctx, s.wait(), func(context.Context) (map[int]string, error) {
		found := make(map[int]string, len(due))
		for _, pid := range due {
			found[pid] = s.PodOf(pid)
		}
		return found, nil
	})
	if err == nil {
		pods := make(map[int]string, len(pids))
		for pid := range pids {
			pods[pid] = cmp.Or(found[pid], s.pods[pid]) // the process of an event may have ended since
		}
		s.pods, s.podsAt = pods, now
	}
	if now.Sub(s.podsAt) > s.maxAge() {
		return nil
	}
	return s.pods
}

// processes returns the processes of the samples, those of events first: they may have ended.
func processes(sources []join.SourceSamples) map[int]bool {
	pids := map[int]bool{}
	add := func(pid int) {
		if pid != 0 && len(pids) < maxPIDs {
			pids[pid] = true
		}
	}
	each := func(f func(s *driver.Sample)) {
		for _, source := range sources {
			for i := range source.Samples {
				f(&source.Samples[i])
			}
		}
	}
	each(func(s *driver.Sample) {
		for _, e := range s.Events {
			add(e.PID)
		}
	})
	each(func(s *driver.Sample) {
		for _, p := range s.Processes {
			add(p.PID)
		}
	})
	return pids
}

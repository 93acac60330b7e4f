package exporter

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Owners learns the holders of devices. Observe asks the kubelet, unless the last request is too
// recent. It returns soon after ctx ends.
type Owners interface {
	Observe(ctx context.Context) (podresources.Observation, error)
}

// Inventory knows the node's devices. Describe returns the holders, as far as Owners has learned
// them, and the hardware of all devices. It reads no file that has not changed. Its results are
// immutable. What has not changed may be the same slice or map as before, so that readers can skip
// it.
type Inventory interface {
	Describe() (podresources.View, driver.Inventory)
}

// SamplerConfig configures a [Sampler].
type SamplerConfig struct {
	Interval  time.Duration
	Deadline  time.Duration // of one call of a source
	Owners    Owners
	Inventory Inventory
	Sources   []driver.Source            // ordered by precedence
	PodOf     func(pid int) (uid string) // the pod of a process, "": none; nil: unknown
	Paths     Paths                      // for the topology of pods; nil: no topology
	Ledger    *ledger.Ledger
	Limiter   *exposition.Limiter
	Metrics   *SelfMetrics
	// Hints has a value when something suggests that holders have changed; this causes a tick. It may
	// be nil.
	Hints <-chan struct{}
	Now   func() time.Time
	// MaxAge is the age of the latest snapshot from which on Health fails, at least three intervals.
	MaxAge time.Duration
	// Recorder receives each snapshot; nil: none.
	Recorder Recorder
	State    State // nil: nothing is kept over restarts
}

// State persists state over restarts. Commit is called before the snapshot of a tick is served. It
// returns soon.
type State interface {
	Commit(ctx context.Context, now time.Time)
}

// Recorder keeps the contents of snapshots. Record may add to a snapshot what needs earlier ones.
// It returns soon.
type Recorder interface {
	Record(s *book.Snapshot)
}

// Sampler ticks. A tick reads all sources side by side and then asks for the holders, so that the
// holders at the time of the readings are known. It does not wait for slow sources: their samples
// come with a later tick.
type Sampler struct {
	SamplerConfig
	workers   []*worker
	owners    owners
	joiner    join.Joiner
	topology  topologies
	processes driver.Worker[map[int]string]
	pods      map[int]string // by PID
	podsAt    time.Time      // when they were last known
	turn      int            // number of ticks that looked up pods
	latest    atomic.Pointer[exposition.Snapshot]
	urgent    atomic.Pointer[urgent]
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

// reportOwners records an answer of the kubelet, or that the kubelet hangs.
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

// urgent is the work of a tick to which others give way until it ends.
type urgent struct {
	begun time.Time
	until context.Context //nolint:containedctx // it ends with the tick, or after urgentFor
}

// urgentFor is how long others give way to a tick, at most.
const urgentFor = 50 * time.Millisecond

// GiveWay waits while a tick is in progress. Work for requests calls it: each step of a tick would
// otherwise wait behind it for a processor, and the snapshot would be late. GiveWay waits for at
// most 50 ms, and not again for nine tenths of the interval. It is safe for concurrent use.
func (s *Sampler) GiveWay(ctx context.Context) {
	if u := s.urgent.Load(); u != nil {
		select {
		case <-u.until.Done():
		case <-ctx.Done():
		}
	}
}

// claimWay makes others give way to a tick that begins now, until end is called.
func (s *Sampler) claimWay(ctx context.Context, now time.Time) (end func()) {
	if last := s.urgent.Load(); last != nil && now.Sub(last.begun) < s.Interval*9/10 {
		return func() {} // ticks that hints cause can follow one another without a pause
	}
	until, end := context.WithTimeout(ctx, min(urgentFor, s.Interval/20))
	s.urgent.Store(&urgent{now, until})
	return end
}

// minTickInterval is the shortest time between two ticks.
const minTickInterval = 50 * time.Millisecond

// Run ticks until ctx ends, and once after that. Goroutines of pending calls outlive it.
func (s *Sampler) Run(ctx context.Context) {
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.progress.finish(s.Now())
	defer cancel()

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
		running, hinted = s.sleep(ctx, ticker, begun, retry)
		if hinted || !running {
			s.readAll()
		}
		if !running {
			s.tick(stop)
			return
		}
	}
}

// readAll makes the sources read all of their values in the next tick.
func (s *Sampler) readAll() {
	for _, w := range s.workers {
		if source, ok := w.source.(driver.Completer); ok {
			source.ReadAll()
		}
	}
}

// followUp is the time from a tick that a hint has caused to one more tick. A new cgroup or CDI
// spec of a pod means that its containers are about to start. Without a reading then, a gauge would
// seem to rise until the next regular tick.
const followUp = minTickInterval

// sleep waits for the next tick: a regular one, one that a hint causes, or a postponed one. running
// is false if ctx has ended. hinted: a hint is the cause.
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

// tick makes one snapshot. If the kubelet could not be asked, it returns when that is possible.
func (s *Sampler) tick(ctx context.Context) (retry time.Time) {
	begun := s.Now()
	defer s.claimWay(ctx, begun)()
	s.progress.enter("reading the sources", begun)
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
	result.Topology = s.topology.update(result.View.Allocations, result.Devices, now)
	snapshot := s.Ledger.Advance(result, now)
	s.Metrics.Reject(snapshot.Rejected...)
	s.Metrics.corrections.Add(float64(snapshot.Corrections))
	if n := snapshot.Forgotten; n > 0 {
		s.Metrics.Reject(driver.Rejection{Input: "history", Reason: driver.ReasonTooMany, Count: n})
	}
	s.Metrics.conflicts.WithLabelValues(join.ConflictKind).Set(float64(snapshot.Contradicted()))
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
	s.Metrics.tick.Set(s.ticks.add(ended.Sub(begun), ended).Seconds())
	return view.Retry
}

// wait is the longest time that a tick waits for its sources, and again for the kubelet.
func (s *Sampler) wait() time.Duration { return min(s.Interval/4, 250*time.Millisecond) }

// read starts all idle sources and waits for them.
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

// maxAge is the age up to which the newest result of a call is used.
func (s *Sampler) maxAge() time.Duration { return 3*s.Interval + s.Deadline }

// samples returns the newest samples of the sources.
func (s *Sampler) samples(now time.Time) []join.SourceSamples {
	out := make([]join.SourceSamples, 0, len(s.workers))
	for _, w := range s.workers {
		name := w.source.Name()
		samples, failed := w.samples(now, s.maxAge())
		if counting, ok := w.source.(driver.RejectionCounter); ok {
			s.Metrics.RejectTotal(name, counting.Rejected())
		}
		out = append(out, join.SourceSamples{Name: name, Samples: samples, Failed: failed})
	}
	return out
}

// maxPIDs is the largest number of processes whose pods are looked up in a tick.
const maxPIDs = 1 << 14

// lookupTurns is the number of ticks after which the pod of a known process is looked up again.
// Meanwhile the PID may belong to a new process, if no tick saw that the old one had ended.
const lookupTurns = 10

// podsOf finds the pods of the samples' processes. It looks up new processes, those without a pod,
// and a tenth of the others. While procfs hangs, it returns the last known pods.
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
			pods[pid] = cmp.Or(found[pid], s.pods[pid]) // a process of an event may have ended
		}
		s.pods, s.podsAt = pods, now
	}
	if now.Sub(s.podsAt) > s.maxAge() {
		return nil
	}
	return s.pods
}

// processes returns the PIDs of the samples. PIDs of events come first, since their processes may
// have ended.
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

// worker samples one source. A source that hangs blocks only its worker.
type worker struct {
	driver.Worker[[]driver.Sample]
	source driver.Source
	last   driver.Outcome[[]driver.Sample]
}

func newWorker(
	source driver.Source, deadline time.Duration, report func(driver.Outcome[[]driver.Sample]),
) *worker {
	return &worker{source: source, Worker: driver.Worker[[]driver.Sample]{
		Operation: "sample " + source.Name(), Deadline: deadline, Report: report,
	}}
}

// start begins to sample. It returns false if a call is in progress.
func (w *worker) start(ctx context.Context) bool {
	w.take()
	return w.Start(ctx, w.source.Sample)
}

// take stores the outcome of a call that has ended.
func (w *worker) take() {
	if o, ended := w.Take(); ended {
		w.last = o
	}
}

// samples returns the newest samples, and why the source failed. It returns none if they are older
// than maxAge, since the source hangs.
func (w *worker) samples(now time.Time, maxAge time.Duration) ([]driver.Sample, driver.Reason) {
	w.take()
	if now.Sub(w.last.Ended) > maxAge {
		return nil, driver.ReasonHung
	}
	return w.last.Value, driver.ReasonOf(w.last.Err)
}

// owners asks [Owners] for the holders. While the kubelet hangs, it keeps the last answer.
type owners struct {
	driver.Worker[podresources.Observation]
	source Owners
	last   observed
}

// observed is the newest answer.
type observed struct {
	podresources.Observation
	fresh bool // no tick has used it yet
}

// observe asks, unless a request is in progress. It waits up to wait for the answer, and returns
// the newest one.
func (o *owners) observe(ctx context.Context, wait time.Duration) observed {
	o.take()
	o.Start(ctx, o.source.Observe)
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	o.Wait(waiting)
	o.take()
	answer := o.last
	o.last.fresh, o.last.Rejected = false, nil
	return answer
}

// take stores an answer that has arrived.
func (o *owners) take() {
	answer, ended := o.Take()
	switch {
	case ended && driver.ReasonOf(answer.Err) == driver.ReasonPanic: // the answer has no view
		o.last.fresh = true
	case ended:
		o.last = observed{Observation: answer.Value, fresh: true}
	}
}

package state

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

// Format is the version of the format of segments and of the parts' content. It grows when an older
// program would misread what a newer one writes: fields that it does not know it skips.
const Format = 2

const (
	// maxWait is how long a tick waits for its changes to be handed to the operating system, and
	// quickWrite in what time they must have been for the next tick to wait.
	maxWait, quickWrite = 50 * time.Millisecond, 25 * time.Millisecond
	// openWait is how long the start waits for the folder.
	openWait = 5 * time.Second
	// syncEvery is how often what was written is made to last over a crash of the machine.
	syncEvery = 25 * time.Second
	// rotateBytes is how many bytes of changes a segment has at least when another one begins.
	rotateBytes = 3 << 20
	// callDeadline is after what time a call on the disk hangs.
	callDeadline = 3 * time.Second

	firstRetry, lastRetry = time.Second, time.Minute
)

// Part is something whose state is kept. Both methods append messages of package wire. Times are
// converted by clock, whose results a later process can compare with its own times.
type Part interface {
	// AppendState appends the whole state.
	AppendState(b []byte, clock func(time.Time) int64) []byte
	// AppendChanges appends what has changed since the last call of either method.
	AppendChanges(b []byte, clock func(time.Time) int64) []byte
}

// Config configures a [Store].
type Config struct {
	Path   string
	Node   string
	Boot   string                              // the ID of the kernel's boot
	Format int                                 // 0: [Format]
	Report func(took time.Duration, err error) // is told of each write, and of each hanging one
	Wrote  func(bytes int)                     // is told how much was written
	Late   func()                              // is told of each tick that is served before it is written
	// SetAside is told of a segment that can't be used, with its new name.
	SetAside func(file string, reason driver.Reason, err error)
	// Monotonic is the clock that goes on over restarts of the process; nil: that of the kernel.
	Monotonic func() time.Duration

	base  time.Time     // of New
	began time.Duration // the same moment on the clock that goes on
}

// Store keeps the state of parts. It is used by one goroutine at a time.
type Store struct {
	Config
	parts []named
	log   segments // of the call of calls that is in progress

	calls driver.Worker[int]   // of the disk: one at a time
	syncs driver.Worker[[]old] // of what was written; they return what could not be removed
	kept  []old                // what could not be removed

	whole  bool      // the next frame must have the whole state
	quick  bool      // the last write was quick: the next tick waits for its own
	retry  time.Time // not before
	delay  time.Duration
	synced time.Time // when the last sync was begun
	frame  []byte    // of the last changes
	raw    []byte    // their content, not compressed
	size   int       // of the content of the last whole state
	wait   time.Duration
}

type named struct {
	name string
	Part
}

// New returns a store that is not open yet.
func New(c Config) *Store {
	if c.Format == 0 {
		c.Format = Format
	}
	if c.Monotonic == nil {
		c.Monotonic = monotonic
	}
	c.base, c.began = time.Now(), c.Monotonic()
	s := &Store{Config: c, whole: true, quick: true, wait: maxWait}
	s.log.config = &s.Config
	s.calls = driver.Worker[int]{Operation: "write state", Deadline: callDeadline, Report: s.wrote}
	s.syncs = driver.Worker[[]old]{Operation: "sync state", Deadline: syncEvery, Report: s.syncedAll}
	return s
}

// Add adds a part, before the first Commit.
func (s *Store) Add(name string, p Part) { s.parts = append(s.parts, named{name, p}) }

// Restore opens the folder and returns what an earlier process has kept there; nil: nothing that
// can be used. It does not wait long: a folder that is not there by then, is locked or can't be
// written is tried again later, and overwritten.
func (s *Store) Restore(ctx context.Context, now time.Time) *Restored {
	var found atomic.Pointer[Restored]
	s.calls.Start(ctx, func(context.Context) (int, error) {
		restored, err := s.log.open(now, true)
		if restored != nil {
			found.Store(restored)
		}
		return 0, err
	})
	waiting, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	s.calls.Wait(waiting)
	if _, ended := s.calls.Take(); !ended {
		s.Report(openWait, driver.Hung("open the state folder"))
		return nil
	}
	return found.Load()
}

// Commit hands what has changed to the operating system, and waits for that at most for [maxWait].
// The snapshot of the tick is to be served afterwards.
func (s *Store) Commit(ctx context.Context, now time.Time) {
	s.calls.Take()
	s.sync(ctx, now)
	if s.calls.Busy() || now.Before(s.retry) {
		s.late()
		return
	}
	write := &write{whole: s.whole || s.log.full() && !s.syncs.Busy()}
	write.frame = s.encode(write.whole, now)
	s.calls.Start(context.WithoutCancel(ctx), func(context.Context) (int, error) { return s.log.write(write) })
	if s.quick {
		waiting, cancel := context.WithTimeout(ctx, s.wait)
		s.calls.Wait(waiting)
		cancel()
	}
	if write.state.CompareAndSwap(pending, late) {
		s.quick = false
		s.late()
	}
	s.whole = false
	s.calls.Take()
}

// late notes that a snapshot is served that is not written. The next one is written as soon as that
// is possible.
func (s *Store) late() {
	if s.Late != nil {
		s.Late()
	}
}

// encode returns a frame with the whole state, or with what has changed.
func (s *Store) encode(whole bool, now time.Time) []byte {
	present := s.present(now)
	clock := func(t time.Time) int64 { return int64(s.clock(t)) }
	raw := s.raw[:0]
	if whole {
		raw = make([]byte, 0, s.size+s.size/8)
	}
	raw = wire.Int(raw, fieldWall, present.wall)
	raw = wire.Int(raw, fieldClock, present.boot)
	for _, p := range s.parts {
		raw = wire.String(raw, fieldPart, p.name)
		raw = wire.Message(raw, fieldContent, func(b []byte) []byte {
			if whole {
				return p.AppendState(b, clock)
			}
			return p.AppendChanges(b, clock)
		})
	}
	if whole { // its memory is not kept: changes take far less
		s.size = len(raw)
		return finish(compress(begin(nil, kindWhole), raw))
	}
	s.raw = raw
	s.frame = finish(compress(begin(s.frame, kindChanges), raw))
	return s.frame
}

// present returns a time of now, or of a moment ago, on both clocks.
func (c *Config) present(now time.Time) moment { return moment{now.UnixNano(), int64(c.clock(now))} }

// clock converts a time to the clock that goes on over restarts. It gives the same each time.
func (c *Config) clock(t time.Time) time.Duration { return c.began + t.Sub(c.base) }

// wrote takes the outcome of a call.
func (s *Store) wrote(o driver.Outcome[int]) {
	s.quick = o.Err == nil && o.Took <= quickWrite
	if s.Wrote != nil && o.Value > 0 {
		s.Wrote(o.Value)
	}
	if o.Err != nil && !o.Ended.IsZero() {
		s.failed(o.Err, o.Ended)
		return
	}
	if o.Err == nil {
		s.delay = 0
	}
	s.Report(o.Took, o.Err)
}

// failed notes a call that failed. What it was to write is written later as a whole state.
func (s *Store) failed(err error, now time.Time) {
	s.whole = true
	s.delay = min(max(2*s.delay, firstRetry), lastRetry)
	s.retry = now.Add(s.delay)
	s.Report(0, err)
}

// sync makes what was written last over a crash of the machine, now and then.
func (s *Store) sync(ctx context.Context, now time.Time) {
	s.syncs.Take()
	if s.calls.Busy() || s.syncs.Busy() || !s.log.fresh && now.Sub(s.synced) < syncEvery {
		return
	}
	if job := s.log.syncing(s.kept); job != nil {
		s.synced, s.kept = now, nil
		s.syncs.Start(context.WithoutCancel(ctx), func(context.Context) ([]old, error) { return job() })
	}
}

func (s *Store) syncedAll(o driver.Outcome[[]old]) {
	s.kept = o.Value
	if o.Err != nil {
		s.Report(o.Took, o.Err)
	}
}

// Whole makes the next Commit write the whole state.
func (s *Store) Whole() { s.whole = true }

// Close writes the whole state, notes that the process ended and makes all
// last over a crash of the machine, unless ctx ends before.
func (s *Store) Close(ctx context.Context, now time.Time) {
	s.calls.Wait(ctx)
	s.retry, s.whole = time.Time{}, true
	s.Commit(ctx, now)
	s.calls.Wait(ctx)
	s.calls.Take()
	s.syncs.Wait(ctx)
	s.syncs.Take()
	if s.calls.Busy() || s.syncs.Busy() {
		return
	}
	s.calls.Start(context.WithoutCancel(ctx), func(context.Context) (int, error) { return s.log.end(s.kept) })
	s.calls.Wait(ctx)
	s.calls.Take()
}

// Restored is what an earlier process has kept.
type Restored struct {
	// Time is when it was written last, on the clock of this process.
	Time time.Time
	// Continues reports that nothing newer was served: counters go on.
	Continues bool
	// Format is that of what the parts have. What they write next is of the present one.
	Format int
	// Rebooted reports that the machine has started again since.
	Rebooted bool

	parts   map[string]*content
	last    moment
	present moment
	now     time.Time
}

// Part returns the whole state of a part at one time, and each change from then on, none of which
// is empty; nil: there is none.
func (r *Restored) Part(name string) (whole []byte, changes [][]byte) {
	if p := r.parts[name]; p != nil {
		return p.whole, p.changes
	}
	return nil, nil
}

// Clock returns a time that the clock of [Part] converted.
func (r *Restored) Clock(t int64) time.Time {
	m := moment{wall: r.last.wall + t - r.last.boot, boot: t}
	return m.on(r.now, r.present, !r.Rebooted)
}

// errNewer and the others are why a segment is set aside.
var (
	errNewer = errors.New("a newer version of the program wrote it")
	errNode  = errors.New("another node wrote it")
	errEmpty = errors.New("it has no state")
)

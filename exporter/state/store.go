package state

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Format is the version of the format of segments and of the parts' contents. It must grow if an
// older program would misread a newer program's state; older programs skip unknown fields. States
// of the formats of package former are read, and written again in this one.
const Format = 3

const (
	// maxWait is how long a tick waits until its changes are handed to the operating system. If a
	// write takes longer than quickWrite, the next tick does not wait.
	maxWait, quickWrite = 50 * time.Millisecond, 25 * time.Millisecond
	// openWait is how long the start waits for the folder.
	openWait = 5 * time.Second
	// syncEvery is the time between two syncs, which make the log persistent over a crash of the
	// machine.
	syncEvery = 25 * time.Second
	// rotateBytes is the smallest number of bytes of changes after which a new segment begins.
	rotateBytes = 3 << 20
	// callDeadline is the time after which a call on the disk counts as hung.
	callDeadline = 3 * time.Second

	firstRetry, lastRetry = time.Second, time.Minute
)

// Part is something with a persistent state, whose encoding is its own. clock converts times so
// that a later process can convert them to its own clock.
type Part interface {
	// AppendState appends the whole state.
	AppendState(b []byte, clock func(time.Time) int64) []byte
	// AppendChanges appends the changes since the last call of either method.
	AppendChanges(b []byte, clock func(time.Time) int64) []byte
}

// Config configures a [Store]. It must have Report and SetAside.
type Config struct {
	Path   string
	Node   string
	Boot   string                              // ID of the kernel's boot
	Report func(took time.Duration, err error) // receives each write, and each hanging one
	Wrote  func(bytes int)                     // receives the number of written bytes
	Late   func()                              // is called for each tick that is served before it is written
	// SetAside receives the new name of an unusable segment.
	SetAside func(file string, reason driver.Reason, err error)
	// Incomplete receives a segment that lacks its end, or has no state, and what was lost. A new one
	// replaces it.
	Incomplete func(file string, err error)

	base  time.Time     // time of New
	began time.Duration // the same time on the monotonic clock
}

// Store persists the state of parts. It is not safe for concurrent use.
type Store struct {
	Config
	parts []named
	log   segments // used by the call in progress

	calls driver.Worker[int] // one at a time
	syncs driver.Worker[struct{}]

	write  *write    // the last one
	whole  bool      // the next frame must have the whole state
	quick  bool      // the last write was quick, so the next tick waits for its own
	retry  time.Time // no attempt before
	delay  time.Duration
	synced time.Time // when the last sync began
	frame  []byte    // of the last changes
	raw    []byte    // their uncompressed content
	size   int       // size of the last whole state, uncompressed
	wait   time.Duration
}

type named struct {
	name string
	Part
}

// New returns a store that is not yet open.
func New(c Config) *Store {
	c.base, c.began = time.Now(), monotonic()
	s := &Store{Config: c, write: &write{}, whole: true, quick: true, wait: maxWait}
	s.log.config = &s.Config
	s.calls = driver.Worker[int]{Operation: "write state", Deadline: callDeadline, Report: s.wrote}
	synced := func(o driver.Outcome[struct{}]) {
		if o.Err != nil {
			s.Report(o.Took, o.Err)
		}
	}
	s.syncs = driver.Worker[struct{}]{Operation: "sync state", Deadline: syncEvery, Report: synced}
	return s
}

// Add adds a part. It must be called before the first Commit.
func (s *Store) Add(name string, p Part) { s.parts = append(s.parts, named{name, p}) }

// Restore opens the folder and returns the state of an earlier process, nil if there is no usable
// one. It waits a limited time. A folder that is not available by then, is locked or can't be
// written is tried again later, and then overwritten.
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

// Commit hands the changes to the operating system, and waits for that at most [maxWait]. The
// caller must serve the tick's snapshot afterwards.
func (s *Store) Commit(ctx context.Context, now time.Time) {
	s.calls.Take()
	s.sync(ctx, now)
	if s.calls.Busy() || now.Before(s.retry) {
		s.write.state.CompareAndSwap(handed, late)
		s.late()
		return
	}
	write := &write{whole: s.whole || s.log.full() && !s.syncs.Busy()}
	s.write = write
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

// late records that a snapshot is served before it is written.
func (s *Store) late() {
	if s.Late != nil {
		s.Late()
	}
}

// encode returns a frame with the whole state, or with the changes.
func (s *Store) encode(whole bool, now time.Time) []byte {
	clock := func(t time.Time) int64 { return int64(s.clock(t)) }
	raw := s.raw[:0]
	if whole {
		raw = make([]byte, 0, s.size+s.size/8)
	}
	raw = appendContent(raw, s.present(now), s.parts, func(p Part, b []byte) []byte {
		if whole {
			return p.AppendState(b, clock)
		}
		return p.AppendChanges(b, clock)
	})
	if whole { // its memory is not reused: changes need far less
		s.size = len(raw)
		return finish(compress(begin(nil, kindWhole), raw))
	}
	s.raw = raw
	s.frame = finish(compress(begin(s.frame, kindChanges), raw))
	return s.frame
}

// present returns a recent time on both clocks.
func (c *Config) present(now time.Time) moment {
	return moment{Wall: now.UnixNano(), Boot: int64(c.clock(now))}
}

// clock converts a time to the monotonic clock. It gives equal results for equal times.
func (c *Config) clock(t time.Time) time.Duration { return c.began + t.Sub(c.base) }

// wrote receives the outcome of a call.
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

// failed records that a call failed. Its content is written later, as a whole state.
func (s *Store) failed(err error, now time.Time) {
	s.whole = true
	s.delay = min(max(2*s.delay, firstRetry), lastRetry)
	s.retry = now.Add(s.delay)
	s.Report(0, err)
}

// sync makes the log persistent over a crash of the machine every syncEvery.
func (s *Store) sync(ctx context.Context, now time.Time) {
	s.syncs.Take()
	if s.calls.Busy() || s.syncs.Busy() || !s.log.fresh() && now.Sub(s.synced) < syncEvery {
		return
	}
	if job := s.log.syncing(); job != nil {
		s.synced = now
		s.syncs.Start(context.WithoutCancel(ctx), func(context.Context) (struct{}, error) { return struct{}{}, job() })
	}
}

// Whole makes the next Commit write the whole state.
func (s *Store) Whole() { s.whole = true }

// Close writes the whole state, records the normal end, and makes both persistent over a crash of
// the machine. It stops waiting when ctx ends.
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
	s.calls.Start(context.WithoutCancel(ctx), func(context.Context) (int, error) { return s.log.end() })
	s.calls.Wait(ctx)
	s.calls.Take()
}

// Restored is the state of an earlier process.
type Restored struct {
	// Time is the time of the last write, on the clock of this process.
	Time time.Time
	// Continues reports that nothing newer was served, so that counters can continue.
	Continues bool
	Former    bool // the parts' contents are of a format of package former; they write the present one
	// Rebooted reports that the machine has rebooted since.
	Rebooted bool

	lost    error // nil: nothing
	parts   map[string]*content
	last    moment
	present moment
	now     time.Time
}

// Part returns a whole state of a part, and each later change that is not empty; nil: there is
// none.
func (r *Restored) Part(name string) (whole []byte, changes [][]byte) {
	if p := r.parts[name]; p != nil {
		return p.whole, p.changes
	}
	return nil, nil
}

// Clock converts a time from the clock of [Part].
func (r *Restored) Clock(t int64) time.Time {
	m := moment{Wall: r.last.Wall + t - r.last.Boot, Boot: t}
	return m.on(r.now, r.present, !r.Rebooted)
}

// The reasons for setting a segment aside.
var (
	errNewer = errors.New("a newer version of the program wrote it")
	errNode  = errors.New("another node wrote it")
	errEmpty = errors.New("it has no state")
)

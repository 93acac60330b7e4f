package state

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// counter is a part: a sum, and when it was added to last.
type counter struct {
	sum   int64
	added int64 // since it was written
	at    time.Time
	bulk  int // so many bytes more
}

func (c *counter) add(n int64, at time.Time) { c.sum, c.added, c.at = c.sum+n, c.added+n, at }

func (c *counter) AppendState(b []byte, clock func(time.Time) int64) []byte {
	c.added = 0
	return c.append(b, c.sum, clock)
}

func (c *counter) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	n := c.added
	c.added = 0
	return c.append(b, n, clock)
}

// append appends what was added, when, and bytes that can't be compressed.
func (c *counter) append(b []byte, n int64, clock func(time.Time) int64) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(n))
	b = binary.BigEndian.AppendUint64(b, uint64(clock(c.at)))
	bulk := make([]byte, c.bulk)
	_, _ = rand.NewChaCha8([32]byte{}).Read(bulk)
	return append(b, bulk...)
}

// restoredCounter returns the counter of a restored state.
func restoredCounter(t testing.TB, r *Restored) *counter {
	return must.Get(counterOf(r))(t)
}

func counterOf(r *Restored) (*counter, error) {
	c := &counter{}
	whole, changes := r.Part("counter")
	for _, b := range append([][]byte{whole}, changes...) {
		if len(b) < 16 {
			return nil, io.ErrUnexpectedEOF
		}
		c.sum += int64(binary.BigEndian.Uint64(b))
		c.at = r.Clock(int64(binary.BigEndian.Uint64(b[8:])))
	}
	return c, nil
}

// world is a folder, and what stores said of it.
type world struct {
	testing.TB
	path string
	boot string
	node string

	mu      sync.Mutex
	errs    []driver.Reason
	late    int
	aside   []driver.Reason
	lost    []string // what was said of incomplete segments
	written int
}

func newWorld(t testing.TB) *world {
	return &world{TB: t, path: filepath.Join(t.TempDir(), "state"), boot: "boot", node: "node"}
}

// store returns a store whose ticks wait for longer than a machine stands still.
func (w *world) store() *Store {
	s := New(Config{
		Path: w.path, Node: w.node, Boot: w.boot,
		Report: func(_ time.Duration, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if r := driver.ReasonOf(err); err != nil && !slices.Contains(w.errs, r) {
				w.errs = append(w.errs, r)
			}
		},
		Late:       func() { w.late++ },
		Wrote:      func(n int) { w.written += n },
		SetAside:   func(_ string, reason driver.Reason, _ error) { w.aside = append(w.aside, reason) },
		Incomplete: func(file string, err error) { w.lost = append(w.lost, filepath.Base(file)+" "+err.Error()) },
	})
	s.wait = 10 * time.Second
	return s
}

// run runs a process: it restores, and adds 1 at each of so many ticks. kill leaves the store as a
// killed process does.
func (w *world) run(ticks int, kill bool) (*Restored, *counter) {
	s := w.store()
	r := s.Restore(w.Context(), time.Now())
	c := &counter{}
	if r != nil {
		c = restoredCounter(w, r)
	}
	s.Add("counter", c)
	for range ticks {
		c.add(1, time.Now())
		s.quick = true
		s.Commit(w.Context(), time.Now())
		s.calls.Wait(w.Context())
	}
	if !kill {
		s.Close(w.Context(), time.Now())
	} else {
		w.kill(s)
	}
	return r, c
}

// kill unlocks the folder, as the end of a process does.
func (w *world) kill(s *Store) {
	s.calls.Wait(w.Context())
	s.calls.Take()
	s.syncs.Wait(w.Context())
	s.syncs.Take()
	if s.log.file != nil {
		_ = s.log.file.Close()
	}
	s.log.folder.close()
}

// newest returns the newest segment, and its name.
func (w *world) newest() ([]byte, string) {
	w.Helper()
	names := must.Get(filepath.Glob(filepath.Join(w.path, prefix+"*"+suffix)))(w)
	must.That(w, len(names) != 0, "no segments")
	last := names[len(names)-1]
	return must.Get(os.ReadFile(last))(w), last
}

func (w *world) rewrite(name string, b []byte) {
	must.Do(w, os.WriteFile(name, b, 0o600))
}

// In another boot, only a state of a process that ended normally continues.
func TestStateOutlivesAnEnd(t *testing.T) {
	for name, kill := range map[string]bool{"it ends": false, "it is killed": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if r, _ := w.run(3, kill); r != nil {
				t.Errorf("an empty folder had %+v", r)
			}
			_, before := w.run(4, kill)
			r, c := w.run(0, kill)
			must.That(t, r != nil && r.Continues && !r.Rebooted && c.sum == 7 && len(w.errs) == 0 && w.late <= 0,
				"the restored state is %+v with %+v; %v, %d late", r, c, w.errs, w.late)
			off := c.at.Sub(before.at).Abs()
			expect.That(t, off <= time.Millisecond, "times are off by %v", off)
			names, _ := filepath.Glob(filepath.Join(w.path, "*"))
			expect.That(t, len(names) <= 2, "there are %q", names)
			w.boot = "other"
			if r, c := w.run(0, true); !r.Rebooted || r.Continues == kill || c.sum != 7 {
				t.Errorf("in another boot the restored state is %+v with %+v", r, c)
			}
		})
	}
}

// Unusable files are set aside; Check reports them before.
func TestSetAside(t *testing.T) {
	for want, change := range map[driver.Reason]func(w *world){
		driver.ReasonNewerFormat: func(w *world) {
			b, name := w.newest()
			newer := (&header{Format + 1, w.node, w.boot}).frame()
			w.rewrite(name, append(newer, b[len(newer):]...))
		},
		driver.ReasonOtherNode: func(w *world) { w.node = "other" },
		driver.ReasonMalformed: func(w *world) {
			b, name := w.newest()
			b[len(b)/2]++
			w.rewrite(name, b)
		},
	} {
		t.Run(string(want), func(t *testing.T) {
			w := newWorld(t)
			w.run(9, true)
			check := func() driver.Reason {
				return driver.ReasonOf(Check(Config{Path: w.path, Node: w.node}))
			}
			expect.Is(t, check(), "", "before the change it can't be used")
			change(w)
			expect.Is(t, check(), want, "it can't be used")
			if r, _ := w.run(2, true); r != nil || !slices.Equal(w.aside, []driver.Reason{want}) {
				t.Errorf("restored %+v, set aside: %v", r, w.aside)
			}
			if r, c := w.run(0, true); r == nil || !r.Continues || c.sum != 2 {
				t.Errorf("afterwards the store has %+v with %+v", r, c)
			}
			names, _ := filepath.Glob(filepath.Join(w.path, "*.aside-"+string(want)))
			expect.That(t, len(names) == 1, "set aside: %q", names)
		})
	}
}

// A file that was cut off anywhere in its last frames has all complete frames, and continues only
// if the mark is its end.
func TestCutAnywhere(t *testing.T) {
	w := newWorld(t)
	w.run(4, true)
	whole, name := w.newest()
	frames := framesOf(t, whole)
	for size := frames[2]; size <= len(whole); size++ { // the header and the state are there
		w.rewrite(name, whole[:size])
		n := 0
		for n < len(frames) && frames[n] <= size {
			n++
		}
		ticks := int64((n - 1) / 2) // a header, and then a state and its mark
		s := w.store()
		r := s.Restore(t.Context(), time.Now())
		must.That(t, r != nil, "with %d of %d bytes nothing is restored: %v", size, len(whole), w.aside)
		marked := frames[n-1] == size && n%2 == 1
		if c := restoredCounter(t, r); c.sum != max(1, ticks+int64(1-n%2)) || r.Continues != marked {
			t.Errorf("with %d bytes, %d frames: %d, continues %v", size, n, c.sum, r.Continues)
		}
		w.kill(s)
	}
}

// framesOf returns where the frames of a segment end.
func framesOf(t testing.TB, b []byte) []int {
	var out []int
	for rest := b; len(rest) > 0; {
		_, _, after, err := next(rest)
		must.Do(t, err)
		rest = after
		out = append(out, len(b)-len(rest))
	}
	return out
}

// What was lost of a segment is said once, with its file; and nothing is said of one that is whole.
// After a loss of power the end of a file may be of zeros. What is before is restored.
func TestIncompleteIsSaid(t *testing.T) {
	for want, change := range map[string]func(b []byte) []byte{
		"":                                       func(b []byte) []byte { return b },
		"it ends within a frame":                 func(b []byte) []byte { return b[:len(b)-3] },
		"it ends within a frame: its last 4096 ": func(b []byte) []byte { return append(b, make([]byte, 4096)...) },
		"it has no state: it has 0 ":             func([]byte) []byte { return nil },
		"it has no state: it has 30":             func(b []byte) []byte { return b[:30] },
	} {
		w := newWorld(t)
		w.run(4, true)
		b, name := w.newest()
		w.rewrite(name, change(b))
		r, c := w.run(1, true)
		if strings.HasPrefix(want, "it ends") && (r == nil || r.Continues || c.sum != 5) {
			t.Errorf("%s: restored %+v with %+v", want, r, c)
		}
		if want == "" && len(w.lost) == 0 {
			continue
		}
		expect.That(t, len(w.lost) == 1 && want != "" && strings.HasPrefix(w.lost[0], filepath.Base(name)+" "+want),
			"%q is said, want %q", w.lost, want)
		if w.lost = nil; want != "" {
			if r, c := w.run(0, true); r == nil || !r.Continues || len(w.lost) > 0 {
				t.Errorf("then %+v with %+v is restored, and %q is said", r, c, w.lost)
			}
		}
	}
}

// A file that only looks like a segment is no error, at any start, and nothing of it is restored.
func TestForeignName(t *testing.T) {
	w := newWorld(t)
	w.run(2, true)
	b, name := w.newest()
	for _, foreign := range []string{"state-000000166.log", "state-7.log", "state-+0000009.log", "00000009.log"} {
		w.rewrite(filepath.Join(filepath.Dir(name), foreign), b[:len(b)/2])
	}
	for want := range int64(3) {
		if r, c := w.run(1, true); r == nil || !r.Continues || c.sum != want+3 || len(w.errs)+len(w.aside)+len(w.lost) > 0 {
			t.Fatalf("restored %+v with %+v; %v, set aside %v, %q", r, c, w.errs, w.aside, w.lost)
		}
	}
}

// Whatever bits are flipped, the restored state is the written one, up to some tick.
func TestFlippedBits(t *testing.T) {
	w := newWorld(t)
	w.run(5, true)
	whole, name := w.newest()
	rapid.Check(t, func(rt *rapid.T) {
		w.aside = nil
		b := slices.Clone(whole)
		for range rapid.IntRange(1, 3).Draw(rt, "bits") {
			b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		}
		w.rewrite(name, b)
		s := w.store()
		r := s.Restore(w.Context(), time.Now())
		w.kill(s)
		if r == nil {
			return // set aside, or without a whole state
		}
		same := slices.Equal(b, whole)
		if c := restoredCounter(t, r); c.sum < 1 || c.sum > 5 || (c.sum < 5 || !same) && r.Continues {
			rt.Errorf("restored %d, continues %v, set aside %v", c.sum, r.Continues, w.aside)
		}
	})
}

// FuzzParse checks that no file makes a store panic.
func FuzzParse(f *testing.F) {
	w := newWorld(f)
	w.run(3, true)
	b, _ := w.newest()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parse(b) })
}

func TestSecondInstance(t *testing.T) {
	w := newWorld(t)
	first := w.store()
	first.Restore(t.Context(), time.Now())
	c := &counter{}
	first.Add("counter", c)
	c.add(1, time.Now())
	first.Commit(t.Context(), time.Now())
	if r, _ := w.run(2, false); r != nil || !slices.Equal(w.errs, []driver.Reason{driver.ReasonLocked}) {
		t.Errorf("the second instance restored %+v, %v", r, w.errs)
	}
	w.kill(first)
	if _, c := w.run(0, true); c.sum != 1 {
		t.Errorf("the second instance wrote: %d", c.sum)
	}
}

// fault is a disk that fails after so many bytes.
type fault struct {
	file
	left    *int
	err     error
	cut     error // of Truncate
	blocked chan struct{}
}

func (f *fault) Write(b []byte) (int, error) {
	if len(b) <= *f.left {
		*f.left -= len(b)
		return f.file.Write(b)
	}
	if f.blocked != nil {
		<-f.blocked
		return f.file.Write(b)
	}
	n, _ := f.file.Write(b[:*f.left])
	*f.left = 0
	return n, f.err
}

func (f *fault) Truncate(size int64) error {
	if f.cut != nil {
		return f.cut
	}
	return f.file.Truncate(size)
}

// faulty returns a store whose segments are on a disk that fails.
func (w *world) faulty(of fault) (*Store, *counter) {
	s := w.store()
	c := &counter{}
	if r := s.Restore(w.Context(), time.Now()); r != nil {
		c = restoredCounter(w, r)
	}
	s.Add("counter", c)
	s.log.create = func(number uint64) (file, error) {
		file, err := s.log.folder.create(number)
		with := of
		with.file = file
		return &with, err
	}
	return s, c
}

// A disk that is full or read-only from any byte on is reported. State served in that time is not
// continued; once the disk works again, everything is.
func TestDiskFails(t *testing.T) {
	for _, err := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS} {
		for left := 0; left < 300; left += 11 {
			w := newWorld(t)
			w.run(1, true)
			room := left
			cut := error(nil)
			if err == syscall.EROFS {
				cut = err
			}
			s, c := w.faulty(fault{left: &room, err: err, cut: cut})
			served := c.sum
			now := time.Now()
			for range 9 {
				c.add(1, now)
				s.Commit(t.Context(), now)
				s.calls.Wait(t.Context())
				served = c.sum
			}
			w.kill(s)
			failed := len(w.errs) > 0
			check := w.store()
			r := check.Restore(t.Context(), time.Now())
			w.kill(check)
			if r != nil && r.Continues && restoredCounter(t, r).sum < served {
				t.Errorf("%v after %d bytes: %d of %d goes on", err, left, restoredCounter(t, r).sum, served)
			}
			if failed && driver.ReasonOf(err) != w.errs[0] {
				t.Errorf("%v after %d bytes is reported as %v", err, left, w.errs)
			}
			room = 1 << 20
			if _, _ = w.run(1, true); failed == (w.late == 0) {
				t.Errorf("failed: %v, %d late", failed, w.late)
			}
			if r, _ = w.run(0, true); !r.Continues {
				t.Errorf("%v after %d bytes: a disk that works again is not continued, %v", err, left, w.errs)
			}
		}
	}
}

// It works again within one process.
func TestDiskHasRoomAgain(t *testing.T) {
	w := newWorld(t)
	room := 100
	s, c := w.faulty(fault{left: &room, err: syscall.ENOSPC})
	now := time.Now()
	for range 9 {
		c.add(1, now)
		s.Commit(t.Context(), now)
	}
	room = 1 << 20
	now = now.Add(2 * lastRetry)
	for range 2 { // the first one is not waited for
		c.add(1, now)
		s.Commit(t.Context(), now)
		s.calls.Wait(t.Context())
		s.quick = true
	}
	w.kill(s)
	if r, c := w.run(0, true); r == nil || !r.Continues || c.sum != 11 {
		t.Errorf("restored %+v with %+v", r, c)
	}
}

// A write that hangs, of a frame or of its mark, delays one tick, by at most maxWait. State served
// in that time is not continued, unless it was written in the end.
func TestDiskHangs(t *testing.T) {
	for _, room := range []int{110, 120, 130, 140, 150, 160, 170, 180, 190} {
		t.Run(fmt.Sprintf("after %d bytes and is killed", room), func(t *testing.T) { hang(t, room, false) })
		t.Run(fmt.Sprintf("after %d bytes and recovers", room), func(t *testing.T) { hang(t, room, true) })
	}
}

func hang(t *testing.T, room int, recovers bool) {
	w := newWorld(t)
	blocked := make(chan struct{})
	s, c := w.faulty(fault{left: &room, blocked: blocked})
	s.wait = time.Millisecond
	now, waited := time.Now(), 0
	for range 20 {
		c.add(1, now)
		waits := s.quick && !s.calls.Busy()
		s.Commit(t.Context(), now)
		if s.calls.Busy() && waits {
			waited++
		}
	}
	must.That(t, s.calls.Busy() && w.late >= 10 && waited <= 1, "%d late, %d ticks waited", w.late, waited)
	close(blocked)
	s.calls.Wait(t.Context())
	room = 1 << 20
	s.wait = 10 * time.Second
	if recovers {
		for range 3 {
			s.quick = true
			c.add(1, now)
			s.Commit(t.Context(), now)
			s.calls.Wait(t.Context())
		}
	}
	w.kill(s)
	r, got := w.run(0, true)
	expect.That(t, r != nil && r.Continues == recovers && (!recovers || got.sum == c.sum),
		"restored %+v with %+v of %d", r, got, c.sum)
}

// The start does not wait for an unusable folder, and reports why.
func TestFolderIsNone(t *testing.T) {
	w := newWorld(t)
	w.rewrite(w.path, nil)
	r, _ := w.run(2, false)
	expect.That(t, r == nil && len(w.errs) == 1 && w.late == 3, "restored %+v, %v, %d late", r, w.errs, w.late)
}

// A folder whose segments can't be listed, or set aside, when it is opened is opened again for the
// next write, which replaces them all.
func TestFolderIsOpenedAgain(t *testing.T) {
	for name, failing := range map[string]func(w *world, s *Store){
		"not listed": func(_ *world, s *Store) {
			s.log.create = s.log.folder.create
			s.log.list = func() ([]uint64, error) {
				s.log.list = s.log.folder.numbers
				return nil, syscall.EIO
			}
		},
		"not set aside": func(w *world, _ *Store) {
			b, name := w.newest()
			w.rewrite(name, append([]byte{b[0] + 1}, b[1:]...))
			must.Do(w, os.MkdirAll(name+aside+"not-empty/folder", 0o700)) // can't be removed
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for range 3 {
				w.run(1, true)
			}
			s := w.store()
			failing(w, s)
			now := time.Now()
			if r := s.Restore(t.Context(), now); r != nil || len(w.errs) != 1 || s.log.folder.open != nil {
				t.Fatalf("restored %+v, %v, open: %v", r, w.errs, s.log.folder.open != nil)
			}
			c := &counter{}
			s.Add("counter", c)
			for range 2 { // the second one begins a sync
				now = now.Add(2 * lastRetry)
				c.add(1, now)
				s.quick = true
				s.Commit(t.Context(), now)
			}
			w.kill(s)
			names, _ := filepath.Glob(filepath.Join(w.path, prefix+"*"+suffix))
			expect.That(t, len(names) == 1, "there are %q", names)
			if r, c := w.run(0, true); r == nil || !r.Continues || c.sum != 2 {
				t.Errorf("restored %+v with %+v", r, c)
			}
		})
	}
}

// The folder is bounded, however much is written.
func TestSegmentsAreReplaced(t *testing.T) {
	w := newWorld(t)
	s := w.store()
	s.Restore(t.Context(), time.Now())
	c := &counter{bulk: 100 << 10}
	s.Add("counter", c)
	most := int64(0)
	for range 120 {
		c.add(1, time.Now())
		s.Commit(t.Context(), time.Now())
		s.calls.Wait(t.Context())
		s.syncs.Wait(t.Context())
		most = max(most, sizeOf(t, w.path))
	}
	expect.That(t, most <= 2*(rotateBytes+2*int64(c.bulk)) && s.log.number >= 3,
		"%d bytes in segment %d", most, s.log.number)
	c.bulk = maxFrame
	s.Commit(t.Context(), time.Now())
	s.calls.Wait(t.Context())
	s.calls.Take()
	expect.That(t, slices.Equal(w.errs, []driver.Reason{driver.ReasonTooLarge}), "a state that is too large: %v", w.errs)
	w.kill(s)
	if r, c := w.run(0, true); r == nil || r.Continues || c.sum != 120 {
		t.Errorf("restored %+v with %+v", r, c)
	}
}

// unsynced is a file that never reaches the disk.
type unsynced struct {
	file
	ctx context.Context //nolint:containedctx // of the test
}

func (u *unsynced) Sync() error { <-u.ctx.Done(); return nil }

// While nothing reaches the disk, and states are as large as they may be, or larger, the folder has
// room for a segment that was set aside, and for the documents, below its limit of 64 MiB.
func TestSizeIsBounded(t *testing.T) {
	for _, bulk := range []int{1 << 20, maxFrame - 64<<10} {
		w := newWorld(t)
		s := w.store()
		s.Restore(t.Context(), time.Now())
		c := &counter{}
		s.Add("counter", c)
		ctx, reach := context.WithCancel(t.Context())
		s.log.create = func(number uint64) (file, error) {
			f, err := s.log.folder.create(number)
			return &unsynced{f, ctx}, err
		}
		most, now := int64(0), time.Now()
		for n := range 40 {
			if c.bulk = bulk; n%10 == 9 {
				c.bulk = maxFrame
			}
			now = now.Add(2 * lastRetry)
			s.quick = true
			s.Commit(t.Context(), now)
			s.calls.Wait(t.Context())
			most = max(most, sizeOf(t, w.path))
		}
		expect.That(t, most <= 64<<20-2*8<<20-maxSegment && s.syncs.Busy(),
			"with states of %d bytes the folder has %d", bulk, most)
		reach()
		w.kill(s)
	}
}

func sizeOf(t testing.TB, path string) (sum int64) {
	for _, e := range must.Get(os.ReadDir(path))(t) {
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// Times are those of the clock that is not set.
func TestClock(t *testing.T) {
	w := newWorld(t)
	s := w.store()
	s.Restore(t.Context(), time.Now())
	now := time.Now()
	c := &counter{at: now.Add(-time.Minute)}
	s.Add("counter", c)
	s.Commit(t.Context(), now)
	w.kill(s)
	if _, c := w.run(0, true); now.Sub(c.at).Round(time.Second) != time.Minute {
		t.Errorf("a minute ago is %v ago", now.Sub(c.at))
	}
}

// still is a part in which something changed at the first tick alone.
type still struct{ changed bool }

func (*still) AppendState(b []byte, _ func(time.Time) int64) []byte { return append(b, "state"...) }

func (s *still) AppendChanges(b []byte, _ func(time.Time) int64) []byte {
	if s.changed {
		return b
	}
	s.changed = true
	return append(b, "change"...)
}

// The last change of a part is the one that it wrote last, however many ticks ago.
func TestLastChange(t *testing.T) {
	w := newWorld(t)
	s := w.store()
	s.Restore(t.Context(), time.Now())
	s.Add("still", &still{})
	for range 5 {
		s.quick = true
		s.Commit(t.Context(), time.Now())
		s.calls.Wait(t.Context())
	}
	w.kill(s)
	whole, changes := w.store().Restore(t.Context(), time.Now()).Part("still")
	expect.That(t, string(whole) == "state" && len(changes) == 1 && string(changes[0]) == "change",
		"the state is %q, the changes are %q", whole, changes)
}

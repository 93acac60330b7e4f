package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/state/former"
)

// write is a frame being written. Its state is decided by whoever is first: the writer, which sets
// handed after the frame, and marked after the mark; or the tick, which sets late and serves its
// snapshot.
type write struct {
	frame []byte
	whole bool
	state atomic.Int32
}

const (
	pending int32 = iota
	handed
	marked
	late
)

// segments writes the log. Its methods access the disk and must be called one at a time. full,
// fresh and syncing are used between two such calls.
type segments struct {
	config *Config
	create func(number uint64) (file, error) // for tests; nil: the folder's
	list   func() ([]uint64, error)          // for tests; nil: the folder's
	folder folder
	number uint64 // of the present segment
	file   file   // nil: there is none
	size   int64  // of the present segment
	began  int64  // size after its whole state
	kept   int64  // position of the last frame's mark
	synced uint64 // the newest segment for which a sync has begun: it removes earlier ones
}

var errOld = errors.New("what was written before can't be removed")

// open opens the folder, and returns the content of the newest usable segment. Unusable ones are
// set aside or removed. After an error the folder is not open.
func (l *segments) open(now time.Time, restore bool) (_ *Restored, err error) {
	if l.folder, err = openFolder(l.config.Path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.folder.disown()
			l.folder.close()
		}
	}()
	if l.create == nil {
		l.create, l.list = l.folder.create, l.folder.numbers
	}
	numbers, err := l.list()
	if err != nil {
		return nil, err
	}
	var out *Restored
	unsure := false                  // a newer segment was begun, and is not complete
	for _, number := range numbers { // the newest first
		l.number = max(l.number, number)
		l.synced = l.number
		if out != nil || !restore {
			continue
		}
		restored, err := l.restore(number, now)
		switch {
		case err == nil:
			out = restored
			l.incomplete(number, restored.lost)
			out.Continues = out.Continues && !unsure
		case errors.Is(err, errEmpty):
			unsure = true
			l.incomplete(number, err)
		default:
			unsure = true
			if err := l.setAside(number, err); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Check returns why a store would set the content of its folder aside; nil: it would not. It
// changes nothing.
func Check(c Config) error {
	l := &New(c).log
	l.folder.path = c.Path
	numbers, err := l.folder.numbers()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, number := range numbers {
		_, err = l.restore(number, time.Now())
		if !errors.Is(err, errEmpty) && !errors.Is(err, fs.ErrNotExist) { // a running store has replaced it
			return err
		}
	}
	return nil
}

// restore reads a segment.
func (l *segments) restore(number uint64, now time.Time) (*Restored, error) {
	b, err := l.folder.read(number)
	if err != nil {
		return nil, err
	}
	s, err := parse(b)
	switch {
	case errors.Is(err, errTorn):
		return nil, fmt.Errorf("%w: it has %d bytes", errEmpty, len(b))
	case err != nil:
		return nil, err
	case s.Format > Format:
		return nil, driver.WithReason(driver.ReasonNewerFormat, errNewer)
	case s.Node != l.config.Node:
		return nil, driver.WithReason(driver.ReasonOtherNode, fmt.Errorf("%w: %s", errNode, s.Node))
	case errors.Is(s.torn, errDamaged):
		return nil, errDamaged
	case !s.whole:
		return nil, fmt.Errorf("%w: it has %d bytes", errEmpty, len(b))
	}
	r := &Restored{
		Former: s.Format <= former.Last, parts: s.parts, last: s.last, now: now, present: l.config.present(now),
		Rebooted: s.Boot == "" || s.Boot != l.config.Boot,
	}
	r.Continues = s.ended || s.marked && !r.Rebooted
	r.Time = r.Clock(s.last.Boot)
	if s.torn != nil {
		r.lost = fmt.Errorf("%w: its last %d of %d bytes, written after %s, are lost", s.torn, s.lost, len(b),
			r.Time.Format(time.RFC3339))
	}
	return r, nil
}

// incomplete reports a segment of which something was lost, if err is not nil.
func (l *segments) incomplete(number uint64, err error) {
	if err != nil && l.config.Incomplete != nil {
		l.config.Incomplete(l.folder.name(number), err)
	}
}

// setAside renames an unusable segment.
func (l *segments) setAside(number uint64, why error) error {
	reason := driver.ReasonOf(why)
	name, err := l.folder.setAside(number, reason)
	if err != nil {
		return fmt.Errorf("set a segment aside: %w", err)
	}
	l.config.SetAside(name, reason, why)
	return nil
}

// full reports whether the present segment has many changes and a new one may begin.
func (l *segments) full() bool {
	return l.size-l.began > max(rotateBytes, l.began/2) && !l.fresh()
}

// fresh reports whether no sync has begun for the present segment.
func (l *segments) fresh() bool { return l.file != nil && l.synced < l.number }

// write writes a frame, and its mark if it is in time. It returns the number of written bytes.
func (l *segments) write(w *write) (n int, err error) {
	if l.folder.open == nil {
		if _, err := l.open(time.Time{}, false); err != nil {
			return 0, err
		}
	}
	if w.whole {
		if err := l.begin(); err != nil {
			l.abandon(true)
			return 0, err
		}
		n, err = l.append((&header{Format, l.config.Node, l.config.Boot}).frame())
	}
	switch {
	case err != nil:
	case len(w.frame) > frameHeader+maxFrame:
		err = driver.WithReason(driver.ReasonTooLarge, fmt.Errorf("%d bytes", len(w.frame)))
	case l.size+int64(len(w.frame)) > maxSegment:
		err = driver.WithReason(driver.ReasonTooLarge, errOld)
	default:
		var more int
		more, err = l.append(w.frame)
		n += more
	}
	if err != nil {
		l.abandon(w.whole)
		return n, fmt.Errorf("write state: %w", err)
	}
	l.kept = l.size
	if w.whole {
		l.began = l.size
	}
	if !w.state.CompareAndSwap(pending, handed) {
		return n, nil
	}
	more, err := l.append(mark())
	if err == nil && !w.state.CompareAndSwap(handed, marked) { // it hung: something newer was served
		if err = l.file.Truncate(l.kept); err == nil {
			l.size = l.kept
		}
	}
	if err != nil {
		l.abandon(false)
		err = fmt.Errorf("write state: %w", err)
	}
	return n + more, err
}

func mark() []byte { return finish(begin(nil, kindHanded)) }
func end() []byte  { return finish(begin(nil, kindEnd)) }

func (l *segments) append(b []byte) (int, error) {
	n, err := l.file.Write(b)
	l.size += int64(n)
	return n, err
}

// begin begins a new segment. While a sync hangs, only those remain that have reached the disk or
// that it waits for, the last one, and the new one.
func (l *segments) begin() error {
	if l.number > l.synced+1 { // the one before it was removed when the last one began
		if err := l.folder.remove(l.number - 1); err != nil {
			return driver.WithReason(driver.ReasonTooLarge, fmt.Errorf("%w: %w", errOld, err))
		}
	}
	l.close()
	l.number++
	file, err := l.create(l.number)
	if err != nil {
		return fmt.Errorf("make a segment: %w", err)
	}
	l.file, l.size = file, 0
	return nil
}

// close closes the present segment. A sync in progress is not affected.
func (l *segments) close() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// abandon leaves the present segment after a failed write, and prevents that anything is continued.
// It cuts off an incomplete frame and the last mark. A segment without a whole state is removed.
func (l *segments) abandon(whole bool) {
	if l.file == nil {
		l.folder.disown()
		return
	}
	cut := !whole && l.file.Truncate(l.kept) == nil
	l.close()
	if !cut {
		_ = l.folder.remove(l.number)
		l.folder.disown()
	}
}

// syncing returns a function that makes the log persistent over a crash of the machine, and then
// removes earlier segments; nil: nothing to do.
func (l *segments) syncing() func() error {
	if l.file == nil {
		return nil
	}
	file, folder, number := l.file, l.folder, l.number
	l.synced = number
	return func() error {
		switch err := file.Sync(); {
		case errors.Is(err, os.ErrClosed): // a newer one has replaced it
			return nil
		case err != nil:
			return fmt.Errorf("sync state: %w", err)
		}
		if err := folder.sync(); err != nil {
			return fmt.Errorf("sync folder: %w", err)
		}
		return folder.removeBefore(number)
	}
}

// end records that the process ended normally, makes that persistent, and unlocks the folder.
func (l *segments) end() (n int, err error) {
	if l.file == nil {
		return 0, nil
	}
	if err := l.syncing()(); err != nil { // before the end frame
		return 0, err
	}
	if n, err = l.append(end()); err == nil {
		err = l.file.Sync()
	}
	l.close()
	l.folder.close()
	return n, err
}

// monotonic is the kernel's monotonic clock, which continues over restarts of the process.
func monotonic() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

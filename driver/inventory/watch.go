package inventory

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dra-exporter/dra-exporter/driver"
)

// pollInterval is how often the folders are looked at while they can't be watched: inotify is not
// to be had, a folder is not there yet, a file is half written.
const pollInterval = time.Second

// watchQueue is how many events can wait while the folders are read, so that one more look answers
// them all.
const watchQueue = 1024

// Watch keeps the devices up to date until ctx ends, whose error it returns, and calls emit for
// every spec file that is written (with the names that it defines) and removed (with those that it
// had defined and no other file does). Drivers write the specs just before a container starts and
// remove them after it has ended, so these are the moments at which ownership changes. What is
// there when the folders are first read, here or in [CDI.Load], is not emitted.
//
// It reads files only when inotify says that something changed. Folders need not exist yet, and may
// go and come back: without inotify's help they are looked at once a second, and a write found that
// way is dated by the file's own time. emit is called by this goroutine, in order. A file system
// that hangs delays the next look, and is reported; it does not delay the end.
func (c *CDI) Watch(ctx context.Context, emit func(at time.Time, gone bool, names []string)) error {
	return c.watch(ctx, openWatcher(), emit)
}

func (c *CDI) watch(ctx context.Context, w watcher, emit func(at time.Time, gone bool, names []string)) error {
	read := driver.NewReader[look](readSpecs, c.Report)
	defer func() {
		if !read.Busy() { // else to close might wait
			w.close()
		}
	}()
	for {
		seen, err := read.Run(ctx, func(context.Context) (look, error) {
			watched := w.add(c.dirs) // before reading, so that nothing falls between
			seen := c.refresh()
			seen.again = seen.again || !watched
			return seen, nil
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, change := range seen.changes {
			emit(change.at, change.gone, change.names)
		}
		if err := c.wait(ctx, w, err == nil && !seen.again); err != nil {
			return err
		}
	}
}

// wait returns when a spec has changed, when the queue of events overflowed, or, unless quiet, when
// it is time to poll.
func (c *CDI) wait(ctx context.Context, w watcher, quiet bool) error {
	var poll <-chan time.Time
	if !quiet {
		timer := time.NewTimer(pollInterval)
		defer timer.Stop()
		poll = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll:
			return nil
		case <-w.errors: //nolint:errcheck // Whatever it is, events may be lost, and looking again makes up for them.
			return nil
		case event := <-w.events:
			if c.isSpec(event.Name) {
				w.drain()
				return nil
			}
		}
	}
}

// watcher is an inotify instance; without one its channels are nil, and never ready.
type watcher struct {
	notify *fsnotify.Watcher
	events chan fsnotify.Event
	errors chan error
}

func openWatcher() watcher {
	notify, err := fsnotify.NewBufferedWatcher(watchQueue)
	if err != nil {
		return watcher{} // out of inotify instances: polling is what is left
	}
	return watcher{notify, notify.Events, notify.Errors}
}

func (w watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}

// add watches the folders, and reports whether all of them are. One that is watched already stays
// so.
func (w watcher) add(dirs []string) bool {
	if w.notify == nil {
		return false
	}
	all := true
	for _, dir := range dirs {
		if w.notify.Add(dir) != nil {
			all = false
		}
	}
	return all
}

// drain takes the events that are there already: one look at the folders answers them all.
func (w watcher) drain() {
	for {
		select {
		case <-w.events:
		default:
			return
		}
	}
}

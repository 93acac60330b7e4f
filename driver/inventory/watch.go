package inventory

import (
	"context"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dra-exporter/dra-exporter/driver"
)

// pollInterval is the interval at which the folders are read if events do not suffice: inotify is
// not available, a folder does not exist yet, or a file is incompletely written.
const pollInterval = time.Second

// watchQueue is the size of the queue of events that arrive while the folders are read.
const watchQueue = 1024

// Watch keeps the devices up to date until ctx ends, and returns the error of ctx. It calls emit
// for each spec file that is written, with the new names that it defines, and for all names that no
// file defines any more. Drivers write specs just before a container starts and remove them after
// it has ended, so that these are the times at which ownership changes. Specs that exist at the
// first read, here or in [CDI.Load], are not emitted.
//
// Watch reads files when inotify reports a change. While inotify is not available or a folder does
// not exist, it reads them once a second, and takes the time of a write from the file's
// modification time. emit is called in order, by the goroutine that calls Watch. A file system that
// hangs delays the next read and is reported to Report; Watch still returns when ctx ends.
func (c *CDI) Watch(ctx context.Context, emit func(at time.Time, gone bool, names []string)) error {
	return c.watch(ctx, openWatcher(), emit)
}

func (c *CDI) watch(ctx context.Context, w watcher, emit func(at time.Time, gone bool, names []string)) error {
	read := driver.NewReader[readResult](readSpecs, c.Report)
	defer func() {
		if !read.Busy() { // close waits for a call in progress
			w.close()
		}
	}()
	for {
		seen, err := read.Run(ctx, func(context.Context) (readResult, error) {
			watched := w.add(c.dirs) // before reading, so that no change is missed
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

// wait returns when a spec has changed, when the queue of events overflows or, unless quiet, after
// pollInterval.
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
		case <-w.errors: //nolint:errcheck // Events may be lost; reading the folders makes up for them.
			return nil
		case event := <-w.events:
			if isSpec(event.Name) || slices.Contains(c.dirs, event.Name) {
				w.drain()
				return nil
			}
		}
	}
}

// watcher is an inotify instance. If inotify is not available, its fields are nil.
type watcher struct {
	notify *fsnotify.Watcher
	events chan fsnotify.Event
	errors chan error
}

func openWatcher() watcher {
	notify, err := fsnotify.NewBufferedWatcher(watchQueue)
	if err != nil {
		return watcher{} // no inotify instance is left: Watch polls
	}
	return watcher{notify, notify.Events, notify.Errors}
}

func (w watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}

// add watches the folders and reports whether all of them are watched.
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

// drain drops the events in the queue, which one read of the folders covers.
func (w watcher) drain() {
	for {
		select {
		case <-w.events:
		default:
			return
		}
	}
}

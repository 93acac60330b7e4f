package podresources

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// Intervals at which the pods' cgroups are listed: without inotify, and otherwise, since inotify
	// may miss the creation of the kubepods folder.
	pollCgroups    = time.Second
	recheckCgroups = 10 * time.Second
	// cgroupEvents is the size of the queue of events.
	cgroupEvents = 1024
)

// Watch calls emit for every pod whose cgroup is created or removed, until ctx ends, and returns
// the error of ctx. Existing cgroups are not emitted. Change.At is, for a new cgroup, the latest
// time at which it can have appeared, by its folder (see [Cgroups.Since]), and for a removal the
// time at which it was noticed: at once, or within a second if inotify is not available. emit is
// called by one goroutine at a time, in order. A file system that hangs delays the next change, and
// is reported; it does not delay the return.
//
// The kubelet makes a pod's cgroup before its containers start, and removes it some time after they
// ended.
func (c *Cgroups) Watch(ctx context.Context, emit func(Change)) error {
	notify, err := fsnotify.NewBufferedWatcher(cgroupEvents)
	if err != nil {
		notify = nil // only listing is used
	}
	w := newCgroupWatch(c, notify, emit)
	w.read(ctx, func() { w.present = w.scan() })
	err = w.run(ctx)
	if notify != nil && !w.reader.Busy() { // else closing might block
		_ = notify.Close()
	}
	return err
}

// cgroupWatch is one call of [Cgroups.Watch].
type cgroupWatch struct {
	cgroups *Cgroups
	emit    func(Change)
	notify  *fsnotify.Watcher // nil if inotify is not available
	reader  *driver.Worker[struct{}]
	present map[string]podCgroup
	blind   bool // at least one folder could not be watched
}

func newCgroupWatch(c *Cgroups, notify *fsnotify.Watcher, emit func(Change)) *cgroupWatch {
	return &cgroupWatch{
		cgroups: c, notify: notify, emit: emit, reader: driver.NewReader[struct{}]("watch cgroups", c.Report),
		present: map[string]podCgroup{},
	}
}

func (w *cgroupWatch) run(ctx context.Context) error {
	var events chan fsnotify.Event
	var failures chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
	}
	for {
		if err := ctx.Err(); err != nil {
			return err // a call that hangs may use the fields
		}
		timer := time.NewTimer(w.interval())
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case event := <-events:
			w.read(ctx, func() { w.handle(event) })
		case <-failures: //nolint:errcheck // any error means that events were lost
			w.read(ctx, func() {
				w.drain(events) // these events are older than the lost ones
				w.rescan()
			})
		case <-timer.C:
			w.read(ctx, w.rescan)
		}
		timer.Stop()
	}
}

// read calls a function that reads files, and waits for it until ctx ends.
func (w *cgroupWatch) read(ctx context.Context, f func()) {
	_, _ = w.reader.Run(ctx, func(context.Context) (struct{}, error) { // an error was reported
		f()
		return struct{}{}, nil
	})
}

func (w *cgroupWatch) interval() time.Duration {
	if w.blind {
		return pollCgroups
	}
	return recheckCgroups
}

// scan lists the pods, and watches all folders in which they may come and go.
func (w *cgroupWatch) scan() map[string]podCgroup {
	w.blind = w.notify == nil
	return w.cgroups.scan(func(dir string) {
		if w.notify == nil {
			return
		}
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.blind = true
		}
	})
}

// rescan finds the changes for which there was no event.
func (w *cgroupWatch) rescan() {
	pods := w.scan()
	for _, uid := range slices.Sorted(maps.Keys(w.present)) {
		if _, there := pods[uid]; !there {
			w.gone(uid)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		w.came(uid, pods[uid])
	}
}

// handle processes an event.
func (w *cgroupWatch) handle(event fsnotify.Event) {
	name := filepath.Base(event.Name)
	kubepods := kubepodsOf(event.Name)
	uid, isPod := podUID(name)
	isPod = isPod && isKubepods(filepath.Base(kubepods)) // the folders above are watched too
	switch {
	case isPod && event.Has(fsnotify.Create):
		pod := podCgroup{path: event.Name, kubepods: kubepods}
		w.cgroups.remember(map[string]podCgroup{uid: pod})
		w.came(uid, pod)
	case isPod && event.Has(fsnotify.Remove|fsnotify.Rename):
		w.gone(uid)
	case event.Has(fsnotify.Create) && (isKubepods(name) || isQoS(name)):
		w.rescan()
	}
}

// drain processes the events in the queue.
func (w *cgroupWatch) drain(events <-chan fsnotify.Event) {
	for range len(events) {
		w.handle(<-events)
	}
}

// kubepodsOf returns the kubepods folder of a pod's folder.
func kubepodsOf(dir string) string {
	dir = filepath.Dir(dir)
	if isQoS(filepath.Base(dir)) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// came emits the appearance of a pod, once.
func (w *cgroupWatch) came(uid string, pod podCgroup) {
	if _, known := w.present[uid]; !known {
		change := Change{At: w.cgroups.now(), PodUID: uid}
		if info, err := os.Stat(pod.path); err == nil {
			if there, came := CameSince(change.At.Add(-recheckCgroups), info.ModTime(), change.At); came {
				change.At = there.At // this process may have waited for a processor
			}
		}
		w.emit(change)
	}
	w.present[uid] = pod
}

// gone emits the removal of a pod, once, if its folder does not exist any more.
func (w *cgroupWatch) gone(uid string) {
	pod, known := w.present[uid]
	if !known {
		return
	}
	if _, err := os.Lstat(pod.path); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	delete(w.present, uid)
	w.emit(Change{At: w.cgroups.now(), Gone: true, PodUID: uid})
}

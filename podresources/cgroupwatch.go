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
	// How often the pods' cgroups are listed: where inotify is not to be had; while there is no
	// kubepods folder, whose coming inotify may not tell; and all the same.
	pollCgroups    = time.Second
	searchKubepods = 5 * time.Second
	recheckCgroups = 30 * time.Second
	// cgroupEvents is how many events may wait.
	cgroupEvents = 1024
)

// Watch calls emit for every pod whose cgroup is created or removed, until ctx ends, whose error it
// returns. Existing cgroups are not emitted. Change.At is the time at which a new cgroup was there
// at the latest, by its folder (see [Cgroups.Since]), and at which a removal was noticed: at once,
// or within a second if inotify is not available. emit is called by one goroutine at a time, in
// order. A file system that hangs delays the next change, and is reported; it does not delay the
// end.
//
// The kubelet makes a pod's cgroup before its containers start, and removes it some time after they
// ended.
func (c *Cgroups) Watch(ctx context.Context, emit func(Change)) error {
	notify, err := fsnotify.NewBufferedWatcher(cgroupEvents)
	if err != nil {
		notify = nil // listing is left
	}
	first := driver.NewReader[*cgroupWatch](watchCgroups, c.Report)
	w, err := first.Run(ctx, func(context.Context) (*cgroupWatch, error) {
		return newCgroupWatch(c, notify, emit), nil
	})
	if err == nil {
		err = w.run(ctx)
	}
	if notify != nil && !first.Busy() && (w == nil || !w.reader.Busy()) { // else to close might wait
		_ = notify.Close()
	}
	return err
}

// watchCgroups names the operation in errors.
const watchCgroups = "watch cgroups"

// cgroupWatch is one call of [Cgroups.Watch].
type cgroupWatch struct {
	cgroups *Cgroups
	emit    func(Change)
	notify  *fsnotify.Watcher // nil: inotify is not to be had
	reader  *driver.Worker[struct{}]
	present map[string]podCgroup
	blind   bool // there is a folder that could not be watched
	nowhere bool // there is no folder of pods
}

// newCgroupWatch looks at what is there.
func newCgroupWatch(c *Cgroups, notify *fsnotify.Watcher, emit func(Change)) *cgroupWatch {
	w := &cgroupWatch{
		cgroups: c, notify: notify, emit: emit, reader: driver.NewReader[struct{}](watchCgroups, c.Report),
	}
	w.present = w.scan()
	return w
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
		case <-failures: //nolint:errcheck // whatever it says, more happened than the kernel could queue
			w.read(ctx, func() {
				w.drain(events) // they are older than what was lost
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
	switch {
	case w.blind:
		return pollCgroups
	case w.nowhere:
		return searchKubepods
	default:
		return recheckCgroups
	}
}

// scan lists the pods, and watches all folders in which they may come and go.
func (w *cgroupWatch) scan() map[string]podCgroup {
	w.blind, w.nowhere = w.notify == nil, true
	return w.cgroups.scan(func(dir string) {
		if isKubepods(filepath.Base(dir)) {
			w.nowhere = false
		}
		if w.notify == nil {
			return
		}
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.blind = true
		}
	})
}

// rescan finds out what has changed without an event.
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

// handle does what an event asks for.
func (w *cgroupWatch) handle(event fsnotify.Event) {
	name := filepath.Base(event.Name)
	kubepods := kubepodsOf(event.Name)
	uid, isPod := podUID(name)
	isPod = isPod && isKubepods(filepath.Base(kubepods)) // the folders above are watched too
	switch {
	case isPod && event.Has(fsnotify.Create):
		pod := podCgroup{path: event.Name, kubepods: kubepods}
		w.cgroups.remember(uid, pod)
		w.came(uid, pod)
	case isPod && event.Has(fsnotify.Remove|fsnotify.Rename):
		w.gone(uid)
	case event.Has(fsnotify.Create) && (isKubepods(name) || isQoS(name)):
		w.rescan()
	}
}

// drain handles the events that wait.
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

// came emits that a pod came, once.
func (w *cgroupWatch) came(uid string, pod podCgroup) {
	if _, known := w.present[uid]; !known {
		change := Change{At: w.cgroups.now(), PodUID: uid}
		if info, err := os.Stat(pod.path); err == nil {
			if there, came := CameSince(change.At.Add(-recheckCgroups), info.ModTime(), change.At); came {
				change.At = there.At // whoever reads events may have waited for a processor
			}
		}
		w.emit(change)
	}
	w.present[uid] = pod
}

// gone emits that a pod is gone, once, if its folder indeed is.
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

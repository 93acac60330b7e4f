package podresources

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Bounds of reading the cgroup file system.
const (
	maxPodCgroups    = 1 << 13 // pods that are remembered, beside those that exist
	maxKubepodsDepth = 3       // folders above kubepods
	maxCgroupFile    = 4096    // bytes of one file

	// minCgroupScan is the shortest time between two scans that [Cgroups.State] makes.
	minCgroupScan = time.Second
)

// Cgroups finds the pods of the node by their cgroups, of version 2 and version 1, and of both of
// the kubelet's drivers (k8s.io/kubernetes pkg/kubelet/cm/cgroup_manager_linux.go). The pod of UID
// a-b is
//
//	kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice    with the driver systemd
//	kubepods/burstable/poda-b                                                  with the driver cgroupfs
//
// or, if it is guaranteed, one folder higher. With the kubelet's --cgroup-root, all of this is in
// another folder. For version 1, the hierarchy of one controller is read. It is safe for concurrent
// use.
type Cgroups struct {
	// Report is called with the duration so far and the error of each read by Watch. It may be nil,
	// and must be set before Watch is called.
	Report func(took time.Duration, err error)

	path string
	now  func() time.Time

	mu      sync.Mutex           // is not held while files are read
	pods    map[string]podCgroup // pods that were seen, by UID
	scanned time.Time
}

// CgroupState is the state of a pod according to its cgroup.
type CgroupState uint8

// The states.
const (
	CgroupUnknown CgroupState = iota // never seen, or without processes
	CgroupAlive                      // exists, with processes
	CgroupGone                       // existed, and was removed
)

// podCgroup is a pod's cgroup, and the kubepods folder that it is in.
type podCgroup struct{ path, kubepods string }

// NewCgroups returns the reader of the cgroups in fs/cgroup of a sysfs. It reads nothing yet.
func NewCgroups(sysfs string, now func() time.Time) *Cgroups {
	return &Cgroups{path: filepath.Join(sysfs, "fs", "cgroup"), now: now, pods: make(map[string]podCgroup)}
}

// State reports whether the pod with that UID is alive: its cgroup has processes, or it was seen
// before, here or by [Cgroups.Watch], and is gone. The state is CgroupUnknown for a pod without
// processes, for one that was never seen, and for one that cannot be read.
func (c *Cgroups) State(uid string) CgroupState {
	pod, seen := c.lookup(uid)
	if !seen {
		return CgroupUnknown
	}
	switch populated, err := populated(pod.path); {
	case errors.Is(err, fs.ErrNotExist) && exists(pod.kubepods): // else the whole file system may be unmounted
		return CgroupGone
	case err == nil && populated:
		return CgroupAlive
	default:
		return CgroupUnknown
	}
}

// Folder returns the folder of the cgroup of the pod of that UID, "" if it was never seen. It may
// be gone.
func (c *Cgroups) Folder(uid string) string {
	pod, _ := c.lookup(uid)
	return pod.path
}

// lookup returns the cgroup of a pod if it was ever seen.
func (c *Cgroups) lookup(uid string) (podCgroup, bool) {
	c.mu.Lock()
	pod, seen := c.pods[uid]
	now := c.now()
	due := !seen && (c.scanned.IsZero() || now.Sub(c.scanned) >= minCgroupScan)
	if due {
		c.scanned = now
	}
	c.mu.Unlock()
	if due {
		pod, seen = c.scan(func(string) {})[uid]
	}
	return pod, seen
}

// scan lists the pods' cgroups and remembers them. Before it reads a folder in which pods or their
// parent folders may appear or disappear, it calls before with that folder.
func (c *Cgroups) scan(before func(dir string)) map[string]podCgroup {
	pods := make(map[string]podCgroup)
	for _, kubepods := range c.kubepods(before) {
		before(filepath.Dir(kubepods))
		before(kubepods)
		for _, dir := range subfolders(kubepods) {
			if isQoS(filepath.Base(dir)) {
				before(dir)
				addPods(pods, kubepods, subfolders(dir))
			}
		}
		addPods(pods, kubepods, subfolders(kubepods))
	}
	c.remember(pods)
	return pods
}

// addPods adds the folders that are cgroups of pods.
func addPods(pods map[string]podCgroup, kubepods string, dirs []string) {
	for _, dir := range dirs {
		if uid, ok := podUID(filepath.Base(dir)); ok {
			pods[uid] = podCgroup{path: dir, kubepods: kubepods}
		}
	}
}

// remember records that pods were seen. If there are too many, all others are forgotten.
func (c *Cgroups) remember(pods map[string]podCgroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pods) >= maxPodCgroups {
		c.pods = map[string]podCgroup{}
	}
	maps.Copy(c.pods, pods)
}

// Since returns the pods that appeared after a time, each with the latest time at which its cgroup
// can have appeared: the kernel keeps no creation time of cgroups. The time of a folder is when the
// kernel made its inode: when the kubelet created it, and again after the kernel dropped the inode.
func (c *Cgroups) Since(after time.Time) []Change {
	now := c.now()
	var out []Change
	for uid, pod := range c.scan(func(string) {}) {
		info, err := os.Stat(pod.path)
		if err != nil {
			continue
		}
		if change, came := CameSince(after, info.ModTime(), now); came {
			change.PodUID = uid
			out = append(out, change)
		}
	}
	return out
}

// CameSince returns the change of something that was there at a time of the wall clock, and may
// have appeared earlier, but not before the time after. It returns false if it appeared before
// that, or the time is in the future.
func CameSince(after, there, now time.Time) (Change, bool) {
	at := now.Add(there.Sub(now)) // on the monotonic clock, which does not jump
	if !at.After(after) || at.After(now) {
		return Change{}, false
	}
	return Change{At: at, Doubt: Doubt{Early: at.Sub(after)}}, true
}

// kubepods returns the kubelet's folders of pods: the highest ones of the first hierarchy that has
// any. That of version 2 is the only one; of version 1, the kubelet needs several.
func (c *Cgroups) kubepods(before func(dir string)) []string {
	hierarchies := []string{"memory", "cpu", "cpuset", "pids", "systemd", "unified"}
	if exists(filepath.Join(c.path, "cgroup.controllers")) {
		hierarchies = []string{"."}
	}
	for _, name := range hierarchies {
		hierarchy := filepath.Join(c.path, name)
		before(hierarchy)
		if found := findKubepods(hierarchy); len(found) > 0 {
			return found
		}
	}
	return nil
}

// findKubepods searches level by level, and returns the folders of the first level that has any.
func findKubepods(hierarchy string) []string {
	level := []string{hierarchy}
	for range maxKubepodsDepth + 1 {
		var found, below []string
		for _, dir := range level {
			for _, sub := range subfolders(dir) {
				if isKubepods(filepath.Base(sub)) {
					found = append(found, sub)
				} else {
					below = append(below, sub)
				}
			}
		}
		if len(found) > 0 {
			return found
		}
		level = below
	}
	return nil
}

// isKubepods reports whether a folder's name is that of the kubelet's folder of pods.
func isKubepods(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// isQoS reports whether a folder's name is that of the pods of one quality of service.
func isQoS(name string) bool {
	return name == "burstable" || name == "besteffort" ||
		strings.HasSuffix(name, "-burstable.slice") || strings.HasSuffix(name, "-besteffort.slice")
}

// podUID returns the pod's UID from the name of its cgroup.
func podUID(name string) (string, bool) {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		i := strings.LastIndex(slice, "-pod")
		if i < 0 {
			return "", false
		}
		uid := strings.ReplaceAll(slice[i+len("-pod"):], "_", "-") // systemd's dash divides slices
		return uid, validUID(uid)
	}
	uid, ok := strings.CutPrefix(name, "pod")
	return uid, ok && validUID(uid)
}

// populated reports whether a cgroup, or one below it, has processes: by cgroup.events (version 2,
// kernel Documentation/admin-guide/cgroup-v2.rst), or by the cgroup.procs of the tree (version 1).
func populated(dir string) (bool, error) {
	events, err := readHead(filepath.Join(dir, "cgroup.events"), maxCgroupFile)
	if errors.Is(err, fs.ErrNotExist) {
		return anyProcess(dir)
	}
	return bytes.Contains(events, []byte("populated 1")), err
}

// anyProcess looks for a process in a tree of cgroups.
func anyProcess(dir string) (bool, error) {
	procs, err := readHead(filepath.Join(dir, "cgroup.procs"), maxCgroupFile)
	if err != nil || len(procs) > 0 {
		return err == nil, err
	}
	for _, sub := range subfolders(dir) {
		if found, err := anyProcess(sub); found || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
	}
	return false, nil
}

// readHead reads the beginning of a file, up to a number of bytes.
func readHead(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}

// subfolders returns the folders in a folder, those that can be read.
func subfolders(dir string) (folders []string) {
	entries, _ := os.ReadDir(dir) // entries read before an error are returned too
	for _, entry := range entries {
		if entry.IsDir() {
			folders = append(folders, filepath.Join(dir, entry.Name()))
		}
	}
	return folders
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

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

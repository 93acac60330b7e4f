package inventory

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxSpecBytes is the maximum size of a spec file.
	maxSpecBytes = 1 << 20
	// maxSpecs is the maximum number of spec files in a folder.
	maxSpecs = 4096
)

// CDI has the devices of the CDI specs on the node (tags.cncf.io/container-device-interface). For
// an allocation that no slice describes, they show the hardware by device nodes and network
// interfaces.
//
// Only Load and Watch read files; the other methods do no I/O and do not wait for it. A CDI is safe
// for concurrent use.
type CDI struct {
	// Report, if not nil, is called with the duration of each read of the folders, or the time for
	// which it has been hanging, and with its error. It is set before Watch is called.
	Report func(took time.Duration, err error)

	dirs     []string
	sysfs    string
	now      func() time.Time
	readFile func(path string, limit int64) ([]byte, error)

	devices atomic.Pointer[map[string]specDevice] // by qualified name
	counted atomic.Pointer[driver.Rejections]     // immutable copy of rejected, as of the last read

	reading   sync.Mutex // held while files are read; guards the fields below
	loaded    time.Time  // when the folders were last read; zero: never
	files     map[string]*specFile
	problems  driver.Rejections // of the last read
	rejected  driver.Rejections
	unsettled bool // the folders must be read again soon: one could not be listed
}

// specFile is the state of a spec file. A file that cannot be read or parsed keeps its previous
// devices, since some drivers write a file in several steps.
type specFile struct {
	stamp     stamp
	devices   []specDevice
	malformed int // devices
	err       error
}

// NewCDI returns the CDI of folders, which need not exist yet. Later folders have precedence.
// sysfsRoot is used to look up the PCI addresses of DRM, accelerator and network devices; if it is
// empty, they stay unknown.
func NewCDI(dirs []string, sysfsRoot string) *CDI {
	c := &CDI{
		sysfs: sysfsRoot, now: time.Now, readFile: sysfs.ReadFile,
		rejected: driver.Rejections{},
	}
	for _, dir := range dirs {
		c.dirs = append(c.dirs, filepath.Clean(dir))
	}
	c.devices.Store(&map[string]specDevice{})
	c.counted.Store(&driver.Rejections{})
	return c
}

// Load reads the specs that have changed since the last read. It is needed only if [CDI.Watch] does
// not run. It returns an error of ReasonHung if it takes longer than driver.ReadDeadline.
func (c *CDI) Load() error {
	read := driver.NewReader[readResult](readSpecs, nil)
	_, err := read.Do(context.Background(), driver.ReadDeadline, func(context.Context) (readResult, error) {
		return c.refresh(), nil
	})
	return err
}

// readSpecs is the operation in error texts.
const readSpecs = "read CDI specs"

// Rejected returns the numbers of specs, devices and folders that were rejected so far.
func (c *CDI) Rejected() driver.Rejections { return maps.Clone(*c.counted.Load()) }

// Lookup returns the hardware of one allocated device, given all of its qualified CDI names
// (vendor/class=name). It returns false if the specs do not identify any hardware. A UUID, PCI
// address, interface or RDMA device on which the names disagree stays unknown.
func (c *CDI) Lookup(names []string) (driver.Hardware, bool) {
	devices := *c.devices.Load()
	var h driver.Hardware
	var uuids, addresses, netDevs, rdmaDevs []string
	for _, name := range names {
		listed, ok := devices[name]
		if !ok {
			continue
		}
		d := listed.hw
		h.Kind = max(h.Kind, d.Kind)
		uuids, addresses = append(uuids, d.UUID), append(addresses, d.PCI)
		netDevs, rdmaDevs = append(netDevs, d.NetDev), append(rdmaDevs, d.RDMADev)
		h.DeviceNodes = append(h.DeviceNodes, d.DeviceNodes...)
	}
	h.UUID, h.PCI, h.NetDev, h.RDMADev = only(uuids), only(addresses), only(netDevs), only(rdmaDevs)
	slices.Sort(h.DeviceNodes)
	h.DeviceNodes = slices.Compact(h.DeviceNodes)
	found := h.Kind != driver.KindDevice || len(h.DeviceNodes) > 0 || h.UUID+h.PCI+h.NetDev+h.RDMADev != ""
	return h, found
}

// Written returns the modification time of each spec file, as of the last read, and the qualified
// names that the file defines.
func (c *CDI) Written() iter.Seq2[time.Time, []string] {
	return func(yield func(time.Time, []string) bool) {
		c.reading.Lock()
		defer c.reading.Unlock()
		for _, f := range c.files {
			if len(f.devices) > 0 && !yield(f.stamp.mtime, namesOf(f.devices)) {
				return
			}
		}
	}
}

// CPUs returns the CPUs of the claim for which the specs of devices were written, ascending; nil if
// no spec has them. Specs of dra-driver-cpu have them (kind dra.k8s.io/cpu): all devices of a claim
// share one CDI device, which has the CPUs of all of them. The caller must not change the result.
func (c *CDI) CPUs(names []string) []int {
	devices := *c.devices.Load()
	for _, name := range names {
		if cpus := devices[name].cpus; cpus != nil {
			return cpus
		}
	}
	return nil
}

// change is a change of a spec file: names that it now defines, or no longer does.
type change struct {
	at    time.Time
	gone  bool
	names []string
}

// readResult is the result of one read of the folders.
type readResult struct {
	changes []change
	again   bool // the folders must be read again soon, even without an event
}

// refresh reads the files that have changed and returns the changes, except for those of the first
// read. A name that another file still defines is not gone.
func (c *CDI) refresh() readResult {
	c.reading.Lock()
	defer c.reading.Unlock()
	changes := c.update()
	counted := maps.Clone(c.rejected)
	c.counted.Store(&counted)
	return readResult{changes: changes, again: c.unsettled}
}

func (c *CDI) update() []change {
	at, before, problems := c.now(), *c.devices.Load(), driver.Rejections{}
	c.unsettled = false
	files, devices := map[string]*specFile{}, map[string]specDevice{}
	var order []string
	for _, dir := range c.dirs {
		paths := c.list(dir, problems)
		defined := map[string]int{} // in this folder
		for _, path := range paths {
			files[path] = c.files[path]
			if files[path] == nil {
				files[path] = &specFile{}
			}
			c.updateFile(files[path], path, at, problems)
			for _, d := range files[path].devices {
				devices[d.name] = d
				defined[d.name]++
			}
		}
		for name, times := range defined {
			if times > 1 {
				delete(devices, name)
				problems.Add(driver.ReasonConflictingCDI, 1)
			}
		}
		order = append(order, paths...)
	}
	for reason, n := range problems {
		c.rejected.Add(reason, n-c.problems[reason])
	}
	last := c.loaded
	c.files, c.problems, c.loaded = files, problems, at
	c.devices.Store(&devices)
	if last.IsZero() {
		return nil
	}
	var changes []change
	if gone := missing(slices.Sorted(maps.Keys(before)), devices); len(gone) > 0 {
		changes = append(changes, change{at: at, gone: true, names: gone})
	}
	for _, path := range order {
		// Only new names are a change: dra-driver-cpu has one file for all claims.
		if came := missing(namesOf(files[path].devices), before); len(came) > 0 {
			changes = append(changes, change{at: writtenAt(files[path].stamp.mtime, last, at), names: came})
		}
	}
	return changes
}

// missing returns the names that devices lacks.
func missing(names []string, devices map[string]specDevice) []string {
	return slices.DeleteFunc(names, func(name string) bool { _, ok := devices[name]; return ok })
}

func namesOf(devices []specDevice) []string {
	names := make([]string, 0, len(devices))
	for _, d := range devices {
		names = append(names, d.name)
	}
	return names
}

// list returns the spec files of a folder, sorted. A folder that does not exist has none. For a
// folder that cannot be read, it returns the known files.
func (c *CDI) list(dir string, problems driver.Rejections) []string {
	entries, err := sysfs.Names(sysfs.WorkingDir, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		problems.Add(driver.ReasonUnreadableFolder, 1)
		c.unsettled = true
		return slices.DeleteFunc(slices.Sorted(maps.Keys(c.files)), func(path string) bool {
			return filepath.Dir(path) != dir
		})
	}
	var paths []string
	for _, name := range entries {
		if path := filepath.Join(dir, name); isSpec(path) {
			paths = append(paths, path)
		}
	}
	problems.Add(driver.ReasonTooManySpecs, len(paths)-maxSpecs)
	return paths[:min(len(paths), maxSpecs)]
}

// isSpec reports whether a path is that of a spec file.
func isSpec(path string) bool {
	return strings.HasSuffix(path, ".json") || strings.HasSuffix(path, ".yaml")
}

// updateFile reads a file if it has changed.
func (c *CDI) updateFile(f *specFile, path string, at time.Time, problems driver.Rejections) {
	info, err := os.Stat(path)
	if err != nil {
		f.stamp, f.err = stamp{}, err
	} else if current := stampOf(info, at); !current.same(f.stamp) {
		devices, malformed, err := c.read(path)
		f.stamp, f.err = current, err
		if err == nil {
			f.devices, f.malformed = devices, malformed
		}
	}
	if f.err != nil {
		problems.Add(reasonOf(f.err), 1)
	} else {
		problems.Add(driver.ReasonMalformedCDI, f.malformed)
	}
}

// writtenAt returns the time of a write: the file's modification time if it is between the last
// read and this one, else the time of this read.
func writtenAt(mtime, last, at time.Time) time.Time {
	if mtime.After(last) && mtime.Before(at) {
		return at.Add(mtime.Sub(at)) // with monotonic clock reading
	}
	return at
}

func reasonOf(err error) driver.Reason {
	var pathError *fs.PathError
	switch {
	case errors.Is(err, sysfs.ErrTooLarge):
		return driver.ReasonLargeSpec
	case errors.As(err, &pathError):
		return driver.ReasonUnreadableSpec
	default:
		return driver.ReasonMalformedSpec
	}
}

// read reads a spec file and returns its devices, completed from sysfs.
func (c *CDI) read(path string) (devices []specDevice, malformed int, err error) {
	data, err := c.readFile(path, maxSpecBytes)
	if err != nil {
		return nil, 0, err
	}
	if devices, malformed, err = parseSpec(data); err == nil && c.sysfs != "" {
		for i := range devices {
			resolve(&devices[i].hw, c.sysfs)
		}
	}
	return devices, malformed, err
}

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

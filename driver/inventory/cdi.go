package inventory

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
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

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxSpecBytes is the maximum size of a spec file.
	maxSpecBytes = 1 << 20
	// maxSpecs is the maximum number of spec files in a folder.
	maxSpecs = 4096
	// settleTime is how long a spec that cannot be parsed is assumed to be incompletely written.
	settleTime = time.Second
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

	reading    sync.Mutex // held while files are read; guards the fields below
	loaded     time.Time  // when the folders were last read; zero: never
	files      map[string]*specFile
	conflicts  map[string]bool
	unreadable map[string]bool // folders
	excess     map[string]int  // number of files above maxSpecs, by folder
	rejected   driver.Rejections
	unsettled  bool // the folders must be read again soon: a file may be incompletely written
}

// specFile is the state of a spec file.
type specFile struct {
	dir      int
	stamp    stamp
	digest   uint64
	devices  []specDevice
	badSince time.Time // since when it cannot be parsed; zero: it was parsed
	counted  bool      // it was counted as rejected
}

// NewCDI returns the CDI of folders, which need not exist yet. Later folders have precedence.
// sysfsRoot is used to look up the PCI addresses of DRM, accelerator and network devices; if it is
// empty, they stay unknown.
func NewCDI(dirs []string, sysfsRoot string) *CDI {
	c := &CDI{
		sysfs: sysfsRoot, now: time.Now, readFile: sysfs.ReadFile,
		files: map[string]*specFile{}, rejected: driver.Rejections{}, conflicts: map[string]bool{},
		unreadable: map[string]bool{}, excess: map[string]int{},
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
	at, first := c.now(), c.loaded.IsZero()
	c.unsettled = false
	var came, gone []change
	present := map[string]bool{}
	for i, dir := range c.dirs {
		for _, path := range c.list(i, dir) {
			present[path] = true
			written, lost := c.updateFile(i, path, at)
			came, gone = append(came, written...), append(gone, lost...)
		}
	}
	for path, f := range c.files {
		if !present[path] {
			gone = append(gone, change{at: at, gone: true, names: namesOf(f.devices)})
			delete(c.files, path)
		}
	}
	c.loaded = at
	if len(came)+len(gone) == 0 && !first {
		return nil
	}
	devices := c.index()
	c.devices.Store(&devices)
	if first {
		return nil
	}
	return append(withoutDefined(gone, devices), came...)
}

// withoutDefined returns the changes without the names that devices still has.
func withoutDefined(changes []change, devices map[string]specDevice) []change {
	var out []change
	for _, c := range changes {
		c.names = slices.DeleteFunc(c.names, func(name string) bool { _, ok := devices[name]; return ok })
		if len(c.names) > 0 {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b change) int { return cmp.Compare(a.names[0], b.names[0]) })
	return out
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
func (c *CDI) list(i int, dir string) []string {
	entries, err := sysfs.Names(sysfs.WorkingDir, dir, 4*maxSpecs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if !c.unreadable[dir] {
			c.unreadable[dir] = true
			c.rejected.Add(driver.ReasonUnreadableFolder, 1)
		}
		c.unsettled = true
		return c.known(i)
	}
	delete(c.unreadable, dir)
	var paths []string
	for _, name := range entries {
		if ext := filepath.Ext(name); ext == ".json" || ext == ".yaml" {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	excess := max(0, len(paths)-maxSpecs)
	c.rejected.Add(driver.ReasonTooManySpecs, excess-c.excess[dir])
	c.excess[dir] = excess
	return paths[:len(paths)-excess]
}

// known returns the files of a folder as of the last successful read.
func (c *CDI) known(dir int) []string {
	var paths []string
	for path, f := range c.files {
		if f.dir == dir {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// updateFile reads a file if it has changed. A file that cannot be parsed keeps its previous
// devices for settleTime, since some drivers write a file in several steps; after that it defines
// none.
func (c *CDI) updateFile(dir int, path string, at time.Time) (came, gone []change) {
	f := c.files[path]
	if f == nil {
		f = &specFile{dir: dir}
		c.files[path] = f
	}
	info, err := os.Stat(path)
	if err != nil {
		f.stamp = stamp{}
		return nil, c.bad(f, at, err)
	}
	current := stampOf(info, at)
	if current.same(f.stamp) && (f.badSince.IsZero() || f.counted) {
		return nil, nil
	}
	data, devices, malformed, err := c.read(path)
	if err != nil {
		f.stamp = current
		return nil, c.bad(f, at, err)
	}
	digest := fnv.New64a()
	_, _ = digest.Write(data) // never fails
	changed := f.digest != digest.Sum64() || !f.badSince.IsZero() || f.devices == nil
	before := namesOf(f.devices)
	*f = specFile{dir: dir, stamp: current, digest: digest.Sum64(), devices: devices}
	if !changed {
		return nil, nil
	}
	c.rejected.Add(driver.ReasonMalformedCDI, malformed)
	if len(before) > 0 {
		gone = []change{{at: at, gone: true, names: before}}
	}
	// Only new names are a change: dra-driver-cpu has one file for all claims.
	names := slices.DeleteFunc(namesOf(devices), func(name string) bool { return slices.Contains(before, name) })
	if len(names) > 0 {
		came = []change{{at: writtenAt(info, c.loaded, at), names: names}}
	}
	return came, gone
}

// writtenAt returns the time of a write: the file's modification time if it is between the last
// read and this one, else the time of this read.
func writtenAt(info os.FileInfo, last, at time.Time) time.Time {
	if t := info.ModTime(); t.After(last) && t.Before(at) {
		return at.Add(t.Sub(at)) // with monotonic clock reading
	}
	return at
}

// bad records that a file could not be used. After settleTime it drops the file's devices.
func (c *CDI) bad(f *specFile, at time.Time, err error) (gone []change) {
	if f.badSince.IsZero() {
		f.badSince = at
	}
	if at.Sub(f.badSince) < settleTime {
		c.unsettled = true
		return nil
	}
	if !f.counted {
		f.counted = true
		c.rejected.Add(reasonOf(err), 1)
	}
	if names := namesOf(f.devices); len(names) > 0 {
		gone = []change{{at: at, gone: true, names: names}}
	}
	f.devices = nil
	return gone
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
func (c *CDI) read(path string) (data []byte, devices []specDevice, malformed int, err error) {
	if data, err = c.readFile(path, maxSpecBytes); err != nil {
		return nil, nil, 0, err
	}
	if devices, malformed, err = parseSpec(data); err != nil {
		return nil, nil, 0, err
	}
	if c.sysfs != "" {
		for i := range devices {
			resolve(&devices[i].hw, c.sysfs)
		}
	}
	return data, devices, malformed, nil
}

// index returns the devices by name. A later folder has precedence. A name that one folder defines
// twice is omitted.
func (c *CDI) index() map[string]specDevice {
	devices := map[string]specDevice{}
	folder := map[string]int{}
	conflicts := map[string]bool{}
	for i := range c.dirs {
		for _, path := range c.known(i) {
			for _, d := range c.files[path].devices {
				if at, ok := folder[d.name]; ok && at == i {
					conflicts[d.name] = true
				}
				devices[d.name], folder[d.name] = d, i
			}
		}
	}
	for name := range conflicts {
		delete(devices, name)
		if !c.conflicts[name] {
			c.rejected.Add(driver.ReasonConflictingCDI, 1)
		}
	}
	c.conflicts = conflicts
	return devices
}

// isSpec reports whether a path is that of a spec file or of one of the folders.
func (c *CDI) isSpec(path string) bool {
	return strings.HasSuffix(path, ".json") || strings.HasSuffix(path, ".yaml") || slices.Contains(c.dirs, path)
}

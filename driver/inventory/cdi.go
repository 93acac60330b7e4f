package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
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
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxSpecBytes bounds a spec file; the API objects that specs are made from are smaller than
	// 1.5 MiB.
	maxSpecBytes = 1 << 20
	// maxSpecs bounds the files of a folder.
	maxSpecs = 4096
	// settleTime is for how long a spec that can't be parsed is taken for one that is being
	// written.
	settleTime = time.Second
)

// CDI knows the devices of the CDI specs on the node (tags.cncf.io/container-device-interface): for
// an allocation that no slice describes, the device nodes and network interfaces that the container
// was given tell the hardware.
//
// It reads files only in Load, and in Watch when they change; the other methods cost no I/O and
// wait for none. Methods may be called concurrently.
type CDI struct {
	// Report is called with how long each look at the folders took, or hangs by now, and with its
	// error. It may be nil, and is set before Watch is called.
	Report func(took time.Duration, err error)

	dirs     []string
	sysfs    string
	now      func() time.Time
	readFile func(path string, limit int64) ([]byte, error)

	devices atomic.Pointer[map[string]specDevice] // by qualified name
	counted atomic.Pointer[driver.Rejections]     // rejected, as of the last look; not changed any more

	reading    sync.Mutex // is held while files are read, and guards what follows
	loaded     time.Time  // when the folders were last read; zero: never
	files      map[string]*specFile
	conflicts  map[string]bool
	unreadable map[string]bool // folders
	excess     map[string]int  // files above the bound, by folder
	rejected   driver.Rejections
	unsettled  bool // a file may be half written, or the like: look again soon
}

// specFile is what is known of a spec's file.
type specFile struct {
	dir      int
	stamp    stamp
	digest   uint64
	devices  []specDevice
	badSince time.Time // zero: it was parsed
	counted  bool      // as rejected
}

// NewCDI returns the CDI of these folders, which need not exist yet. Later folders have precedence.
// With a sysfs root (usually /sys), PCI addresses of DRM, accelerator and network devices are
// found; without, they stay unknown.
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

// Load reads the specs that have changed since the last time. It is needed only where [CDI.Watch]
// does not run. It fails if that takes too long.
func (c *CDI) Load() error {
	read := driver.NewReader[look](readSpecs, nil)
	_, err := read.Do(context.Background(), driver.ReadDeadline, func(context.Context) (look, error) {
		return c.refresh(), nil
	})
	return err
}

// readSpecs names the operation in errors.
const readSpecs = "read CDI specs"

// Rejected returns what could not be used since the CDI was made.
func (c *CDI) Rejected() driver.Rejections { return maps.Clone(*c.counted.Load()) }

// Lookup returns what the specs say of the hardware behind qualified device names
// (vendor/class=name), all of which belong to one allocated device. It is false if they say
// nothing. Where the names disagree on a PCI address or an interface, it stays unknown.
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

// Written returns when each file was written last, as of the last look, and the names that it has.
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

// ClaimUID returns the UID of the claim for which a spec was written, as it tells the container, ""
// where it does not: drivers of classic DRA do so in $DRA_CLAIM_UID (Spiderpool, pkg/dra).
func (c *CDI) ClaimUID(names []string) string {
	devices := *c.devices.Load()
	var uids []string
	for _, name := range names {
		uids = append(uids, devices[name].claimUID)
	}
	return only(uids)
}

// CPUs returns the CPUs that a spec says the claim has for which it was written, ascending; nil:
// none says so. Specs of dra-driver-cpu do (kind dra.k8s.io/cpu): all devices of a claim have one
// CDI device, with the CPUs of all of them. They must not be changed.
func (c *CDI) CPUs(names []string) []int {
	devices := *c.devices.Load()
	for _, name := range names {
		if cpus := devices[name].cpus; cpus != nil {
			return cpus
		}
	}
	return nil
}

// change is a spec file that was written or removed.
type change struct {
	at    time.Time
	gone  bool
	names []string
}

// look is what a look at the folders found.
type look struct {
	changes []change
	again   bool // soon, though nothing will announce a change
}

// refresh reads what has changed in the folders and returns the changes, those of the first time
// excepted: what is there from the beginning does not come. Names that another file still defines
// are not gone.
func (c *CDI) refresh() look {
	c.reading.Lock()
	defer c.reading.Unlock()
	changes := c.update()
	counted := maps.Clone(c.rejected)
	c.counted.Store(&counted)
	return look{changes: changes, again: c.unsettled}
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
	return append(reallyGone(gone, devices), came...)
}

// reallyGone returns the changes less the names that are still there.
func reallyGone(changes []change, devices map[string]specDevice) []change {
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

// list returns the spec files of a folder, sorted. A folder that is not there has none; of one that
// can't be read the files stay what they were.
func (c *CDI) list(i int, dir string) []string {
	entries, err := readDir(dir)
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
	slices.Sort(paths)
	excess := max(0, len(paths)-maxSpecs)
	c.rejected.Add(driver.ReasonTooManySpecs, excess-c.excess[dir])
	c.excess[dir] = excess
	return paths[:len(paths)-excess]
}

// known returns the files of a folder as of the last time.
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

// readDir returns the names in a folder; those far above the bound on specs are not read.
func readDir(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("read folder: %w", err)
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(4 * maxSpecs)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read folder: %w", err)
	}
	return names, nil
}

// updateFile reads a file if it has changed. A file that can't be parsed keeps what it defined
// before for the settle time, since drivers that don't rename write in several steps; then it
// defines nothing.
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
	_, _ = digest.Write(data) // a hash takes everything
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
	// What the file had before did not come now: dra-driver-cpu has one file for all claims.
	names := slices.DeleteFunc(namesOf(devices), func(name string) bool { return slices.Contains(before, name) })
	if len(names) > 0 {
		came = []change{{at: writtenAt(info, c.loaded, at), names: names}}
	}
	return came, gone
}

// writtenAt dates a write by the file's own time where that is credible: between the last look and
// this one.
func writtenAt(info os.FileInfo, last, at time.Time) time.Time {
	if t := info.ModTime(); t.After(last) && t.Before(at) {
		return at.Add(t.Sub(at)) // on the monotonic clock, for when the wall clock is set
	}
	return at
}

// bad notes that the file could not be used, and, when that has lasted, drops what it defined.
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
	case errors.Is(err, manifest.ErrTooLarge), errors.Is(err, sysfs.ErrTooLarge):
		return driver.ReasonLargeSpec
	case errors.As(err, &pathError):
		return driver.ReasonUnreadableSpec
	default:
		return driver.ReasonMalformedSpec
	}
}

// read returns the devices of a spec's file, resolved.
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

// index returns the devices by name. A later folder wins; a name that one folder defines twice is
// nobody's.
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

// isSpec reports whether a changed path may matter: a spec, or a folder itself.
func (c *CDI) isSpec(path string) bool {
	return strings.HasSuffix(path, ".json") || strings.HasSuffix(path, ".yaml") || slices.Contains(c.dirs, path)
}

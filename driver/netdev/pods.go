package netdev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxAttachments bounds the interfaces of pods that are read.
	maxAttachments = 1024
	// maxPIDs bounds the pods of one device in which it is looked for.
	maxPIDs = 32
	// maxTable bounds the content of /proc/<pid>/net/dev, at some 130 bytes a line.
	maxTable = 1 << 20
)

// namespace is a network namespace, as one sample sees it. The inode of its net/dev tells it from
// others: a procfs makes these files once for each namespace (proc_net_ns_init in
// fs/proc/proc_net.c), and to look at their numbers takes no privilege, unlike /proc/<pid>/ns/net.
type namespace struct {
	id    uint64
	table []byte // its net/dev
}

// podReader reads the interfaces of pods for one sample.
type podReader struct {
	source *Source
	start  time.Time
	host   uint64               // the host's namespace; 0: unknown
	tables map[uint64]namespace // by ID
	bad    *sysfs.Problems
}

// place is an interface of a network namespace.
type place struct {
	namespace uint64
	name      string
}

// found is where a device was found.
type found struct {
	*driver.Attachment
	place
	pid      int // of a process there
	counters [numCounters]uint64
}

// samplePods appends samples of the devices that are interfaces of pods. A device that the host
// shows, by its interface or its PCI address, is read there and not here. What can not be told
// apart is not read: a device that is attached several times, one whose interface's name is in
// several namespaces of its pods, and an interface that several devices are said to be.
func (s *Source) samplePods(samples []driver.Sample, start time.Time, bad *sysfs.Problems) []driver.Sample {
	if s.Attachments == nil {
		return samples
	}
	attachments := s.Attachments()
	if len(attachments) > maxAttachments {
		bad.Add(fmt.Errorf("more than %d interfaces of pods: the others are not read", maxAttachments))
		attachments = attachments[:maxAttachments]
	}
	r := podReader{source: s, start: start, tables: map[uint64]namespace{}, bad: bad}
	r.host, _ = r.open(1) // who sees no process 1 sees no process of another namespace either
	devices, places := map[[2]string]int{}, map[place]int{}
	var all []found
	for i := range attachments {
		a := &attachments[i]
		if a.Interface == "" { // an RDMA device
			continue
		}
		devices[[2]string{a.Driver, a.Device}]++
		if f, ok := r.find(a); ok && !shown(samples, &a.Hardware) {
			places[f.place]++
			all = append(all, f)
		}
	}
	for i := range all {
		f := &all[i]
		switch {
		case devices[[2]string{f.Driver, f.Device}] > 1: // of which the interface is one is not known
		case places[f.place] > 1:
			bad.Add(fmt.Errorf("interface %s of a pod is said to be several devices, %s among them", f.Interface, f.Device))
		default:
			samples = append(samples, r.sample(f))
		}
	}
	return samples
}

// shown reports whether the host has the device's interface.
func shown(samples []driver.Sample, h *driver.Hardware) bool {
	for i := range samples {
		s := &samples[i]
		contradicts := h.PCI != "" && s.Hardware.PCI != "" && h.PCI != s.Hardware.PCI
		if s.Device == "" && !contradicts &&
			(h.NetDev != "" && h.NetDev == s.Hardware.NetDev || h.PCI != "" && h.PCI == s.Hardware.PCI) {
			return true
		}
	}
	return false
}

// find finds the interface in the network namespace of a pod, which is that of the pod's first
// process alone: other processes may have made namespaces of their own, with interfaces of any
// name. Of several pods that hold the device, one has it.
func (r *podReader) find(a *driver.Attachment) (found, bool) {
	f := found{Attachment: a}
	for _, pid := range a.PIDs[:min(len(a.PIDs), maxPIDs)] {
		id, err := r.open(pid)
		if err != nil {
			r.bad.Add(err)
			continue
		}
		if id == 0 || id == r.host || id == f.namespace {
			continue
		}
		counters, ok, err := parseTable(r.tables[id].table, a.Interface)
		if err != nil {
			r.bad.Add(fmt.Errorf("read network interface %s of a pod: %w", a.Interface, err))
			return f, false
		}
		if !ok {
			continue
		}
		if f.namespace != 0 {
			r.bad.Add(fmt.Errorf("interface %s is in several network namespaces of the pods that hold %s", a.Interface,
				a.Device))
			return f, false
		}
		f.place, f.pid, f.counters = place{id, a.Interface}, pid, counters
	}
	return f, f.namespace != 0
}

// open returns the ID of a process's network namespace, whose table it reads once; 0 if the process
// has ended.
func (r *podReader) open(pid int) (uint64, error) {
	file, err := sysfs.Open(filepath.Join(r.source.Procfs, strconv.Itoa(pid), "net", "dev"))
	if ended(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open a pod's network interfaces: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at a pod's network interfaces: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("look at a pod's network interfaces: no inode")
	}
	if _, known := r.tables[stat.Ino]; known || stat.Ino == r.host {
		return stat.Ino, nil
	}
	table, err := io.ReadAll(io.LimitReader(file, maxTable+1))
	switch {
	case ended(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read a pod's network interfaces: %w", err)
	case len(table) > maxTable:
		return 0, fmt.Errorf("read a pod's network interfaces: %w", sysfs.ErrTooLarge)
	}
	r.tables[stat.Ino] = namespace{id: stat.Ino, table: table}
	return stat.Ino, nil
}

// ended reports whether an error says that a process has ended: it is no more, or it is left for
// its parent alone.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}

// sample counts on from what was read of the device before, here or on the host: the kernel's
// counters go with an interface from namespace to namespace (__dev_change_net_namespace in
// net/core/dev.c).
func (r *podReader) sample(f *found) driver.Sample {
	i := r.source.attached(f.Attachment)
	i.seen, i.at = r.start, r.source.now()
	i.move(f.namespace)
	i.index = 0 // the number that it comes back with may be another
	for n, raw := range f.counters {
		i.counters[n].read = true
		i.counters[n].advance(raw, i.at)
	}
	r.readLinkInPod(i, f)
	return driver.Sample{Driver: f.Driver, Device: f.Device, Readings: i.report(nil)}
}

// attached returns what is known of a device that is in a pod: what is known of it on the host, if
// it was there.
func (s *Source) attached(a *driver.Attachment) *netInterface {
	if i := s.known[a.Hardware.NetDev]; i != nil {
		if pci := i.facts.hardware.PCI; pci == "" || a.Hardware.PCI == "" || pci == a.Hardware.PCI {
			return i
		}
	}
	key := a.Driver + "/" + a.Device // no name of an interface has a slash
	i := s.known[key]
	if i == nil {
		i = &netInterface{}
		s.known[key] = i
	}
	return i
}

// move notes in which namespace the interface is; 0 is the host's. What a pod's received drops
// count has more in it than the host's (see counterFiles), so the difference between the two is
// nothing that happened.
func (i *netInterface) move(namespace uint64) {
	if (i.namespace == 0) != (namespace == 0) {
		i.counters[receivedDrops].rebase = true
	}
	i.namespace = namespace
}

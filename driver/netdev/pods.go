package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxAttachments limits the interfaces of pods that are read.
	maxAttachments = 1024
	// maxPIDs limits the pods in which one device is searched.
	maxPIDs = 32
	// maxTable limits the content of /proc/<pid>/net/dev, which has some 130 bytes per line.
	maxTable = 1 << 20
)

// namespace is a network namespace in one sample. Its ID is the inode of its net/dev: a procfs
// creates these files once for each namespace (proc_net_ns_init in fs/proc/proc_net.c). Unlike
// /proc/<pid>/ns/net, this needs no privileges.
type namespace struct {
	id    uint64
	table []byte // its net/dev
}

// podReader reads the interfaces of pods for one sample.
type podReader struct {
	source *Source
	host   uint64               // the host's namespace; 0: unknown
	tables map[uint64]namespace // by ID
	bad    *sysfs.Problems
}

// place is an interface of a network namespace.
type place struct {
	namespace uint64
	name      string
}

// found is the location of a device.
type found struct {
	*driver.Attachment
	place
	pid    int // a process there
	counts counts
}

// samplePods appends samples of devices that are interfaces of pods. A device whose interface or
// PCI address is on the host is read there. Ambiguous devices are not read: a device that is
// attached several times, one whose interface's name is in several namespaces of its pods, and an
// interface that several devices claim to be.
func (s *Source) samplePods(samples []driver.Sample, bad *sysfs.Problems) []driver.Sample {
	if s.Attachments == nil {
		return samples
	}
	attachments := s.Attachments()
	if len(attachments) > maxAttachments {
		bad.Add(fmt.Errorf("more than %d interfaces of pods: the others are not read", maxAttachments))
		attachments = attachments[:maxAttachments]
	}
	r := podReader{source: s, tables: map[uint64]namespace{}, bad: bad}
	r.host, _ = r.open(1) // without access to process 1, other namespaces can't be read either
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
		case devices[[2]string{f.Driver, f.Device}] > 1: // the interface belongs to an unknown one of them
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

// find finds the interface in the network namespace of a pod: that of the pod's first process,
// since other processes may have created namespaces with interfaces of any name. If several pods
// hold the device, one of them has the interface.
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
		counted, ok, err := parseTable(r.tables[id].table, a.Interface)
		if err != nil {
			r.bad.Add(fmt.Errorf("read network interface %s of a pod: %w", a.Interface, err))
		}
		if !ok {
			continue
		}
		if f.namespace != 0 {
			r.bad.Add(fmt.Errorf("interface %s is in several network namespaces of the pods that hold %s", a.Interface,
				a.Device))
			return f, false
		}
		f.place, f.pid, f.counts = place{id, a.Interface}, pid, counted
	}
	return f, f.namespace != 0
}

// open returns the ID of a process's network namespace, and reads its table once; 0 if the process
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

// ended reports whether an error says that a process has ended, or is a zombie.
func ended(err error) bool {
	return sysfs.HasEnded(err) || errors.Is(err, unix.EINVAL)
}

// sample returns the sample of a device. The kernel's counters move with an interface from
// namespace to namespace (__dev_change_net_namespace in net/core/dev.c).
func (r *podReader) sample(f *found) driver.Sample {
	at := r.source.now()
	a := sysfs.Attributes{
		Of: "network interface " + f.Interface, Now: func() time.Time { return at }, Reader: &r.source.file, Problems: r.bad,
	}
	for n, file := range counterFiles() {
		if value, ok := driver.NumberOf(f.counts.values[n], f.counts.bad[n]); ok {
			a.Add(file.quantity, value, file.labels[:]...)
		}
	}
	r.readLinkInPod(&a, f)
	return driver.Sample{Driver: f.Driver, Device: f.Device, Readings: a.Readings}
}

// The columns of /proc/net/dev (dev_seq_printf_stats in net/core/net-procfs.c), in the order of
// counterFiles. Received drops are the sum of rx_dropped and rx_missed_errors.
func tableColumns() [numCounters]int { return [numCounters]int{0, 8, 1, 9, 2, 10, 3, 11} }

const numColumns = 16

// counts has the counters of one interface, or why they are no numbers.
type counts struct {
	values [numCounters]uint64
	bad    [numCounters]error
}

// parseTable returns the counters of one interface in a /proc/net/dev. ok is false if the interface
// is missing, or its row is none. The error is about the row, or about its last malformed column.
func parseTable(table []byte, name string) (r counts, ok bool, err error) {
	for line := range bytes.Lines(table) {
		have, rest, isRow := bytes.Cut(line, []byte(":"))
		if !isRow || string(bytes.TrimSpace(have)) != name {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) < numColumns {
			return r, false, fmt.Errorf("%d columns of net/dev, want %d", len(fields), numColumns)
		}
		for n, column := range tableColumns() {
			if r.values[n], r.bad[n] = strconv.ParseUint(string(fields[column]), 10, 64); r.bad[n] != nil {
				err = fmt.Errorf("column %d of net/dev: %w", column+1, r.bad[n])
			}
		}
		return r, true, err
	}
	return r, false, nil
}

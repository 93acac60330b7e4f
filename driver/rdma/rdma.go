// Package rdma reads RDMA devices: InfiniBand, RoCE, iWARP and EFA: traffic, errors of ports,
// congestion, retransmissions, state and rate. Devices of the host are read from
// <sysfs>/class/infiniband. In the kernel's shared mode of RDMA namespaces, the default, these are
// all devices; the device of a claim is found by its PCI function, network interface or name. In
// the exclusive mode, a device can be only in the network namespace of a pod: it is then read from
// the sysfs of a process of that pod, which needs CAP_SYS_PTRACE.
//
// Bounds (max…) are for what the kernel and pods send.
package rdma

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// slowEvery is the time between two reads of everything except traffic: the hardware needs a
	// command for each file.
	slowEvery = 10 * time.Second
	// slowAtOnce limits the devices that one sample reads completely.
	slowAtOnce = 8
)

// Source reads all RDMA devices. It is a [driver.Source]. Counters of several ports are summed.
// Traffic is read for each sample, everything else every 10 s, for at most
// 8 devices per sample.
type Source struct {
	driver.Host
	root   string // <sysfs>/class/infiniband
	now    func() time.Time
	tables map[string]meaning
	known  map[string]*device // by name
	reader sysfs.Reader
	// isSysfs reports whether an open folder is in a sysfs.
	isSysfs func(sysfs.Dir) bool
}

var _ driver.Source = (*Source)(nil)

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) {
	return New(h), nil
}

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{
		driver.IOBytes, driver.Errors, driver.RDMAEvents, driver.RDMAPackets, driver.RDMAOperations, driver.LinkUp,
		driver.Capacity,
	}
}

// New returns a source that uses Sysfs, Procfs and Attachments. It reads nothing yet.
func New(h driver.Host) *Source {
	return &Source{
		Host: h, root: filepath.Join(h.Sysfs, "class", "infiniband"), now: time.Now, tables: newTables(),
		known: map[string]*device{}, isSysfs: sysfs.IsSysfs,
	}
}

// Name returns rdma.
func (*Source) Name() string { return "rdma" }

// Sample returns a sample of each device of the host, by name, and of each attached device that is
// not visible on the host. Values that a device does not support are omitted without error. Values
// that could not be read are omitted, with one error for all of them.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	names, err := sysfs.Names(sysfs.WorkingDir, s.root)
	if sysfs.IsGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	var bad sysfs.Problems
	start := s.now()
	due := sysfs.Due(names, s.slowAt, start, slowEvery, slowAtOnce)
	var samples []driver.Sample
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			bad.Add(fmt.Errorf("read RDMA devices: %w", err))
			break
		}
		if sample, ok := s.sample(name, start, due[name], &bad); ok {
			samples = append(samples, sample)
		}
	}
	if ctx.Err() == nil && s.Attachments != nil && s.isExclusive() {
		samples = s.samplePods(samples, names, start, &bad)
	}
	maps.DeleteFunc(s.known, func(_ string, d *device) bool { return !d.seen.Equal(start) })
	return samples, bad.Err()
}

// slowAt returns the time at which all files of a device were read last.
func (s *Source) slowAt(name string) time.Time {
	if d := s.known[name]; d != nil {
		return d.slowAt
	}
	return time.Time{}
}

// sample reads a device of the host. It returns false if the device no longer exists.
func (s *Source) sample(name string, start time.Time, whole bool, bad *sysfs.Problems) (driver.Sample, bool) {
	folder := filepath.Join(s.root, name)
	dir, err := sysfs.OpenDir(sysfs.WorkingDir, folder)
	if err != nil {
		if !sysfs.IsGone(err) {
			bad.Add(fmt.Errorf("open RDMA device %s: %w", name, err))
		}
		return driver.Sample{}, false
	}
	defer dir.Close()
	d := s.known[name]
	if d == nil {
		d = &device{}
		s.known[name] = d
	}
	if whole || d.hardware.RDMADev == "" {
		d.hardware = identify(&s.reader, folder, name)
	}
	before := bad.Len()
	s.measure(dir, name, d, start, whole, bad)
	readings := d.report()
	return driver.Sample{
		Hardware: d.hardware, Readings: readings, Unreadable: len(readings) == 0 && bad.Len() > before,
	}, true
}

// measure reads a device, given its open folder.
func (s *Source) measure(dir sysfs.Dir, name string, d *device, start time.Time, whole bool, bad *sysfs.Problems) {
	a := sysfs.Attributes{Dir: dir, Of: "RDMA device " + name, Reader: &s.reader, Problems: bad}
	d.seen = start
	if whole || d.ports == nil {
		s.refresh(d, &a)
	}
	d.at = s.now()
	for _, p := range d.ports {
		p.read(&a, true)
	}
	if !whole {
		return
	}
	d.slowAt = s.now()
	for _, p := range d.ports {
		p.readState(&a)
		p.read(&a, false)
	}
}

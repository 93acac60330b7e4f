// Package netdev reads the network interfaces of the host, and those that drivers have moved into
// pods: traffic, errors, link state and speed.
//
// Interfaces of the host are read from <sysfs>/class/net. A sysfs shows the network namespace in
// which it was mounted, so that a pod in any namespace sees the host's interfaces in the host's
// sysfs; /proc/net/dev shows the reader's own. An interface that a driver has moved into a pod's
// namespace is read from the net/dev of a process of that pod. This file shows the process's
// namespace to any reader, without setns and without privileges. The state of its link is only in
// the sysfs of that process, which needs CAP_SYS_PTRACE.
//
// Bounds (max…) are for what the kernel and pods send.
package netdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxInterfaces limits the interfaces that are read.
	maxInterfaces = 4096

	// virtualsAtOnce limits the interfaces without hardware, mostly pods' veths, that one sample
	// reads. Reading one takes some 30 system calls, and for each of them the kernel sums the counters
	// of all CPUs.
	virtualsAtOnce = 128

	// factsEvery is the time between two reads of values that rarely change and are expensive: links
	// to follow, and the speed, for which the kernel takes the lock of the network configuration and
	// asks the hardware.
	factsEvery = 30 * time.Second

	loopback = "lo" // its name in every network namespace
)

// Source reads all network interfaces except the loopback, which is never allocated. It is a
// [driver.Source].
//
// The counters are the kernel's (Documentation/ABI/testing/sysfs-class-net-statistics; their
// meaning: struct rtnl_link_stats64 in include/uapi/linux/if_link.h), also of an interface that
// moves to a pod and back.
type Source struct {
	driver.Host
	root  string // <sysfs>/class/net
	now   func() time.Time
	known map[string]*netInterface // by name
	next  string                   // the next interface without hardware to read, or a name below it
	file  sysfs.Reader
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
		driver.IOBytes, driver.NetworkPackets, driver.NetworkErrors, driver.NetworkDrops, driver.Capacity, driver.Temperature,
		driver.LinkUp, driver.Errors,
	}
}

// New returns a source that uses Sysfs, Procfs and Attachments. It reads nothing yet.
func New(h driver.Host) *Source {
	return &Source{
		Host: h,

		root:    filepath.Join(h.Sysfs, "class", "net"),
		now:     time.Now,
		known:   map[string]*netInterface{},
		isSysfs: sysfs.IsSysfs,
	}
}

// Name returns netdev.
func (*Source) Name() string { return "netdev" }

// Sample returns a sample of each interface of the host, by name, and of each attached device that
// is not on the host, by the device's name. Values that an interface does not support are absent
// without an error. Values that could not be read are absent, with one error for all of them. If
// there are more than virtualsAtOnce interfaces without hardware, they are read in turns, and keep
// their last readings in between.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	var bad sysfs.Problems
	start := s.now()
	samples := s.sampleHost(ctx, start, &bad)
	if ctx.Err() == nil {
		samples = s.samplePods(samples, &bad)
	}
	maps.DeleteFunc(s.known, func(_ string, i *netInterface) bool { return !i.seen.Equal(start) })
	return samples, bad.Err()
}

// sampleHost returns a sample of each interface of the host.
func (s *Source) sampleHost(ctx context.Context, start time.Time, bad *sysfs.Problems) []driver.Sample {
	root, err := os.Open(s.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		bad.Add(fmt.Errorf("open network interfaces: %w", err))
		return nil
	}
	defer func() { _ = root.Close() }()
	names, err := list(root)
	bad.Add(err)
	s.schedule(names)
	samples := make([]driver.Sample, 0, len(names))
	readings := make([]driver.Reading, 0, len(names)*(numCounters+3)) // for all samples, each of which gets a part
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			bad.Add(fmt.Errorf("read network interfaces: %w", err))
			break
		}
		i, before := s.known[name], bad.Len()
		if i == nil || i.due {
			i = s.measure(root, name, bad)
		}
		if i == nil {
			continue
		}
		i.seen = start
		begin := len(readings)
		readings = i.report(readings)
		samples = append(samples, driver.Sample{
			Hardware: i.facts.hardware, Readings: readings[begin:len(readings):len(readings)],
			Unreadable: len(readings) == begin && bad.Len() > before,
		})
	}
	return samples
}

// list returns the sorted names of the folder's entries, at most maxInterfaces.
func list(root *os.File) ([]string, error) {
	names, err := root.Readdirnames(maxInterfaces + 2) // one may be the loopback
	if len(names) == 0 {
		return nil, nilAtEOF(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == loopback })
	if len(names) > maxInterfaces {
		names, err = names[:maxInterfaces], fmt.Errorf("more than %d network interfaces: the others are not read",
			maxInterfaces)
	}
	slices.Sort(names)
	return names, err
}

// schedule marks the known interfaces that are due: those with hardware, and the next ones of the
// others, by name.
func (s *Source) schedule(names []string) {
	first, _ := slices.BinarySearch(names, s.next)
	left := virtualsAtOnce
	for n := range names {
		name := names[(first+n)%len(names)]
		i := s.known[name]
		if i == nil {
			continue
		}
		i.due = i.facts.physical || left > 0
		if i.due && !i.facts.physical {
			left--
			s.next = name + "\x00" // the lowest name above this one
		}
	}
}

// Package netdev reads the network interfaces of the host, and those that drivers have moved into
// pods: traffic, errors, and the link and its speed.
//
// What the host has comes from <sysfs>/class/net. A sysfs shows the network namespace in which it
// was mounted, so that the host's interfaces are seen through the host's sysfs from a pod of any
// namespace; /proc/net/dev would show the reader's own. An interface that a driver moved into a
// pod's namespace is not there: it is read in the net/dev of a process of that pod, which shows the
// process's namespace to any reader, without setns and without privilege. Whether it has a link is
// in the sysfs of that process alone, which takes CAP_SYS_PTRACE.
package netdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxInterfaces bounds the interfaces that are read.
	maxInterfaces = 4096

	// virtualsAtOnce bounds the interfaces without hardware, pods' veths for the most part, that
	// one sample reads again. Reading one takes some 30 system calls, at each of which the kernel
	// sums the counters of all CPUs.
	virtualsAtOnce = 128

	// factsEvery is how often values are read that rarely change and are expensive: links to
	// follow, and the speed, for which the kernel takes the lock of all network configuration and
	// asks the hardware.
	factsEvery = 30 * time.Second

	// remember is how long an interface that is gone stays known, to tell one that comes back from
	// a new one.
	remember = time.Hour

	loopback = "lo" // its name in every network namespace
)

// Source reads all network interfaces but the loopback, which is never allocated. It is a
// [driver.Source].
//
// The counters are the kernel's own (Documentation/ABI/testing/sysfs-class-net-statistics; their
// meaning: struct rtnl_link_stats64 in include/uapi/linux/if_link.h) and go on when an interface's
// driver sets them back to zero. An interface that was made anew under the name of an earlier one,
// which its ifindex shows, counts from zero at its first sight.
//
// The counters of an interface that moves to a pod, and back, go on: what it counted on the way is
// counted once.
type Source struct {
	driver.Host
	root  string // <sysfs>/class/net
	now   func() time.Time
	known map[string]*netInterface // by name
	next  string                   // the name of the interface without hardware whose turn it is, or one below
	file  sysfs.Reader
	// isSysfs reports whether an open folder is of a sysfs.
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
// is not there, by the device's name. What an interface does not support is absent without an
// error; what could not be read is absent too, with one error for all. Where there are more than
// virtualsAtOnce interfaces without hardware, those are read in turn, and have their last readings
// in between.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	var bad sysfs.Problems
	start := s.now()
	samples := s.sampleHost(ctx, start, &bad)
	if ctx.Err() == nil {
		samples = s.samplePods(samples, start, &bad)
	}
	s.forget(start)
	return samples, bad.Err()
}

// sampleHost returns a sample of each interface that the host has.
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
	readings := make([]driver.Reading, 0, len(names)*(numCounters+3)) // of all samples, each of which gets a part
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

// list returns the sorted names of what is in the folder, at most maxInterfaces of them.
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

// schedule says which of the known interfaces are due: those with hardware, and the next of the
// others in the order of their names.
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

// forget drops what has long been gone; when there is too much of it, all that was not seen since
// start.
func (s *Source) forget(start time.Time) {
	crowded := len(s.known) > 2*maxInterfaces
	for name, i := range s.known {
		if unseen := start.Sub(i.seen); unseen > remember || (crowded && unseen > 0) {
			delete(s.known, name)
		}
	}
}

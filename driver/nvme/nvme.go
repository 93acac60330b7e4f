// Package nvme reads NVMe controllers on the PCI bus and their namespaces: bytes read and written,
// busy time, requests in flight and temperatures, from <sysfs>/class/nvme. A controller that a
// program in user space drives (vfio, SPDK) is not there.
//
// Bounds (max…) are for what the kernel sends.
package nvme

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// slowEvery is the time between two reads of temperatures, for which the controller sends a log
	// page, and between two listings of namespaces.
	slowEvery = 10 * time.Second
	// slowAtOnce limits the controllers that one sample reads completely.
	slowAtOnce = 8
)

// Source reads all NVMe controllers on the PCI bus. It is a [driver.Source].
//
// Bytes that the host reads from a controller are transmitted by the controller, and bytes written
// are received. A controller is busy while its busiest namespace is, that is, while that has
// requests. The kernel does not report how many requests are possible at a time.
type Source struct {
	root      string // <sysfs>/class/nvme
	sysfs     string
	now       func() time.Time
	namespace *regexp.Regexp
	known     map[string]*controller // by name
	reader    sysfs.Reader
}

var _ driver.Source = (*Source)(nil)

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) { return New(h.Sysfs), nil }

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{
		driver.Utilization, driver.ActiveSeconds, driver.IOBytes, driver.Temperature, driver.RequestsInFlight,
		driver.Capacity, driver.StorageUsed, driver.Health,
	}
}

// New returns a source for a mount point of the host's sysfs. It reads nothing yet.
func New(mount string) *Source {
	return &Source{
		root: filepath.Join(mount, "class", "nvme"), sysfs: mount, now: time.Now, known: map[string]*controller{},
		namespace: regexp.MustCompile(`^nvme\d+(c\d+)?n\d+$`), // nvme0n1; nvme0c1n1 is a path to one with several
	}
}

// Name returns nvme.
func (*Source) Name() string { return "nvme" }

// Sample returns a sample of each controller, by name. Values that a controller lacks are absent
// without an error. Values that could not be read are absent, with one error for all of them.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	names, err := sysfs.Names(sysfs.WorkingDir, s.root)
	if err != nil {
		clear(s.known)
		if sysfs.IsGone(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("list NVMe controllers: %w", err)
	}
	var bad sysfs.Problems
	due := sysfs.Due(names, s.slowAt, s.now(), slowEvery, slowAtOnce)
	before := s.known
	s.known = make(map[string]*controller, len(names))
	var samples []driver.Sample
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			bad.Add(fmt.Errorf("read NVMe controllers: %w", err))
			break
		}
		c := before[name]
		if address := sysfs.PCIOf(s.sysfs, "nvme", name); c == nil || c.hardware.PCI != address {
			c = newController(filepath.Join(s.root, name), name, address)
		}
		s.known[name] = c
		if c.hardware.PCI != "" && s.measure(c, due[name], &bad) {
			samples = append(samples, driver.Sample{Hardware: c.hardware, Readings: c.report()})
		}
	}
	dropSharedSerials(samples)
	return samples, bad.Err()
}

// slowAt returns when a controller was last read completely.
func (s *Source) slowAt(name string) time.Time {
	if c := s.known[name]; c != nil {
		return c.slowAt
	}
	return time.Time{}
}

// dropSharedSerials removes serial numbers that do not identify one device: the two controllers of
// a dual-port drive have the same.
func dropSharedSerials(samples []driver.Sample) {
	with := map[string]int{}
	for i := range samples {
		with[samples[i].Hardware.Serial]++
	}
	for i := range samples {
		if h := &samples[i].Hardware; with[h.Serial] == 1 {
			h.UUID = h.Serial
		}
	}
}

// Package drm reads the use of graphics cards (class drm) and accelerators (class accel) by their
// DRM clients, from /proc/<pid>/fdinfo of the processes of pods that hold such devices.
//
// A client is an open file of a device, including duplicates of the file
// (Documentation/gpu/drm-usage-stats.rst of Linux).
//
// Bounds (max…) are for what the kernel and pods send.
package drm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

// Source reads DRM clients. It is a [driver.Source].
type Source struct {
	Config
	now func() time.Time
	index

	cards     *drmcard.Lister
	accels    []string // names in class accel
	processes map[int]*process
	clients   map[clientID]*usage
	order     []*usage // of clients, in the order in which they are read
	next      int      // in order
	changed   bool     // the present clients are not those of order
	parser    parser
	buffer    []byte
	limits    limits
}

// limits has the maximum numbers of what one sample reads, and of processes whose state is kept.
// The next samples continue with the rest.
type limits struct{ scans, files, reads, processes int }

var _ driver.Source = (*Source)(nil)

// Config has the settings of a source.
type Config struct {
	Procfs, Sysfs string // where they are mounted
	// Holders returns the pods that hold a device for which wanted returns true, with PIDs of Procfs.
	// Sample calls it at most once. Nil: there are none.
	Holders func(wanted func(*driver.Hardware) bool) []driver.PodProcesses
}

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) {
	return New(Config{Procfs: h.Procfs, Sysfs: h.Sysfs, Holders: h.Holders}), nil
}

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{driver.Utilization, driver.EngineUtilization, driver.MemoryUsed}
}

// New returns a source, without reading anything.
func New(c Config) *Source {
	return &Source{
		Config: c, now: time.Now, cards: drmcard.NewLister(c.Sysfs),
		processes: map[int]*process{}, clients: map[clientID]*usage{},
		buffer: make([]byte, maxFile),
		limits: limits{
			scans: scansAtOnce, files: filesAtOnce, reads: readsAtOnce, processes: maxProcesses,
		},
	}
}

// Name returns drm.
func (*Source) Name() string { return "drm" }

// Sample returns a sample of each device that pods hold and about which clients report something.
// If a process of these pods cannot be read for lack of permission, the device's sample has no
// readings, because they would be incomplete, and Sample returns an error.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read DRM clients: %w", err)
	}
	if err := s.list(); err != nil {
		return nil, err
	}
	var pods []driver.PodProcesses
	if len(s.devices) > 0 && s.Holders != nil {
		pods = s.Holders(func(h *driver.Hardware) bool { return len(s.ofHardware(h)) > 0 })
	}
	var bad sysfs.Problems
	s.scan(ctx, pods, &bad)
	s.read(ctx, &bad)
	if len(pods) == 0 {
		return nil, bad.Err()
	}
	r := s.newReport(pods)
	if err := ctx.Err(); err != nil {
		bad.Add(fmt.Errorf("read DRM clients: %w", err))
	}
	return r.samples(), errors.Join(r.forbidden, bad.Err())
}

// Package drm reads what the clients of DRM devices say of their use, of any kernel driver that
// says so: graphics cards (class drm) and accelerators (class accel), in /proc/<pid>/fdinfo of the
// processes of the pods that hold such devices, and of no others. It also reads the memory that
// cgroups have on devices (dmem), where the kernel counts it.
//
// A client is an open file of a device, with all its duplicates
// (Documentation/gpu/drm-usage-stats.rst of Linux).
package drm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
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
	changed   bool     // order is not of the present clients
	pods      map[string]*podMemory
	parser    parser
	buffer    []byte
	malformed atomic.Int64
	limits    limits
}

// limits bound what one sample reads, which the next ones go on with in turns, and the processes
// that are remembered.
type limits struct{ scans, files, reads, cgroups, processes int }

var (
	_ driver.Source           = (*Source)(nil)
	_ driver.RejectionCounter = (*Source)(nil)
)

// Config says what a source reads.
type Config struct {
	Procfs, Sysfs string // where they are mounted
	// Holders returns the pods that hold a device for which asked is true, with processes of Procfs.
	// Sample calls it at most once. It may be nil: none.
	Holders func(asked func(*driver.Hardware) bool) []driver.PodProcesses
}

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) {
	return New(Config{Procfs: h.Procfs, Sysfs: h.Sysfs, Holders: h.Holders}), nil
}

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{driver.Utilization, driver.EngineUtilization, driver.MemoryUsed, driver.MemoryCapacity}
}

// New returns a source. It reads nothing yet.
func New(c Config) *Source {
	return &Source{
		Config: c, now: time.Now, cards: drmcard.NewLister(c.Sysfs),
		processes: map[int]*process{}, clients: map[clientID]*usage{}, pods: map[string]*podMemory{},
		buffer: make([]byte, maxFile),
		limits: limits{
			scans: scansAtOnce, files: filesAtOnce, reads: readsAtOnce, cgroups: cgroupsAtOnce, processes: maxProcesses,
		},
	}
}

// Name returns drm.
func (*Source) Name() string { return "drm" }

// Rejected returns how many values of clients could not be used.
func (s *Source) Rejected() driver.Rejections {
	out := driver.Rejections{}
	out.Add(driver.ReasonMalformed, int(s.malformed.Load()))
	return out
}

// Sample returns a sample of each device that pods hold and of which anything is known. What a
// client does not say is absent. Where a process of the pods of a device may not be looked into,
// the device's figures would be those of the others: its sample is empty, and that is an error.
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
	bad.Add(s.readMemory(r))
	s.malformed.Store(int64(s.parser.malformed))
	if err := ctx.Err(); err != nil {
		bad.Add(fmt.Errorf("read DRM clients: %w", err))
	}
	return r.samples(), errors.Join(r.forbidden, bad.Err())
}

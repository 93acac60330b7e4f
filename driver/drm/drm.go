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
	"path/filepath"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

// Source reads DRM clients. It is a [driver.Source].
type Source struct {
	driver.Host
	now func() time.Time
	index

	cards     *drmcard.Lister
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

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) { return New(h), nil }

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{driver.Utilization, driver.EngineUtilization, driver.MemoryUsed}
}

// New returns a source that uses Procfs, Sysfs and Holders; without Holders, no pods hold devices.
// It reads nothing yet.
func New(h driver.Host) *Source {
	return &Source{
		Host: h, now: time.Now, cards: drmcard.NewLister(h.Sysfs),
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

// device is a card or an accelerator.
type device struct {
	hardware driver.Hardware
	kfd      bool // DRM clients do not report what processes compute on it
	// Values that clients of the device have reported since it was found: engine labels, engine times,
	// memory.
	engines         map[string]bool
	busy, hasMemory bool
}

// index finds devices by what identifies them.
type index struct {
	devices []*device
	byNode  map[string]*device
	byPCI   map[string][]*device
}

// list lists the devices again if cards or accelerators were added or removed.
func (s *Source) list() error {
	cards, fresh, err := s.cards.Cards(s.now())
	if err != nil {
		return fmt.Errorf("list DRM devices: %w", err)
	}
	if !fresh {
		return nil
	}
	before := s.byNode
	s.index = index{byNode: map[string]*device{}, byPCI: map[string][]*device{}}
	for i := range cards {
		c := &cards[i]
		if c.Driver == "nvidia" { // its clients report nothing; nvml reads the device
			continue
		}
		s.add(before, device{hardware: hardwareOf(c), kfd: c.Driver == "amdgpu"})
	}
	return nil
}

// hardwareOf returns the identifiers of a card. The first partition of an AMD GPU, which has the
// device nodes of the GPU, is identified only by these.
func hardwareOf(c *drmcard.Card) driver.Hardware {
	h := driver.Hardware{PCI: c.PCI, NUMANode: c.NUMANode, DeviceNodes: c.DeviceNodes()}
	var reader sysfs.Reader
	mode, err := reader.Value(sysfs.WorkingDir, filepath.Join(c.Device, "current_compute_partition"))
	if err == nil && string(mode) != "SPX" {
		h.Kind, h.Parent, h.PCI = driver.KindPartition, h.PCI, ""
	}
	return h
}

// add adds a device, with its previous state if it was known.
func (s *Source) add(before map[string]*device, d device) {
	added := before[d.hardware.DeviceNodes[0]]
	if added == nil || added.hardware.PCI != d.hardware.PCI {
		added = &d
		added.engines = map[string]bool{}
	}
	s.devices = append(s.devices, added)
	for _, node := range d.hardware.DeviceNodes {
		s.byNode[node] = added
	}
	if pci := d.hardware.PCI; pci != "" {
		s.byPCI[pci] = append(s.byPCI[pci], added)
	}
}

// ofHardware returns the devices with the hardware of a device of the inventory: by device nodes,
// or else by PCI address.
func (m *index) ofHardware(h *driver.Hardware) []*device {
	var found []*device
	for _, node := range h.DeviceNodes {
		if d := m.byNode[node]; d != nil && !slices.Contains(found, d) &&
			(h.PCI == "" || d.hardware.PCI == "" || h.PCI == d.hardware.PCI) {
			found = append(found, d)
		}
	}
	if found == nil {
		found = m.byPCI[h.PCI]
	}
	return found
}

// ofClient returns the device of a client, given the path of the node that it opened and its PCI
// address; nil: unknown. Clients of a partition have its own device node and the PCI address of the
// GPU. In a container, nodes may have other names.
func (m *index) ofClient(path, pci string) *device {
	if d := m.byNode[path]; d != nil && (d.hardware.PCI == pci || d.hardware.PCI == "" || pci == "") {
		return d
	}
	if of := m.byPCI[pci]; len(of) == 1 {
		return of[0]
	}
	return nil
}

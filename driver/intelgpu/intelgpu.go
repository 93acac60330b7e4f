// Package intelgpu reads Intel's GPUs (kernel drivers xe and i915), Gaudi accelerators (habanalabs)
// and NPUs (intel_vpu) from sysfs.
//
// Bounds (max…) are for what the kernel sends.
package intelgpu

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

const (
	// slowEvery is the time between two reads of values other than utilization, energy and power.
	slowEvery = 10 * time.Second
	// slowAtOnce is the maximum number of devices whose slow values one sample reads.
	slowAtOnce = 8
	// maxEntries is the maximum number of entries that are listed in a folder.
	maxEntries = 4096
)

// Source reads all GPUs and accelerators of Intel. It is a [driver.Source].
//
// Utilization and power are means since the previous sample. A virtual function has a sample
// without readings, since sysfs has no values for it. A suspended GPU is not woken: its utilization
// is 0, and everything else is absent.
type Source struct {
	Config
	now    func() time.Time
	cards  *drmcard.Lister
	accels accels
	known  map[string]*device // by PCI address
	order  []*device          // in the kernel's order, graphics cards first
	reader sysfs.Reader
}

var _ driver.Source = (*Source)(nil)

// Config is the configuration of a source.
type Config struct {
	Sysfs string // mount point of the host's sysfs
}

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) {
	return New(Config{Sysfs: h.Sysfs}), nil
}

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{
		driver.Utilization, driver.EngineUtilization, driver.ActiveSeconds, driver.MemoryUsed, driver.MemoryCapacity,
		driver.Power, driver.Energy, driver.Temperature, driver.Clock, driver.NeedsAttention, driver.PowerLimit,
		driver.ClockMax,
		driver.ThrottleActive, driver.FanRotation, driver.Voltage,
	}
}

// New returns a source. It reads nothing yet.
func New(c Config) *Source {
	return &Source{
		Config: c, now: time.Now, cards: drmcard.NewLister(c.Sysfs), accels: accels{root: c.Sysfs},
		known: map[string]*device{},
	}
}

// Name returns intelgpu.
func (*Source) Name() string { return "intelgpu" }

// Sample returns a sample of each device and each virtual function. Values that a device lacks are
// absent without an error. Values that could not be read are absent, with one error for all of
// them.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	var bad sysfs.Problems
	start := s.now()
	s.list(start, &bad)
	due := sysfs.Due(s.order, func(d *device) time.Time { return d.slowAt }, start, slowEvery, slowAtOnce)
	present := make([]*device, 0, len(s.order))
	for _, d := range s.order {
		if err := ctx.Err(); err != nil {
			bad.Add(fmt.Errorf("read Intel devices: %w", err))
			break
		}
		if s.measure(d, due[d], &bad) {
			present = append(present, d)
		}
	}
	return s.samples(present), bad.Err()
}

// list updates the known devices.
func (s *Source) list(now time.Time, bad *sysfs.Problems) {
	cards, newCards, err := s.cards.Cards(now)
	bad.Add(err)
	newAccels, err := s.accels.refresh(now)
	bad.Add(err)
	if !newCards && !newAccels {
		return
	}
	var found []*device
	for i := range cards {
		if d := ofCard(&cards[i]); d != nil {
			found = append(found, d)
		}
	}
	found = append(found, s.accels.devices...)
	before := s.known
	s.known, s.order = make(map[string]*device, len(found)), nil
	for _, d := range found {
		if s.known[d.hardware.PCI] != nil {
			continue
		}
		if old := before[d.hardware.PCI]; old != nil && old.isSame(d) {
			d = old
			delete(before, d.hardware.PCI)
		}
		s.known[d.hardware.PCI] = d
		s.order = append(s.order, d)
	}
}

// measure reads a device. It returns false if the device is gone.
func (s *Source) measure(d *device, whole bool, bad *sysfs.Problems) bool {
	dir, err := sysfs.OpenDir(sysfs.WorkingDir, d.folder)
	if err != nil {
		if !sysfs.IsGone(err) {
			bad.Add(fmt.Errorf("open Intel device %s: %w", d.hardware.PCI, err))
		}
		return false
	}
	defer dir.Close()
	before := bad.Len()
	at := s.now()
	p := &pass{device: d, at: at, Attributes: sysfs.Attributes{
		Dir: dir, Of: "Intel device " + d.hardware.PCI, Now: func() time.Time { return at },
		Reader: &s.reader, Problems: bad,
	}}
	p.measure(whole)
	d.failed = bad.Len() > before
	return true
}

// samples returns the samples of the devices that were read, and of their virtual functions.
func (s *Source) samples(devices []*device) []driver.Sample {
	samples := make([]driver.Sample, 0, len(devices))
	for _, d := range devices {
		hardware := d.hardware
		hardware.DeviceNodes = slices.Clone(hardware.DeviceNodes)
		readings := slices.Concat(d.fast, d.slow)
		samples = append(samples, driver.Sample{
			Hardware: hardware, Readings: readings, Unreadable: len(readings) == 0 && d.failed,
		})
	}
	for _, d := range devices {
		for _, address := range d.functions {
			if s.known[address] != nil {
				continue // it has a card and a sample of its own
			}
			samples = append(samples, driver.Sample{
				Hardware: driver.Hardware{
					Kind: driver.KindPartition, PCI: address, Parent: d.hardware.PCI, Vendor: "intel",
					NUMANode: d.hardware.NUMANode,
				},
			})
		}
	}
	return samples
}

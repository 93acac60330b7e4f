// Package intelgpu reads Intel's GPUs (kernel drivers xe and i915), Gaudi accelerators (habanalabs)
// and NPUs (intel_vpu) from sysfs.
//
// Bounds (max…) are for what the kernel sends.
package intelgpu

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
)

// Source reads all GPUs and accelerators of Intel. It is a [driver.Source].
//
// Utilization and power are means since the previous sample. A virtual function has a sample
// without readings, since sysfs has no values for it. A suspended GPU is not woken: its utilization
// is 0, and everything else is absent.
type Source struct {
	now    func() time.Time
	cards  *drmcard.Lister
	known  map[string]*device // by PCI address
	order  []*device          // in the kernel's order, graphics cards first
	reader sysfs.Reader
}

var _ driver.Source = (*Source)(nil)

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) { return New(h.Sysfs), nil }

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{
		driver.Utilization, driver.EngineUtilization, driver.ActiveSeconds, driver.MemoryUsed, driver.MemoryCapacity,
		driver.Power, driver.Energy, driver.Temperature, driver.Clock, driver.NeedsAttention, driver.PowerLimit,
		driver.ClockMax,
		driver.ThrottleActive, driver.FanRotation, driver.Voltage,
	}
}

// New returns a source for a mount point of the host's sysfs. It reads nothing yet.
func New(root string) *Source {
	return &Source{now: time.Now, cards: drmcard.NewLister(root), known: map[string]*device{}}
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
	cards, fresh, err := s.cards.Cards(now)
	bad.Add(err)
	if !fresh {
		return
	}
	before := s.known
	s.known, s.order = make(map[string]*device, len(cards)), nil
	for i := range cards {
		d := ofCard(&cards[i])
		if d == nil || s.known[d.hardware.PCI] != nil {
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

const (
	// npuEvery is the shortest time between two reads of an NPU. Its kernel driver recommends about a
	// second (drivers/accel/ivpu/ivpu_sysfs.c).
	npuEvery = 900 * time.Millisecond
)

// measureNPU reads the busy time of the NPU, which the kernel counts in microseconds, its memory,
// which is the machine's, and its clock.
func (p *pass) measureNPU() {
	d := p.device
	busy, ok := p.Value("npu_busy_time_us")
	if ok {
		p.Add(driver.ActiveSeconds, busy*micro)
	}
	if ok && !driver.IsMalformed(busy) {
		d.busy.Advance(uint64(busy), p.at)
	} else {
		d.busy.Stop()
	}
	if perSecond, at, ok := d.busy.Rate(); ok {
		p.AddAt(at, driver.Utilization, min(1, perSecond*micro))
	}
	p.Gauge("npu_memory_utilization", 1, driver.MemoryUsed)
	p.Gauge("npu_current_frequency_mhz", megahertz, driver.Clock, "npu")
}

// measureStatus reads whether a Gaudi needs attention, from the status that its kernel driver shows
// (Documentation/ABI/testing/sysfs-driver-habanalabs).
func (p *pass) measureStatus() {
	const reason = "recovery_action"
	switch strings.ToLower(p.Text("status")) {
	case "operational", "in reset", "in device creation", "in reset after device release":
		p.Add(driver.NeedsAttention, 1, "none", "ok")
	case "needs reset":
		p.Add(driver.NeedsAttention, 1, "reset", reason)
	case "malfunction", "disabled":
		p.Add(driver.NeedsAttention, 1, "investigate", reason)
	}
}

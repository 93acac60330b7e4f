package intelgpu

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// npuEvery is the shortest time between two reads of an NPU. Its kernel driver recommends about a
	// second (drivers/accel/ivpu/ivpu_sysfs.c).
	npuEvery = 900 * time.Millisecond
	// listEvery is the time after which accelerators are listed again if none was added or removed.
	listEvery = 30 * time.Second
)

// accels are the accelerators in the class accel.
type accels struct {
	root    string // mount point of sysfs
	names   []string
	at      time.Time
	devices []*device
}

// refresh lists the accelerators again. fresh: the list is a new one.
func (a *accels) refresh(now time.Time) (fresh bool, err error) {
	names, err := sysfs.Names(sysfs.WorkingDir, filepath.Join(a.root, "class", "accel"), maxEntries)
	if err != nil && !sysfs.IsGone(err) {
		return false, fmt.Errorf("list the class accel: %w", err)
	}
	age := now.Sub(a.at)
	if slices.Equal(names, a.names) && (len(names) == 0 || age >= 0 && age < listEvery) {
		return false, nil
	}
	a.names, a.at, a.devices = names, now, nil
	var reader sysfs.Reader
	for _, name := range names {
		if _, ok := number(name, "accel"); !ok {
			continue // accel_controlD0
		}
		if d := ofAccel(&reader, a.root, name); d != nil {
			a.devices = append(a.devices, d)
		}
	}
	return true, nil
}

// ofAccel returns the device of an accelerator, nil if this package does not read it.
func ofAccel(reader *sysfs.Reader, root, name string) *device {
	address := sysfs.PCIOf(root, "accel", name)
	folder, ok := sysfs.Follow(sysfs.ClassDevice(root, "accel", name), "device")
	if !ok || address == "" {
		return nil
	}
	d := &device{
		driver: sysfs.Driver(folder), folder: folder, node: filepath.Join("accel", name),
		hardware: driver.Hardware{
			PCI: address, Vendor: "intel", NUMANode: sysfs.NUMANode(folder), DeviceNodes: []string{"/dev/accel/" + name},
		},
	}
	switch d.driver {
	case habanalabs:
		if value, err := reader.Value(sysfs.WorkingDir, filepath.Join(folder, "device_type")); err == nil {
			d.hardware.Model = string(value)
		}
	case intelVPU:
	default:
		return nil
	}
	return d
}

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

package intelgpu

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

// The kernel drivers.
const (
	xe         = "xe"
	i915       = "i915"
	habanalabs = "habanalabs"
	intelVPU   = "intel_vpu"
)

// device is the state of a device between samples.
type device struct {
	hardware driver.Hardware
	driver   string // the kernel driver
	folder   string // of the PCI device
	node     string // its folder below that: drm/card0 or accel/accel0

	gts       []*gt
	functions []string    // PCI addresses of its virtual functions, ordered by their numbers
	monitor   string      // its hwmon/hwmonN; "": none
	energy    string      // file with the energy, once chosen
	power     sysfs.Meter // of the energy
	busy      sysfs.Meter // of an NPU's busy time

	isDiscovered   bool
	failed         bool // something could not be read the last time
	fast, slow     []driver.Reading
	fastAt, slowAt time.Time // zero: never
}

// ofCard returns the device of a graphics card or an accelerator, nil if this package does not read
// it.
func ofCard(c *drmcard.Card) *device {
	if c.PCI == "" || !slices.Contains([]string{xe, i915, habanalabs, intelVPU}, c.Driver) {
		return nil
	}
	d := &device{
		driver: c.Driver, folder: c.Device, node: filepath.Join(c.Class(), c.Name()),
		hardware: driver.Hardware{
			PCI: c.PCI, Vendor: "intel", NUMANode: c.NUMANode, DeviceNodes: c.DeviceNodes(),
		},
	}
	if d.driver == habanalabs {
		var reader sysfs.Reader
		if value, err := reader.Value(sysfs.WorkingDir, filepath.Join(c.Device, "device_type")); err == nil {
			d.hardware.Model = string(value)
		}
	}
	if physical, ok := sysfs.Follow(c.Device, "physfn"); ok {
		d.hardware.Kind, d.hardware.Parent = driver.KindPartition, driver.NormalizePCI(filepath.Base(physical))
	}
	return d
}

// isSame reports whether other, which was just listed, is the same device.
func (d *device) isSame(other *device) bool {
	return d.driver == other.driver && d.folder == other.folder && d.node == other.node
}

// pass is one read of a device, whose folder is open.
type pass struct {
	sysfs.Attributes
	device *device
	at     time.Time
}

// limit adds a limit or capacity, of which 0 is unknown. It reports whether there is one.
func (p *pass) limit(path string, unit float64, q driver.Quantity, labels ...string) bool {
	n, ok := p.Value(path)
	if ok = ok && n != 0; ok {
		p.Add(q, n*unit, labels...)
	}
	return ok
}

// names returns the names of the entries of a folder of the device.
func (p *pass) names(path string) []string {
	names, err := sysfs.Names(p.Dir, path)
	p.Fail(path, err)
	return names
}

// The units of the kernel's files.
const (
	micro     = 1e-6
	milli     = 1e-3
	megahertz = 1e6
)

// measure reads the device.
func (p *pass) measure(whole bool) {
	d := p.device
	if age := p.at.Sub(d.fastAt); d.driver == intelVPU && age >= 0 && age < npuEvery {
		return
	}
	if d.isGPU() && p.Text("power/runtime_status") == "suspended" {
		p.measureSuspended()
		return
	}
	if whole || !d.isDiscovered {
		p.discover()
	}
	switch d.driver {
	case habanalabs:
		p.Gauge("clk_cur_freq_mhz", megahertz, driver.Clock, "graphics")
		if d.monitor != "" {
			p.Gauge(d.monitor+"/power1_input", micro, driver.Power)
		}
	case intelVPU:
		p.measureNPU()
	default:
		p.measureGTs()
		p.measureEnergy()
	}
	d.fast, d.fastAt, p.Readings = p.Readings, p.at, nil
	if !whole {
		return
	}
	p.measureRest()
	d.slow, d.slowAt = p.Readings, p.at
}

func (d *device) isGPU() bool { return d.driver == xe || d.driver == i915 }

// measureSuspended adds a utilization of 0 for a GPU that is suspended.
func (p *pass) measureSuspended() {
	d := p.device
	d.power.Stop()
	engines := map[string]bool{}
	for _, gt := range d.gts {
		gt.idling.Stop()
		if gt.engine != "" && !engines[gt.engine] {
			engines[gt.engine] = true
			p.Add(driver.EngineUtilization, 0, gt.engine)
		}
	}
	if d.hardware.Kind == driver.KindDevice {
		p.Add(driver.Utilization, 0)
	}
	d.fast, d.fastAt, d.slow, d.slowAt = p.Readings, p.at, nil, p.at
}

// discover finds the parts of the device.
func (p *pass) discover() {
	d := p.device
	d.isDiscovered = true
	d.monitor = p.findMonitor()
	if !d.isGPU() {
		return
	}
	var tiles []string
	functions := map[int]string{}
	for _, name := range p.names(".") {
		if _, ok := number(name, "tile"); ok {
			tiles = append(tiles, name)
		}
		if n, ok := number(name, "virtfn"); ok {
			if target, ok := sysfs.Follow(d.folder, name); ok {
				functions[n] = driver.NormalizePCI(filepath.Base(target))
			}
		}
	}
	d.functions = nil
	for n := range len(functions) {
		if functions[n] == "" {
			break // the meaning of the numbers is unknown
		}
		d.functions = append(d.functions, functions[n])
	}
	p.discoverGTs(tiles)
}

// findMonitor returns the hwmon of the device itself. i915 has others for its GTs.
func (p *pass) findMonitor() string {
	for _, name := range p.names("hwmon") {
		monitor := "hwmon/" + name
		if !p.device.isGPU() || p.Text(monitor+"/name") == p.device.driver {
			return monitor
		}
	}
	return ""
}

// number returns N for a name PREFIXN.
func number(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 16)
	return int(n), ok && err == nil
}

// measureEnergy reads the energy and its rate: of the card or, if the card's energy stays 0, of the
// package, which is less. Once chosen, the file stays the same.
func (p *pass) measureEnergy() {
	d := p.device
	if d.monitor == "" {
		return
	}
	files := []string{"/energy1_input", "/energy2_input"}
	if d.energy != "" {
		files = []string{d.energy}
	}
	for _, file := range files {
		microjoules, ok := p.Value(d.monitor + file)
		if !ok || microjoules == 0 {
			continue
		}
		p.Add(driver.Energy, microjoules*micro)
		if driver.IsMalformed(microjoules) {
			break
		}
		d.energy = file
		d.power.Advance(uint64(microjoules), p.at)
		if microwatts, at, ok := d.power.Rate(); ok {
			p.AddAt(at, driver.Power, microwatts*micro)
		}
		return
	}
	d.power.Stop()
}

// measureRest reads values that change slowly, and present values: clocks, throttling,
// temperatures, limits and capacities.
func (p *pass) measureRest() {
	d := p.device
	name := func(label string) string { return sensorName(d, label) }
	p.Sensors(driver.Temperature, sysfs.Temperatures, d.folder, name)
	p.Sensors(driver.Voltage, sysfs.Voltages, d.folder, name)
	switch d.driver {
	case habanalabs:
		p.limit("max_power", milli, driver.PowerLimit, "enforced")
		p.measureStatus()
	case xe, i915:
		p.measureClocks()
		if d.monitor != "" {
			p.measureLimits()
			for _, fan := range []string{"fan1", "fan2", "fan3"} {
				p.Gauge(d.monitor+"/"+fan+"_input", 1, driver.FanRotation, fan)
			}
		}
		p.measureCapacity()
	}
}

// measureLimits reads the power limits (Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and
// sysfs-driver-intel-i915-hwmon). 1 is the card, 2 the package. max is the sustained limit (PL1),
// cap that of bursts (PL2), crit that of peaks (I1), rated_max the default. The enforced limit is
// the first one that a driver has: a B580 has only cap and crit, an A380 with xe only the package's
// max.
func (p *pass) measureLimits() {
	for _, file := range [...]string{"/power1_max", "/power2_max", "/power1_cap", "/power2_cap"} {
		if p.limit(p.device.monitor+file, micro, driver.PowerLimit, "enforced") {
			break
		}
	}
	p.limit(p.device.monitor+"/power1_rated_max", micro, driver.PowerLimit, "default")
	p.limit(p.device.monitor+"/power1_crit", micro, driver.PowerLimit, "critical")
}

// sensorName returns the common name of a GPU's sensor. xe calls the package pkg and the memory
// vram. i915's only sensors, in0 and temp1, have no name and are those of the package.
func sensorName(d *device, label string) string {
	switch {
	case d.driver == xe && label == "pkg", d.driver == i915 && (label == "temp1" || label == "in0"):
		return "gpu"
	case d.driver == xe && label == "vram":
		return "memory"
	}
	return label
}

// measureCapacity reads the size of the GPU's memory: of all its tiles (xe), unless one is unknown,
// or from a file that only Intel's own builds of i915 have.
func (p *pass) measureCapacity() {
	d := p.device
	if d.driver == i915 {
		p.limit(d.node+"/lmem_total_bytes", 1, driver.MemoryCapacity)
		return
	}
	tiles, sum := []string{}, 0.0
	for _, gt := range d.gts {
		if slices.Contains(tiles, gt.tile) {
			continue
		}
		tiles = append(tiles, gt.tile)
		size, ok := p.Value(gt.tile + "/physical_vram_size_bytes")
		if !ok {
			return
		}
		sum += size
	}
	if sum != 0 {
		p.Add(driver.MemoryCapacity, sum)
	}
}

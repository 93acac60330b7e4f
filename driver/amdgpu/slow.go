package amdgpu

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// readSlow reads values that change slowly, or that the kernel requests from the hardware.
func (r *reading) readSlow(divided bool) []driver.Reading {
	s := *r
	s.Readings = nil
	if !divided {
		s.readCapacities()
	}
	s.readTemperatures()
	s.readVoltages()
	s.readClocks()
	s.readLimits()
	s.readLink()
	s.readErrors()
	return s.Readings
}

func (r *reading) readCapacities() {
	if n, ok := r.memoryCapacity(); ok {
		r.Add(driver.MemoryCapacity, n)
	}
	r.Gauge("mem_info_gtt_total", 1, driver.HostMemoryCapacity)
}

// sensorName returns the name of a sensor: the kernel's, except for mem.
func sensorName(label string) string {
	if label == "mem" {
		return "memory"
	}
	return label
}

// readTemperatures reads the sensors of hwmon, and from gpu_metrics those of regulators, those of
// an APU, and all that hwmon lacks. Table formats 2 and 3 have hundredths of a degree.
func (r *reading) readTemperatures() {
	seen := r.Sensors(driver.Temperature, sysfs.Temperatures, r.folder, sensorName)
	hasMonitor := len(seen) > 0
	const degrees, hundredths = 1, 100
	for _, sensor := range [...]struct {
		field, name string
		unit        float64 // numbers per degree
		inMonitor   bool    // hwmon has it, if it has any sensor
	}{
		{"temperature_edge", "edge", degrees, true},
		{"temperature_hotspot", "junction", degrees, true},
		{"temperature_mem", "memory", degrees, true},
		{"temperature_vrgfx", "vrgfx", degrees, false},
		{"temperature_vrsoc", "vrsoc", degrees, false},
		{"temperature_vrmem", "vrmem", degrees, false},
		{"apu_temperature_gfx", "edge", hundredths, true},
		{"apu_temperature_soc", "soc", hundredths, false},
		{"apu_temperature_skin", "skin", hundredths, false},
	} {
		known := seen[sensor.name] || sensor.inMonitor && hasMonitor
		if n, ok := r.metrics.value(sensor.field); ok && n > 0 && !known {
			seen[sensor.name] = true
			r.Add(driver.Temperature, float64(n)/sensor.unit, sensor.name)
		}
	}
}

// readVoltages reads the voltages of hwmon: vddgfx is that of the GPU, vddnb that of an APU's
// northbridge (Documentation/gpu/amdgpu/thermal.rst). It reads those that only gpu_metrics has, in
// millivolts.
func (r *reading) readVoltages() {
	seen := r.Sensors(driver.Voltage, sysfs.Voltages, r.folder, supplyName)
	const milli = 1e-3
	for _, supply := range [...]struct{ field, name string }{
		{"voltage_gfx", "graphics"}, {"voltage_soc", "soc"}, {"voltage_mem", "memory"},
	} {
		if n, ok := r.metrics.value(supply.field); ok && n > 0 && !seen[supply.name] {
			r.Add(driver.Voltage, float64(n)*milli, supply.name)
		}
	}
}

// supplyName returns the name of a supply: that of its clock domain, or else the kernel's.
func supplyName(label string) string {
	switch label {
	case "vddgfx":
		return "graphics"
	case "vddnb":
		return "northbridge"
	}
	return label
}

// readClocks reads clocks from hwmon (freq1: graphics, freq2: memory). Others come from the states
// of power management, or else from gpu_metrics (current_gfxclk to current_dclk1, in MHz), in which
// 0 is a clock that the chip lacks. The highest state of those two is the highest clock.
func (r *reading) readClocks() {
	const none = -1
	for _, clock := range [...]struct {
		monitor, states string
		position        int // index in the table
		domain          string
	}{
		{"freq1_input", "pp_dpm_sclk", none, "graphics"},
		{"freq2_input", "pp_dpm_mclk", none, "memory"},
		{"", "pp_dpm_socclk", 1, "soc"},
		{"", "pp_dpm_fclk", none, "fabric"},
		{"", "pp_dpm_vclk", 3, "video"},
		{"", "pp_dpm_dclk", 4, "decoder"},
		{"", "pp_dpm_vclk1", 5, "video1"},
		{"", "pp_dpm_dclk1", 6, "decoder1"},
	} {
		content, err := r.content(clock.states)
		r.Fail(clock.states, err)
		current, ok, highest := parseStates(content)
		if clock.monitor != "" {
			if highest != 0 {
				r.Add(driver.ClockMax, highest, clock.domain)
			}
			if hertz, measured := r.monitor(clock.monitor); measured {
				current, ok = hertz, true
			}
		}
		if ok {
			r.Add(driver.Clock, current, clock.domain)
		} else if n, ok := r.metrics.at("current_clocks", clock.position); ok && n > 0 {
			r.Add(driver.Clock, float64(n)*1e6, clock.domain)
		}
	}
}

// parseStates returns the clock, in Hz, of the state that is marked with an asterisk, if there is
// one, and the highest clock of all states (0: none), from lines such as "1: 1138Mhz *".
func parseStates(content []byte) (current float64, marked bool, highest float64) {
	for line := range bytes.Lines(content) {
		state, mark := bytes.CutSuffix(bytes.TrimSpace(line), []byte("*"))
		hertz, ok := clockOf(state)
		if highest = max(highest, hertz); mark && !marked {
			current, marked = hertz, ok
		}
	}
	return current, marked, highest
}

// clockOf returns the clock of a state, in Hz.
func clockOf(state []byte) (float64, bool) {
	_, state, _ = bytes.Cut(state, []byte(":"))
	number, ok := bytes.CutSuffix(bytes.TrimSpace(state), []byte("Mhz"))
	if !ok {
		return 0, false
	}
	megahertz, _ := driver.NumberOf(strconv.ParseUint(string(number), 10, 32))
	return megahertz * 1e6, true
}

// readLimits reads the power limits, and the configured speed of the fan.
func (r *reading) readLimits() {
	const micro = 1e-6
	for _, limit := range [...]struct{ file, name string }{
		{"power1_cap", "enforced"}, {"power1_cap_default", "default"}, {"power1_cap_min", "min"}, {"power1_cap_max", "max"},
	} {
		if n, ok := r.monitor(limit.file); ok && (n != 0 || limit.name == "min") { // 0 W: see power
			r.Add(driver.PowerLimit, n*micro, limit.name)
		}
	}
	r.readFan()
}

// readFan reads the rotation of the fan, and its configured speed as a share of the maximum. If
// pwm1 contradicts the rotation, the share is that of the rotation. The rotation is the firmware's
// (CurrFanSpeed of its table). pwm1 is a register, which firmware that controls the fan itself may
// leave unchanged: 0 for an RX 6600 that turns at 1395 rpm, 76 for an RX 7600S that stands still;
// "the 0 RPM may be not correctly detected via register retrieving" (smu_v11_0_get_fan_speed_pwm).
// A fan that stands still has a few rpm (5 of 3500 for a Vega 56, 29 of 3400 for an RX 5700 XT): up
// to a hundredth of the maximum, which no fan can turn at.
func (r *reading) readFan() {
	const still = 0.01
	rpm, turns := r.monitor("fan1_input")
	if turns {
		r.Add(driver.FanRotation, rpm, "fan1")
	}
	set, ok := r.monitor("pwm1")
	most, known := r.monitor("pwm1_max")
	switch fastest, limited := r.monitor("fan1_max"); {
	case !turns || !limited:
	case rpm <= still*fastest:
		set = 0
	case set == 0:
		set, most, known = rpm, fastest, true
	}
	if ok && known && most != 0 {
		r.Add(driver.FanSpeed, set/most)
	}
}

// readLink reads the PCIe link: the narrowest and slowest link between the GPU and the processor,
// since many cards have a bridge of their own.
func (r *reading) readLink() {
	for _, fact := range [...]struct {
		file     string
		quantity driver.Quantity
		parse    func(string) (float64, bool)
	}{
		{"current_link_width", driver.LinkWidth, parseWidth},
		{"max_link_width", driver.LinkWidthMax, parseWidth},
		{"current_link_speed", driver.LinkGeneration, parseGeneration},
		{"max_link_speed", driver.LinkGenerationMax, parseGeneration},
	} {
		least, found := math.Inf(1), false
		folder := r.folder
		for driver.NormalizePCI(filepath.Base(folder)) != "" {
			value, err := r.reader.Value(sysfs.WorkingDir, filepath.Join(folder, fact.file))
			if err != nil {
				r.Fail(fact.file, err)
				break // a link without a file for a bridge ends at the processor
			}
			if n, ok := fact.parse(string(value)); ok {
				least, found = min(least, n), true
			}
			folder = filepath.Dir(folder)
		}
		if found {
			r.Add(fact.quantity, least, "pcie")
		}
	}
}

// parseWidth parses a number of lanes. 0 and 255 mean that there is no link, or that the width is
// unknown.
func parseWidth(text string) (float64, bool) {
	n, ok := driver.NumberOf(strconv.ParseUint(text, 10, 8))
	return n, ok && n != 0 && n != 255
}

// parseGeneration returns the PCIe generation for a speed such as "16.0 GT/s PCIe".
func parseGeneration(text string) (float64, bool) {
	speed, _, ok := strings.Cut(text, " GT/s")
	if !ok {
		return 0, false
	}
	for i, known := range [...]string{"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"} {
		if speed == known {
			return float64(i + 1), true
		}
	}
	return 0, false
}

// readErrors reads the memory errors (RAS) and the errors of the PCIe link.
func (r *reading) readErrors() {
	const suffix = "_err_count"
	names, err := sysfs.Names(r.Dir, "ras")
	r.Fail("ras", err)
	for _, name := range names {
		block, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		content, err := r.content("ras/" + name)
		if err != nil {
			r.Fail("ras/"+name, err)
			continue
		}
		counts := parseErrors(content)
		for _, kind := range [...]struct{ line, kind, code string }{
			{"ue", "ecc_uncorrected", block}, {"ce", "ecc_corrected", block}, {"de", "ras", block + "_deferred"},
		} {
			if n, ok := counts[kind.line]; ok {
				r.Add(driver.Errors, n, kind.kind, kind.code)
			}
		}
	}
	if !r.Gauge("pcie_replay_count", 1, driver.Errors, "pcie_replay") {
		if n, ok := r.metrics.value("pcie_replay_count_acc"); ok {
			r.Add(driver.Errors, float64(n), "pcie_replay")
		}
	}
	r.AER(r.folder)
}

// parseErrors parses a RAS file with lines "ue: 0" (uncorrected), "ce: 0" (corrected) and, for
// memory controllers, "de: 0" (deferred).
func parseErrors(content []byte) map[string]float64 {
	counts := map[string]float64{}
	for line := range bytes.Lines(content) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		counts[string(name)], _ = driver.NumberOf(strconv.ParseUint(string(value), 10, 64))
	}
	return counts
}

// content returns a file of the device with several lines.
func (r *reading) content(file string) ([]byte, error) {
	content, err := sysfs.ReadFile(filepath.Join(r.folder, file), maxMetrics)
	if err == nil && len(content) == 0 {
		return nil, fmt.Errorf("%s: %w", file, sysfs.ErrEmpty)
	}
	return content, err
}

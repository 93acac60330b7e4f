//go:build cgo

package gpu

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
)

// set sets the text at a path. The last element is created if its name starts with a plus.
func (e *element) set(path, text string) *element {
	name, rest, deeper := strings.Cut(path, "/")
	name, create := strings.CutPrefix(name, "+")
	i := slices.IndexFunc(e.Elements, func(child element) bool { return child.XMLName.Local == name })
	if i < 0 || create {
		e.Elements = append(e.Elements, element{XMLName: xml.Name{Local: name}})
		i = len(e.Elements) - 1
	}
	if deeper {
		return e.Elements[i].set(rest, text)
	}
	e.Elements[i].Text = text
	return &e.Elements[i]
}

// query returns the output of `nvidia-smi -q -x`, in nvidia-smi's units.
func (d *fakeMachine) query() string {
	log := element{XMLName: xml.Name{Local: "nvidia_smi_log"}}
	log.set("driver_version", "580.65.06")
	log.set("cuda_version", "13.0")
	for i := range d.Count {
		d.printGPU(log.set("+gpu", ""), &d.GPUs[i])
	}
	text, err := xml.Marshal(log)
	if err != nil {
		panic(err)
	}
	return "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n" + string(text)
}

func (d *fakeMachine) printGPU(e *element, g *nvmltest.GPU) {
	e.set("uuid", g.UUID())
	e.set("product_name", "NVIDIA H100 80GB HBM3")
	e.set("serial", "1320000000000")
	e.set("vbios_version", "96.00.61.00.01")
	e.set("pci/pci_bus_id", fmt.Sprintf("00000000:%02X:00.0", g.PCIBus))
	for path, v := range map[string]float64{
		"temperature/gpu_temp": g.Temperature, "temperature/memory_temp": g.MemoryTemperature,
		"gpu_power_readings/average_power_draw": g.Power,
		"clocks/graphics_clock":                 g.ClockGraphics / 1e6, "clocks/sm_clock": g.ClockSM / 1e6,
		"clocks/mem_clock": g.ClockMemory / 1e6, "clocks/video_clock": g.ClockVideo / 1e6,
		"fb_memory_usage/total": g.MemoryTotal / mebibyte, "fb_memory_usage/used": g.Memory / mebibyte,
		"utilization/gpu_util": g.Utilization * 100, "utilization/memory_util": g.MemoryUtilization * 100,
		"utilization/encoder_util": 40, "utilization/decoder_util": 37.5, // of GPM's two units each in nvmltest
		"utilization/jpeg_util": g.JPEG * 100, "utilization/ofa_util": g.OFA * 100,
		"ecc_errors/volatile/sram_correctable": 2, "ecc_errors/volatile/dram_correctable": g.Corrected - 2,
		"ecc_errors/volatile/sram_uncorrectable_parity": 0, "ecc_errors/volatile/dram_uncorrectable": g.Uncorrected,
		"retired_pages/multiple_single_bit_retirement/retired_count": g.RetiredSBE,
		"retired_pages/double_bit_retirement/retired_count":          g.RetiredDBE,
		"remapped_rows/remapped_row_corr":                            g.RemappedCorrected,
		"remapped_rows/remapped_row_unc":                             g.RemappedUncorrected,
		"pci/replay_counter":                                         g.PCIeReplays,
	} {
		e.set(path, printed(path, v))
	}
	for name, seconds := range map[string]float64{
		"sw_power_cap": g.Throttled.Power, "sync_boost": g.Throttled.SyncBoost, "sw_therm_slowdown": g.Throttled.SoftThermal,
		"hw_therm_slowdown": g.Throttled.HardThermal, "hw_power_brake": g.Throttled.PowerBrake,
	} {
		e.set("clocks_event_reasons_counters/clocks_event_reasons_counters_"+name, fmt.Sprintf("%.0f us", seconds*1e6))
	}
	printCondition(e, g)
	e.set("mig_mode/current_mig", "Disabled")
	if g.MIG != 0 {
		e.set("mig_mode/current_mig", "Enabled")
		e.set("utilization", "").Elements = nil
		e.set("remapped_rows", "N/A").Elements = nil
	}
	for i := range g.Instances {
		m := &g.Instances[i]
		if m.Present == 0 {
			continue
		}
		device := e.set("mig_devices/+mig_device", "")
		device.set("gpu_instance_id", fmt.Sprint(m.GPUInstance))
		device.set("compute_instance_id", fmt.Sprint(m.ComputeInstance))
		device.set("fb_memory_usage/total", fmt.Sprintf("%.0f MiB", m.MemoryTotal/mebibyte))
		device.set("fb_memory_usage/used", fmt.Sprintf("%.0f MiB", m.Memory/mebibyte))
	}
	for _, p := range g.Processes {
		if p.PID != 0 {
			process := e.set("processes/+process_info", "")
			process.set("pid", fmt.Sprint(p.PID))
			process.set("used_memory", fmt.Sprintf("%.0f MiB", p.Memory/mebibyte))
		}
	}
}

// printCondition prints the condition of a GPU, its limits and links.
func printCondition(e *element, g *nvmltest.GPU) {
	c := &g.Condition
	for path, v := range map[string]float64{
		"gpu_power_readings/current_power_limit": c.LimitEnforced, "gpu_power_readings/default_power_limit": c.LimitDefault,
		"gpu_power_readings/min_power_limit": c.LimitMin, "gpu_power_readings/max_power_limit": c.LimitMax,
		"max_clocks/sm_clock": c.ClockSMMax / 1e6, "max_clocks/mem_clock": c.ClockMemoryMax / 1e6,
		"temperature/gpu_temp_tlimit": c.Margin, "fb_memory_usage/reserved": g.MemoryReserved / mebibyte,
		"pci/pci_gpu_link_info/pcie_gen/current_link_gen": c.LinkGeneration,
		"pci/pci_gpu_link_info/pcie_gen/max_link_gen":     c.LinkGenerationMax,
		"ecc_errors/aggregate/sram_correctable":           5,
		"ecc_errors/aggregate/dram_correctable":           c.LifetimeCorrected - 5,
		"ecc_errors/aggregate/sram_uncorrectable_parity":  1, "ecc_errors/aggregate/sram_uncorrectable_secded": 0,
		"ecc_errors/aggregate/dram_uncorrectable": c.LifetimeUncorrected - 1,
	} {
		e.set(path, printed(path, v))
	}
	e.set("performance_state", fmt.Sprintf("P%.0f", c.PerformanceState))
	e.set("fan_speed", fmt.Sprintf("%.0f %%", c.Fan*100))
	e.set("pci/pci_gpu_link_info/link_widths/current_link_width", fmt.Sprintf("%.0fx", c.LinkWidth))
	e.set("pci/pci_gpu_link_info/link_widths/max_link_width", fmt.Sprintf("%.0fx", c.LinkWidthMax))
	for name, bit := range map[string]int{
		"sw_power_cap": 0x4, "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80,
	} {
		e.set("clocks_event_reasons/clocks_event_reason_"+name,
			map[bool]string{true: "Active", false: "Not Active"}[int(c.Throttling)&bit != 0])
	}
	for path := range attention() {
		e.set(path, "No")
	}
	e.set("gpu_recovery_action", "None")
	e.set("fabric/state", "Completed")
	e.set("fabric/status", "Success")
	e.set("fabric/health/summary", "Healthy")
}

// printed formats a number with nvidia-smi's unit at a path.
func printed(path string, v float64) string {
	for part, format := range map[string]string{
		"temperature/": "%.0f C", "power": "%.2f W", "clocks/": "%.0f MHz", "fb_memory_usage/": "%.0f MiB",
		"utilization/": "%.0f %%",
	} {
		if strings.Contains(path, part) {
			return fmt.Sprintf(format, v)
		}
	}
	return fmt.Sprint(v)
}

func (d *fakeMachine) list() string {
	var text strings.Builder
	for i := range d.Count {
		fmt.Fprintf(&text, "GPU %d: NVIDIA H100 80GB HBM3 (UUID: %s)\n", i, d.GPUs[i].UUID())
		for j := range d.GPUs[i].Instances {
			if m := &d.GPUs[i].Instances[j]; m.Present != 0 {
				fmt.Fprintf(&text, "  MIG 1g.10gb     Device  %d: (UUID: %s)\n", j, m.UUID())
			}
		}
	}
	return text.String()
}

func (d *fakeMachine) links() string {
	var text strings.Builder
	for i := range d.Count {
		g := &d.GPUs[i]
		fmt.Fprintf(&text, "GPU %d: NVIDIA H100 80GB HBM3 (UUID: %s)\n", i, g.UUID())
		fmt.Fprintf(&text, "\t Link 0: Data Tx: %.0f KiB\n\t Link 0: Data Rx: %.0f KiB\n", g.NVLinkTransmit/1024,
			g.NVLinkReceive/1024)
	}
	return text.String()
}

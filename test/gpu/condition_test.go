package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// conditionColumns are the numbers of a GPU's condition, limits and links. The names of the
// elements are those of nvidia-smi's output of a B200 (driver 580) and an L40S (driver 595),
// qx-b200.xml and qx-l40s.xml of NVIDIA/k8s-test-infra.
func conditionColumns() []column {
	of := func(q driver.Quantity, label string, paths ...string) column {
		c := column{quantity: q, labels: driver.Labels{label}}
		for _, path := range paths {
			c.paths = append(c.paths, []string{path})
		}
		return c
	}
	limit := func(name string, paths ...string) column {
		c := of(driver.PowerLimit, name, paths...)
		c.slack = 1
		return c
	}
	lifetime := func(kind, code string, paths ...[]string) column {
		return column{paths: paths, quantity: driver.LifetimeErrors, labels: driver.Labels{kind, code}}
	}
	throttling := func(element, reason string) column {
		return of(driver.ThrottleActive, reason, "clocks_event_reasons/clocks_event_reason_"+element,
			"clocks_throttle_reasons/clocks_throttle_reason_"+element)
	}
	margin := of(driver.TemperatureMargin, "", "temperature/gpu_temp_tlimit")
	margin.slack = 3
	reserved := of(driver.MemoryReserved, "", "fb_memory_usage/reserved")
	reserved.slack, reserved.whole = mebibyte, true
	fan := of(driver.FanSpeed, "", "fan_speed")
	fan.slack = 0.05
	const power, link, aggregate = "gpu_power_readings/", "pci/pci_gpu_link_info/", "ecc_errors/aggregate/"
	return []column{
		limit("enforced", power+"current_power_limit", "power_readings/enforced_power_limit"),
		limit("default", power+"default_power_limit", "power_readings/default_power_limit"),
		limit("min", power+"min_power_limit", "power_readings/min_power_limit"),
		limit("max", power+"max_power_limit", "power_readings/max_power_limit"),
		of(driver.PerformanceState, "", "performance_state"),
		of(driver.ClockMax, "sm", "max_clocks/sm_clock"), of(driver.ClockMax, "memory", "max_clocks/mem_clock"),
		of(driver.LinkWidth, "pcie", link+"link_widths/current_link_width"),
		of(driver.LinkWidthMax, "pcie", link+"link_widths/max_link_width"),
		of(driver.LinkGeneration, "pcie", link+"pcie_gen/current_link_gen"),
		of(driver.LinkGenerationMax, "pcie", link+"pcie_gen/max_link_gen"),
		throttling("sw_power_cap", "power"), throttling("sw_thermal_slowdown", "thermal"),
		throttling("hw_thermal_slowdown", "hw_thermal"), throttling("hw_power_brake_slowdown", "hw_power_brake"),
		reserved, margin, fan,
		lifetime("ecc_corrected", "", []string{aggregate + "sram_correctable", aggregate + "dram_correctable"}),
		lifetime("ecc_uncorrected", "", []string{
			aggregate + "sram_uncorrectable", aggregate + "sram_uncorrectable_parity",
			aggregate + "sram_uncorrectable_secded", aggregate + "dram_uncorrectable",
		}),
		lifetime("page_retirement", "sbe", []string{"retired_pages/multiple_single_bit_retirement/retired_count"}),
		lifetime("page_retirement", "dbe", []string{"retired_pages/double_bit_retirement/retired_count"}),
		lifetime("row_remap", "correctable", []string{"remapped_rows/remapped_row_corr"}),
		lifetime("row_remap", "uncorrectable", []string{"remapped_rows/remapped_row_unc"}),
	}
}

// attention returns the elements that are Yes if somebody must act, with the labels of the
// corresponding reading.
func attention() map[string]driver.Labels {
	return map[string]driver.Labels{
		"remapped_rows/remapped_row_pending":           {"reset", "row_remap_pending"},
		"remapped_rows/remapped_row_failure":           {"rma", "row_remap_failed"},
		"retired_pages/pending_retirement":             {"reset", "page_retirement_pending"},
		"ecc_errors/channel_repair_pending":            {"reset", "channel_repair_pending"},
		"ecc_errors/tpc_repair_pending":                {"reset", "tpc_repair_pending"},
		"ecc_errors/aggregate/sram_threshold_exceeded": {"rma", "sram_ecc_threshold"},
		"ecc_errors/unrepairable_memory":               {"rma", "unrepairable_memory"},
	}
}

// attention compares these elements. A reading without an element is left to rest.
func (c *comparison) attention(gpu *element, s driver.Sample) {
	none, printed := true, false
	for path, labels := range attention() {
		v, ok := gpu.number(path)
		if !ok {
			continue
		}
		none, printed = none && v == 0, true
		c.holds(s, driver.NeedsAttention, labels, v == 1, gpu.text(path))
	}
	if text := gpu.text("gpu_recovery_action"); text != "" && text != "N/A" {
		printed = true
		f := finding{agrees, s.Hardware.UUID, "recovery action", "None", text}
		for _, r := range s.Readings {
			if r.Quantity == driver.NeedsAttention && r.Labels[1] == "recovery_action" {
				f.ours, none = r.Labels[0], false
				c.compared[f.device+" "+name(r.Quantity, r.Labels)] = true
			}
		}
		if (f.ours == "None") != (text == "None") {
			f.verdict = differs
		}
		c.add(f)
	}
	if printed {
		c.holds(s, driver.NeedsAttention, driver.Labels{"none", "ok"}, none, fmt.Sprintf("nothing to do: %v", none))
	}
}

// holds compares whether a reading is 1 with whether a condition holds.
func (c *comparison) holds(s driver.Sample, q driver.Quantity, labels driver.Labels, want bool, printed string) {
	r, ok := readingIn(c.After, s.Hardware.UUID, q, labels)
	f := finding{agrees, s.Hardware.UUID, name(q, labels), fmt.Sprint(r.Value), printed}
	if want != (ok && r.Value == 1) {
		f.verdict = differs
	}
	c.compared[f.device+" "+f.what] = true
	c.add(f)
}

// fabric compares the state of a GPU in the fabric.
func (c *comparison) fabric(gpu *element, s driver.Sample) {
	status, health := gpu.text("fabric/status"), gpu.text("fabric/health/summary")
	state, known := map[string]string{
		"Not Started": "not_started", "In Progress": "in_progress", "Completed": "healthy", "N/A": "",
	}[gpu.text("fabric/state")]
	switch {
	case !known:
		return
	case state == "healthy" && status != "Success":
		state = "failed"
	case state == "healthy" && health == "Unhealthy":
		state = "unhealthy"
	case state == "healthy" && strings.HasPrefix(health, "Limited"):
		state = "limited"
	}
	printed := strings.Join([]string{gpu.text("fabric/state"), status, health}, ", ")
	if state != "" {
		c.holds(s, driver.FabricState, driver.Labels{state}, true, printed)
		return
	}
	if i := slices.IndexFunc(s.Readings, func(r driver.Reading) bool { return r.Quantity == driver.FabricState }); i >= 0 {
		c.holds(s, driver.FabricState, s.Readings[i].Labels, false, printed)
	}
}

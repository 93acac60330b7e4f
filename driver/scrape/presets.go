package scrape

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"
)

// presetNames lists the presets.
func presetNames() []string {
	return []string{
		"dcgm-exporter", "dcgm-exporter-4.6", "amd-device-metrics-exporter", "xpumd", "nvidia-gpu-exporter", "node-exporter",
	}
}

// presetText returns a preset as it would be written in a configuration file.
func presetText(name string) (string, bool) {
	switch name {
	case "dcgm-exporter":
		return presetDCGM + presetDCGMMetrics, true
	case "dcgm-exporter-4.6":
		return presetDCGM + presetDCGM46Metrics + presetDCGMMetrics, true
	case "amd-device-metrics-exporter":
		return presetAMD, true
	case "xpumd":
		return presetXPUMD, true
	case "nvidia-gpu-exporter":
		return presetNvidiaGPU, true
	case "node-exporter":
		return presetNode, true
	default:
		return "", false
	}
}

// applyPreset fills in the preset's defaults. The endpoint's own metrics come before the preset's,
// and replace those of the same name.
func (e *Endpoint) applyPreset(name string) error {
	text, ok := presetText(name)
	if !ok {
		return fmt.Errorf("preset: %.64q is none of %s", name, strings.Join(presetNames(), ", "))
	}
	var p endpointFields
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		return fmt.Errorf("preset: %s: %w", name, oneLine(err))
	}
	if p.Driver != nil {
		e.Driver = *p.Driver
	}
	if p.Partition != nil {
		e.Partition = *p.Partition
	}
	if p.Refresh != "" {
		refresh, err := duration("refresh", p.Refresh, 0)
		if err != nil {
			return fmt.Errorf("preset: %s: %w", name, err)
		}
		e.presetRefresh = &refresh
	}
	e.Match = *p.Match
	own := slices.Clone(e.Metrics)
	for _, m := range p.Metrics {
		if !slices.ContainsFunc(own, func(o Metric) bool { return o.Name == m.Name }) {
			e.Metrics = append(e.Metrics, m)
		}
	}
	return nil
}

// NVIDIA/dcgm-exporter. Labels: internal/pkg/rendermetrics/render_metrics.go. Its -c (collect
// interval) is 30000 ms by default. A series of a MIG instance carries the parent's UUID and
// GPU_I_ID, and no UUID of its own.
const presetDCGM = `
driver: gpu.nvidia.com
match: {label: UUID, hardware: uuid}
partition: {label: GPU_I_ID}
refresh: 30s
metrics:
`

// The fields' units: etc/default-counters.csv and etc/dcp-metrics-included.csv of dcgm-exporter,
// dcgm_fields.h of DCGM.
//
// Utilization is DCGM's graphics engine activity, any engine's share of time, 0 to 1; GPU_UTIL
// (203), a percentage of coarser samples, stands in where no profiling runs. Not here, though
// exported: XID_ERRORS, whose value is the last error's number and no count; PROF_PCIE_*_BYTES and
// PROF_NVLINK_*_BYTES, which are rates; CLOCKS_EVENT_REASONS, FABRIC_MANAGER_STATUS and
// GET_GPU_RECOVERY_ACTION, whose values are bits and codes.
const presetDCGMMetrics = `
- {name: DCGM_FI_PROF_GR_ENGINE_ACTIVE, quantity: utilization}
- {name: DCGM_FI_DEV_GPU_UTIL, quantity: utilization, scale: 0.01}
- {name: DCGM_FI_PROF_SM_ACTIVE, quantity: engine_utilization, labels: {engine: sm}}
- {name: DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, quantity: engine_utilization, labels: {engine: tensor}}
- {name: DCGM_FI_PROF_DRAM_ACTIVE, quantity: engine_utilization, labels: {engine: dram}}
- {name: DCGM_FI_DEV_MEM_COPY_UTIL, quantity: engine_utilization, scale: 0.01, labels: {engine: dram}}
- {name: DCGM_FI_DEV_ENC_UTIL, quantity: engine_utilization, scale: 0.01, labels: {engine: encoder}}
- {name: DCGM_FI_DEV_DEC_UTIL, quantity: engine_utilization, scale: 0.01, labels: {engine: decoder}}
- {name: DCGM_FI_PROF_SM_OCCUPANCY, quantity: occupancy}
- {name: DCGM_FI_DEV_FB_USED, quantity: memory_used, scale: 1048576}
- {name: DCGM_FI_DEV_FB_TOTAL, quantity: memory_capacity, scale: 1048576}
- {name: DCGM_FI_DEV_POWER_USAGE, quantity: power}
- {name: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, quantity: energy, scale: 0.001}
- {name: DCGM_FI_DEV_GPU_TEMP, quantity: temperature, labels: {sensor: gpu}}
- {name: DCGM_FI_DEV_MEMORY_TEMP, quantity: temperature, labels: {sensor: memory}}
- {name: DCGM_FI_DEV_SM_CLOCK, quantity: clock, scale: 1e6, labels: {domain: sm}}
- {name: DCGM_FI_DEV_MEM_CLOCK, quantity: clock, scale: 1e6, labels: {domain: memory}}
- {name: DCGM_FI_DEV_PCIE_REPLAY_COUNTER, quantity: errors, labels: {kind: pcie_replay}}
- {name: DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, quantity: errors, labels: {kind: ecc_corrected}}
- {name: DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, quantity: errors, labels: {kind: ecc_uncorrected}}
- {name: DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, quantity: errors, labels: {kind: row_remap, code: correctable}}
- {name: DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, quantity: errors, labels: {kind: row_remap, code: uncorrectable}}
- {name: DCGM_FI_DEV_RETIRED_SBE, quantity: errors, labels: {kind: page_retirement, code: sbe}}
- {name: DCGM_FI_DEV_RETIRED_DBE, quantity: errors, labels: {kind: page_retirement, code: dbe}}
- {name: DCGM_FI_PROF_PIPE_FP64_ACTIVE, quantity: engine_utilization, labels: {engine: fp64}}
- {name: DCGM_FI_PROF_PIPE_FP32_ACTIVE, quantity: engine_utilization, labels: {engine: fp32}}
- {name: DCGM_FI_PROF_PIPE_FP16_ACTIVE, quantity: engine_utilization, labels: {engine: fp16}}
- {name: DCGM_FI_PROF_PIPE_INT_ACTIVE, quantity: engine_utilization, labels: {engine: int}}
- {name: DCGM_FI_DEV_FB_RESERVED, quantity: memory_reserved, scale: 1048576}
- {name: DCGM_FI_DEV_ENFORCED_POWER_LIMIT, quantity: power_limit, labels: {limit: enforced}}
- {name: DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF, quantity: power_limit, labels: {limit: default}}
- {name: DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN, quantity: power_limit, labels: {limit: min}}
- {name: DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX, quantity: power_limit, labels: {limit: max}}
- {name: DCGM_FI_DEV_PSTATE, quantity: performance_state}
- {name: DCGM_FI_DEV_PCIE_LINK_WIDTH, quantity: link_width, labels: {link: pcie}}
- {name: DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH, quantity: link_width_max, labels: {link: pcie}}
- {name: DCGM_FI_DEV_PCIE_LINK_GEN, quantity: link_generation, labels: {link: pcie}}
- {name: DCGM_FI_DEV_PCIE_MAX_LINK_GEN, quantity: link_generation_max, labels: {link: pcie}}
- {name: DCGM_FI_DEV_GPU_TEMP_LIMIT, quantity: temperature_margin}
- {name: DCGM_FI_DEV_FAN_SPEED, quantity: fan_speed, scale: 0.01}
- {name: DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, quantity: errors, labels: {kind: nvlink, code: crc}}
- {name: DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, quantity: errors, labels: {kind: nvlink, code: replay}}
- {name: DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, quantity: errors, labels: {kind: nvlink, code: recovery}}
- {name: DCGM_FI_DEV_ROW_REMAP_PENDING, quantity: needs_attention, labels: {action: reset, reason: row_remap_pending}}
- {name: DCGM_FI_DEV_ROW_REMAP_FAILURE, quantity: needs_attention, labels: {action: rma, reason: row_remap_failed}}
- {name: DCGM_FI_DEV_RETIRED_PENDING, quantity: needs_attention,
   labels: {action: reset, reason: page_retirement_pending}}
- {name: DCGM_FI_DEV_THRESHOLD_SRM, quantity: needs_attention, labels: {action: rma, reason: sram_ecc_threshold}}
- {name: DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, quantity: lifetime_errors, labels: {kind: ecc_corrected}}
- {name: DCGM_FI_DEV_ECC_DBE_AGG_TOTAL, quantity: lifetime_errors, labels: {kind: ecc_uncorrected}}
- {name: DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, quantity: lifetime_errors, labels: {kind: row_remap, code: correctable}}
- {name: DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, quantity: lifetime_errors,
   labels: {kind: row_remap, code: uncorrectable}}
- {name: DCGM_FI_DEV_POWER_VIOLATION, quantity: throttled_seconds, scale: 1e-9, labels: {reason: power}}
- {name: DCGM_FI_DEV_THERMAL_VIOLATION, quantity: throttled_seconds, scale: 1e-9, labels: {reason: thermal}}
- {name: DCGM_FI_DEV_SYNC_BOOST_VIOLATION, quantity: throttled_seconds, scale: 1e-9, labels: {reason: sync_boost}}
`

// DCGM 4.6's names and its fields in base units, ids 1603 and up: dcgm_fields.h of 4.6.1. The names
// before it follow, since dcgm-exporter keeps those that its counters' file has.
//
// Not here: DEV_GPU_UTIL_RATIO, which is field 203 in 4.6, a percentage still, and from 4.7 on
// field 1613, 0 to 1. Add it with the scale of the DCGM that runs, where the graphics engine's
// activity is not exported.
const presetDCGM46Metrics = `
- {name: DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO, quantity: utilization}
- {name: DCGM_FI_PROF_SM_UTIL_RATIO, quantity: engine_utilization, labels: {engine: sm}}
- {name: DCGM_FI_PROF_TENSOR_UTIL_RATIO, quantity: engine_utilization, labels: {engine: tensor}}
- {name: DCGM_FI_PROF_DRAM_UTIL_RATIO, quantity: engine_utilization, labels: {engine: dram}}
- {name: DCGM_FI_PROF_SM_OCCUPANCY_RATIO, quantity: occupancy}
- {name: DCGM_FI_DEV_BOARD_POWER_WATTS, quantity: power}
- {name: DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL, quantity: energy}
- {name: DCGM_FI_DEV_GPU_TEMP_CELSIUS, quantity: temperature, labels: {sensor: gpu}}
- {name: DCGM_FI_DEV_MEMORY_TEMP_CELSIUS, quantity: temperature, labels: {sensor: memory}}
- {name: DCGM_FI_DEV_SM_CLOCK_HERTZ, quantity: clock, labels: {domain: sm}}
- {name: DCGM_FI_DEV_MEMORY_CLOCK_HERTZ, quantity: clock, labels: {domain: memory}}
- {name: DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL, quantity: io_bytes, labels: {link: pcie, direction: receive}}
- {name: DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL, quantity: io_bytes, labels: {link: pcie, direction: transmit}}
- {name: DCGM_FI_DEV_PCIE_REPLAY_TOTAL, quantity: errors, labels: {kind: pcie_replay}}
- {name: DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, quantity: errors, labels: {kind: row_remap, code: correctable}}
- {name: DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, quantity: errors, labels: {kind: row_remap, code: uncorrectable}}
- {name: DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL, quantity: errors, labels: {kind: page_retirement, code: sbe}}
- {name: DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL, quantity: errors, labels: {kind: page_retirement, code: dbe}}
- {name: DCGM_FI_PROF_FP64_UTIL_RATIO, quantity: engine_utilization, labels: {engine: fp64}}
- {name: DCGM_FI_PROF_FP32_UTIL_RATIO, quantity: engine_utilization, labels: {engine: fp32}}
- {name: DCGM_FI_PROF_FP16_UTIL_RATIO, quantity: engine_utilization, labels: {engine: fp16}}
- {name: DCGM_FI_PROF_INT_UTIL_RATIO, quantity: engine_utilization, labels: {engine: int}}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS, quantity: power_limit, labels: {limit: enforced}}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS, quantity: power_limit, labels: {limit: default}}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS, quantity: power_limit, labels: {limit: min}}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS, quantity: power_limit, labels: {limit: max}}
- {name: DCGM_FI_DEV_GPU_PSTATE, quantity: performance_state}
- {name: DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS, quantity: temperature_margin}
- {name: DCGM_FI_DEV_FAN_SPEED_RATIO, quantity: fan_speed}
- {name: DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL, quantity: errors, labels: {kind: nvlink, code: crc}}
- {name: DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL, quantity: errors, labels: {kind: nvlink, code: replay}}
- {name: DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL, quantity: errors, labels: {kind: nvlink, code: recovery}}
- {name: DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, quantity: lifetime_errors,
   labels: {kind: row_remap, code: correctable}}
- {name: DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, quantity: lifetime_errors,
   labels: {kind: row_remap, code: uncorrectable}}
- {name: DCGM_FI_DEV_ROW_REMAP_FAILED, quantity: needs_attention, labels: {action: rma, reason: row_remap_failed}}
- {name: DCGM_FI_DEV_PAGE_RETIRED_PENDING, quantity: needs_attention,
   labels: {action: reset, reason: page_retirement_pending}}
- {name: DCGM_FI_DEV_SRAM_EXCEEDED, quantity: needs_attention, labels: {action: rma, reason: sram_ecc_threshold}}
- {name: DCGM_FI_DEV_MEMORY_UNREPAIRABLE, quantity: needs_attention, labels: {action: rma, reason: unrepairable_memory}}
`

// ROCm/device-metrics-exporter: docs/configuration/metricslist.md for names and units (used_vram
// and total_vram are MiB called MB: an MI300X of 192 GiB shows 196592). Only a whole GPU, in mode
// SPX, is taken: in the other modes the series of partition 0 speak for the whole.
//
// By default no label names the hardware as others know it: add GPU_UUID to its GPUConfig.Labels.
// Unverified against a machine: that gpu_uuid is the UUID that an inventory shows, and that energy
// is µJ in all versions. From some version on, names can have the prefix amd_; then the metrics are
// to be given.
const presetAMD = `
driver: gpu.amd.com
match: {label: gpu_uuid, hardware: uuid}
partition: {label: gpu_compute_partition_type, whole: [spx, none, na]}
metrics:
- {name: gpu_gfx_activity, quantity: utilization, scale: 0.01}
- {name: gpu_umc_activity, quantity: engine_utilization, scale: 0.01, labels: {engine: dram}}
- {name: gpu_mma_activity, quantity: engine_utilization, scale: 0.01, labels: {engine: video}}
- {name: gpu_used_vram, quantity: memory_used, scale: 1048576}
- {name: gpu_total_vram, quantity: memory_capacity, scale: 1048576}
- {name: gpu_package_power, quantity: power}
- {name: gpu_average_package_power, quantity: power}
- {name: gpu_energy_consumed, quantity: energy, scale: 1e-6}
- {name: gpu_edge_temperature, quantity: temperature, labels: {sensor: edge}}
- {name: gpu_junction_temperature, quantity: temperature, labels: {sensor: junction}}
- {name: gpu_memory_temperature, quantity: temperature, labels: {sensor: memory}}
- {name: gpu_ecc_correct_total, quantity: errors, labels: {kind: ecc_corrected}}
- {name: gpu_ecc_uncorrect_total, quantity: errors, labels: {kind: ecc_uncorrected}}
- {name: pcie_replay_count, quantity: errors, labels: {kind: pcie_replay}}
`

// intel/xpumanager's xpumd, OpenTelemetry's names; checked against its end-to-end test's metrics
// (TestMetrics). Series of a subdevice (tile) are parts. Unverified: hw_power's sensor locations
// card and package, and which of several sensors of one location stands for the whole (the first is
// taken, the others counted as duplicates).
const presetXPUMD = `
driver: gpu.intel.com
match: {label: pci_bdf, hardware: pci}
partition: {label: com_intel_subdevice_id}
metrics:
- {name: hw_gpu_utilization_ratio, quantity: utilization, where: {hw_gpu_task: all}}
- {name: hw_gpu_utilization_ratio, quantity: engine_utilization, where: {hw_gpu_task: compute-all},
   labels: {engine: compute}}
- {name: hw_gpu_utilization_ratio, quantity: engine_utilization, where: {hw_gpu_task: render-all},
   labels: {engine: render}}
- {name: hw_gpu_utilization_ratio, quantity: engine_utilization, where: {hw_gpu_task: copy-all}, labels: {engine: copy}}
- {name: hw_gpu_utilization_ratio, quantity: engine_utilization, where: {hw_gpu_task: media-all},
   labels: {engine: video}}
- {name: hw_memory_usage_bytes, quantity: memory_used, where: {hw_memory_location: device}}
- {name: hw_memory_size_bytes, quantity: memory_capacity, where: {hw_memory_location: device}}
- {name: hw_power_watts, quantity: power, where: {hw_sensor_location: card}}
- {name: hw_power_watts, quantity: power, where: {hw_sensor_location: package}}
- {name: hw_energy_joules_total, quantity: energy, where: {hw_sensor_location: card}}
- {name: hw_energy_joules_total, quantity: energy, where: {hw_sensor_location: package}}
- {name: hw_temperature_celsius, quantity: temperature, where: {statistic: max},
   labels_from: {sensor: hw_sensor_location}}
- {name: hw_frequency_hertz, quantity: clock, where: {aggregation: avg}, labels_from: {domain: hw_frequency_domain}}
- {name: hw_gpu_io_bytes_total, quantity: io_bytes, labels: {link: pcie},
   labels_from: {direction: network_io_direction}}
`

// utkuozdemir/nvidia_gpu_exporter: internal/integration/testdata holds expositions of real
// machines. Its uuid has lost the vendor's prefix. It runs nvidia-smi for each scrape unless told
// otherwise, so refresh is left to be found out.
const presetNvidiaGPU = `
driver: gpu.nvidia.com
match: {label: uuid, hardware: uuid, prefix: GPU-}
metrics:
- {name: nvidia_smi_utilization_gpu_ratio, quantity: utilization}
- {name: nvidia_smi_utilization_memory_ratio, quantity: engine_utilization, labels: {engine: dram}}
- {name: nvidia_smi_utilization_encoder_ratio, quantity: engine_utilization, labels: {engine: encoder}}
- {name: nvidia_smi_utilization_decoder_ratio, quantity: engine_utilization, labels: {engine: decoder}}
- {name: nvidia_smi_memory_used_bytes, quantity: memory_used}
- {name: nvidia_smi_memory_total_bytes, quantity: memory_capacity}
- {name: nvidia_smi_power_draw_watts, quantity: power}
- {name: nvidia_smi_energy_joules_total, quantity: energy}
- {name: nvidia_smi_temperature_gpu, quantity: temperature, labels: {sensor: gpu}}
- {name: nvidia_smi_temperature_memory, quantity: temperature, labels: {sensor: memory}}
- {name: nvidia_smi_clocks_current_sm_clock_hz, quantity: clock, labels: {domain: sm}}
- {name: nvidia_smi_clocks_current_memory_clock_hz, quantity: clock, labels: {domain: memory}}
- {name: nvidia_smi_ecc_errors_corrected_volatile_total, quantity: errors, labels: {kind: ecc_corrected}}
- {name: nvidia_smi_ecc_errors_uncorrected_volatile_total, quantity: errors, labels: {kind: ecc_uncorrected}}
`

// prometheus/node_exporter, collectors netclass and netdev. It reads the kernel for each scrape.
const presetNode = `
match: {label: device, hardware: netdev}
refresh: 0s
metrics:
- {name: node_network_receive_bytes_total, quantity: io_bytes, labels: {link: network, direction: receive}}
- {name: node_network_transmit_bytes_total, quantity: io_bytes, labels: {link: network, direction: transmit}}
- {name: node_network_receive_packets_total, quantity: network_packets, labels: {direction: receive}}
- {name: node_network_transmit_packets_total, quantity: network_packets, labels: {direction: transmit}}
- {name: node_network_receive_errs_total, quantity: network_errors, labels: {direction: receive}}
- {name: node_network_transmit_errs_total, quantity: network_errors, labels: {direction: transmit}}
- {name: node_network_receive_drop_total, quantity: network_drops, labels: {direction: receive}}
- {name: node_network_transmit_drop_total, quantity: network_drops, labels: {direction: transmit}}
`

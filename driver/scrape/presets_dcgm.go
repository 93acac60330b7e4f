package scrape

// NVIDIA/dcgm-exporter. Labels: internal/pkg/rendermetrics/render_metrics.go. Its collect interval
// (-c) is 30000 ms by default. A series of a MIG instance has the parent's UUID and GPU_I_ID, and
// no UUID of the instance. By default there are no series of a GPU in MIG mode itself: its values
// are repeated in the series of its instances (issue 353).
const presetDCGM = `
driver: gpu.nvidia.com
match: {label: UUID, hardware: uuid}
partition: {label: GPU_I_ID}
refresh: 30s
metrics:
`

// Units of the fields: etc/default-counters.csv and etc/dcp-metrics-included.csv of dcgm-exporter,
// dcgm_fields.h of DCGM.
//
// FB_TOTAL is not exported by default: the memory capacity is then the sum of used, free and
// reserved memory. Without FB_RESERVED, the sum lacks about 1 % that the driver reserves.
//
// Utilization is the activity of the graphics engine, 0 to 1, or without profiling GPU_UTIL (203),
// a percentage from coarser samples. These exported fields are not used: XID_ERRORS, which is the
// number of the last error and not a count; PROF_PCIE_*_BYTES and PROF_NVLINK_*_BYTES, which are
// rates; CLOCKS_EVENT_REASONS, FABRIC_MANAGER_STATUS and GET_GPU_RECOVERY_ACTION, which are bits
// and codes.
const presetDCGMMetrics = `
- {name: DCGM_FI_PROF_GR_ENGINE_ACTIVE, quantity: utilization, partition: own}
- {name: DCGM_FI_DEV_GPU_UTIL, quantity: utilization, scale: 0.01}
- {name: DCGM_FI_PROF_SM_ACTIVE, quantity: engine_utilization, labels: {engine: sm}, partition: own}
- {name: DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, quantity: engine_utilization, labels: {engine: tensor}, partition: own}
- {name: DCGM_FI_PROF_DRAM_ACTIVE, quantity: engine_utilization, labels: {engine: dram}, partition: own}
- {name: DCGM_FI_DEV_MEM_COPY_UTIL, quantity: engine_utilization, scale: 0.01, labels: {engine: dram}}
- {name: DCGM_FI_DEV_ENC_UTIL, quantity: engine_utilization, scale: 0.01, labels: {engine: encoder}}
- {name: DCGM_FI_DEV_DEC_UTIL, quantity: engine_utilization, scale: 0.01, labels: {engine: decoder}}
- {name: DCGM_FI_PROF_SM_OCCUPANCY, quantity: occupancy, partition: own}
- {name: DCGM_FI_DEV_FB_USED, quantity: memory_used, scale: 1048576, partition: own}
- {name: DCGM_FI_DEV_FB_TOTAL, quantity: memory_capacity, scale: 1048576, partition: own}
- {name: DCGM_FI_DEV_FB_USED, quantity: memory_capacity, scale: 1048576, combine: sum, needs: DCGM_FI_DEV_FB_FREE,
   partition: own}
- {name: DCGM_FI_DEV_FB_FREE, quantity: memory_capacity, scale: 1048576, combine: sum, needs: DCGM_FI_DEV_FB_USED,
   partition: own}
- {name: DCGM_FI_DEV_FB_RESERVED, quantity: memory_capacity, scale: 1048576, combine: sum, needs: DCGM_FI_DEV_FB_FREE,
   partition: own}
- {name: DCGM_FI_DEV_POWER_USAGE, quantity: power, partition: parent}
- {name: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, quantity: energy, scale: 0.001, partition: parent}
- {name: DCGM_FI_DEV_GPU_TEMP, quantity: temperature, labels: {sensor: gpu}, partition: parent}
- {name: DCGM_FI_DEV_MEMORY_TEMP, quantity: temperature, labels: {sensor: memory}, partition: parent}
- {name: DCGM_FI_DEV_SM_CLOCK, quantity: clock, scale: 1e6, labels: {domain: sm}, partition: parent}
- {name: DCGM_FI_DEV_MEM_CLOCK, quantity: clock, scale: 1e6, labels: {domain: memory}, partition: parent}
- {name: DCGM_FI_DEV_PCIE_REPLAY_COUNTER, quantity: errors, labels: {kind: pcie_replay}, partition: parent}
- {name: DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, quantity: errors, labels: {kind: ecc_corrected}, partition: parent}
- {name: DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, quantity: errors, labels: {kind: ecc_uncorrected}, partition: parent}
- {name: DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, quantity: errors,
   labels: {kind: row_remap, code: correctable}, partition: parent}
- {name: DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, quantity: errors,
   labels: {kind: row_remap, code: uncorrectable}, partition: parent}
- {name: DCGM_FI_DEV_RETIRED_SBE, quantity: errors, labels: {kind: page_retirement, code: sbe}, partition: parent}
- {name: DCGM_FI_DEV_RETIRED_DBE, quantity: errors, labels: {kind: page_retirement, code: dbe}, partition: parent}
- {name: DCGM_FI_PROF_PIPE_FP64_ACTIVE, quantity: engine_utilization, labels: {engine: fp64}, partition: own}
- {name: DCGM_FI_PROF_PIPE_FP32_ACTIVE, quantity: engine_utilization, labels: {engine: fp32}, partition: own}
- {name: DCGM_FI_PROF_PIPE_FP16_ACTIVE, quantity: engine_utilization, labels: {engine: fp16}, partition: own}
- {name: DCGM_FI_PROF_PIPE_INT_ACTIVE, quantity: engine_utilization, labels: {engine: int}, partition: own}
- {name: DCGM_FI_DEV_FB_RESERVED, quantity: memory_reserved, scale: 1048576, partition: own}
- {name: DCGM_FI_DEV_ENFORCED_POWER_LIMIT, quantity: power_limit, labels: {limit: enforced}, partition: parent}
- {name: DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF, quantity: power_limit, labels: {limit: default}, partition: parent}
- {name: DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN, quantity: power_limit, labels: {limit: min}, partition: parent}
- {name: DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX, quantity: power_limit, labels: {limit: max}, partition: parent}
- {name: DCGM_FI_DEV_PSTATE, quantity: performance_state, partition: parent}
- {name: DCGM_FI_DEV_PCIE_LINK_WIDTH, quantity: link_width, labels: {link: pcie}, partition: parent}
- {name: DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH, quantity: link_width_max, labels: {link: pcie}, partition: parent}
- {name: DCGM_FI_DEV_PCIE_LINK_GEN, quantity: link_generation, labels: {link: pcie}, partition: parent}
- {name: DCGM_FI_DEV_PCIE_MAX_LINK_GEN, quantity: link_generation_max, labels: {link: pcie}, partition: parent}
- {name: DCGM_FI_DEV_GPU_TEMP_LIMIT, quantity: temperature_margin, partition: parent}
- {name: DCGM_FI_DEV_FAN_SPEED, quantity: fan_speed, scale: 0.01, partition: parent}
- {name: DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, quantity: errors,
   labels: {kind: nvlink, code: crc}, partition: parent}
- {name: DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, quantity: errors,
   labels: {kind: nvlink, code: replay}, partition: parent}
- {name: DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, quantity: errors,
   labels: {kind: nvlink, code: recovery}, partition: parent}
- {name: DCGM_FI_DEV_ROW_REMAP_PENDING, quantity: needs_attention,
   labels: {action: reset, reason: row_remap_pending}, partition: parent}
- {name: DCGM_FI_DEV_ROW_REMAP_FAILURE, quantity: needs_attention,
   labels: {action: rma, reason: row_remap_failed}, partition: parent}
- {name: DCGM_FI_DEV_RETIRED_PENDING, quantity: needs_attention,
   labels: {action: reset, reason: page_retirement_pending}, partition: parent}
- {name: DCGM_FI_DEV_THRESHOLD_SRM, quantity: needs_attention,
   labels: {action: rma, reason: sram_ecc_threshold}, partition: parent}
- {name: DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, quantity: lifetime_errors, labels: {kind: ecc_corrected}, partition: parent}
- {name: DCGM_FI_DEV_ECC_DBE_AGG_TOTAL, quantity: lifetime_errors, labels: {kind: ecc_uncorrected}, partition: parent}
- {name: DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS, quantity: lifetime_errors,
   labels: {kind: row_remap, code: correctable}, partition: parent}
- {name: DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, quantity: lifetime_errors,
   labels: {kind: row_remap, code: uncorrectable}, partition: parent}
- {name: DCGM_FI_DEV_POWER_VIOLATION, quantity: throttled_seconds, scale: 1e-9,
   labels: {reason: power}, partition: parent}
- {name: DCGM_FI_DEV_THERMAL_VIOLATION, quantity: throttled_seconds, scale: 1e-9,
   labels: {reason: thermal}, partition: parent}
- {name: DCGM_FI_DEV_SYNC_BOOST_VIOLATION, quantity: throttled_seconds, scale: 1e-9,
   labels: {reason: sync_boost}, partition: parent}
`

// Names and fields in base units of DCGM 4.6, IDs 1603 and up: dcgm_fields.h of 4.6.1. The older
// names follow in the preset, since dcgm-exporter keeps the names in its counters file.
//
// DEV_GPU_UTIL_RATIO is not used: in 4.6 it is field 203, a percentage, and since 4.7 field 1613, 0
// to 1. Configure it with the scale of the installed DCGM if the activity of the graphics engine is
// not exported.
const presetDCGM46Metrics = `
- {name: DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO, quantity: utilization, partition: own}
- {name: DCGM_FI_PROF_SM_UTIL_RATIO, quantity: engine_utilization, labels: {engine: sm}, partition: own}
- {name: DCGM_FI_PROF_TENSOR_UTIL_RATIO, quantity: engine_utilization, labels: {engine: tensor}, partition: own}
- {name: DCGM_FI_PROF_DRAM_UTIL_RATIO, quantity: engine_utilization, labels: {engine: dram}, partition: own}
- {name: DCGM_FI_PROF_SM_OCCUPANCY_RATIO, quantity: occupancy, partition: own}
- {name: DCGM_FI_DEV_BOARD_POWER_WATTS, quantity: power, partition: parent}
- {name: DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL, quantity: energy, partition: parent}
- {name: DCGM_FI_DEV_GPU_TEMP_CELSIUS, quantity: temperature, labels: {sensor: gpu}, partition: parent}
- {name: DCGM_FI_DEV_MEMORY_TEMP_CELSIUS, quantity: temperature, labels: {sensor: memory}, partition: parent}
- {name: DCGM_FI_DEV_SM_CLOCK_HERTZ, quantity: clock, labels: {domain: sm}, partition: parent}
- {name: DCGM_FI_DEV_MEMORY_CLOCK_HERTZ, quantity: clock, labels: {domain: memory}, partition: parent}
- {name: DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL, quantity: io_bytes, labels: {link: pcie, direction: receive}}
- {name: DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL, quantity: io_bytes, labels: {link: pcie, direction: transmit}}
- {name: DCGM_FI_DEV_PCIE_REPLAY_TOTAL, quantity: errors, labels: {kind: pcie_replay}, partition: parent}
- {name: DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, quantity: errors,
   labels: {kind: row_remap, code: correctable}, partition: parent}
- {name: DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, quantity: errors,
   labels: {kind: row_remap, code: uncorrectable}, partition: parent}
- {name: DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL, quantity: errors,
   labels: {kind: page_retirement, code: sbe}, partition: parent}
- {name: DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL, quantity: errors,
   labels: {kind: page_retirement, code: dbe}, partition: parent}
- {name: DCGM_FI_PROF_FP64_UTIL_RATIO, quantity: engine_utilization, labels: {engine: fp64}, partition: own}
- {name: DCGM_FI_PROF_FP32_UTIL_RATIO, quantity: engine_utilization, labels: {engine: fp32}, partition: own}
- {name: DCGM_FI_PROF_FP16_UTIL_RATIO, quantity: engine_utilization, labels: {engine: fp16}, partition: own}
- {name: DCGM_FI_PROF_INT_UTIL_RATIO, quantity: engine_utilization, labels: {engine: int}, partition: own}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS, quantity: power_limit,
   labels: {limit: enforced}, partition: parent}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS, quantity: power_limit,
   labels: {limit: default}, partition: parent}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS, quantity: power_limit, labels: {limit: min}, partition: parent}
- {name: DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS, quantity: power_limit, labels: {limit: max}, partition: parent}
- {name: DCGM_FI_DEV_GPU_PSTATE, quantity: performance_state, partition: parent}
- {name: DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS, quantity: temperature_margin, partition: parent}
- {name: DCGM_FI_DEV_FAN_SPEED_RATIO, quantity: fan_speed, partition: parent}
- {name: DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL, quantity: errors,
   labels: {kind: nvlink, code: crc}, partition: parent}
- {name: DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL, quantity: errors,
   labels: {kind: nvlink, code: replay}, partition: parent}
- {name: DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL, quantity: errors,
   labels: {kind: nvlink, code: recovery}, partition: parent}
- {name: DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, quantity: lifetime_errors,
   labels: {kind: row_remap, code: correctable}, partition: parent}
- {name: DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, quantity: lifetime_errors,
   labels: {kind: row_remap, code: uncorrectable}, partition: parent}
- {name: DCGM_FI_DEV_ROW_REMAP_FAILED, quantity: needs_attention,
   labels: {action: rma, reason: row_remap_failed}, partition: parent}
- {name: DCGM_FI_DEV_PAGE_RETIRED_PENDING, quantity: needs_attention,
   labels: {action: reset, reason: page_retirement_pending}, partition: parent}
- {name: DCGM_FI_DEV_SRAM_EXCEEDED, quantity: needs_attention,
   labels: {action: rma, reason: sram_ecc_threshold}, partition: parent}
- {name: DCGM_FI_DEV_MEMORY_UNREPAIRABLE, quantity: needs_attention,
   labels: {action: rma, reason: unrepairable_memory}, partition: parent}
`

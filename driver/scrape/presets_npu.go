package scrape

// Intel Gaudi's Prometheus metric exporter (gaudi-metric-exporter), by its documentation
// (docs.habana.ai, Orchestration, Prometheus Metric Exporter). Labels and units are those of the
// functions of HLML: energy is in mJ since the driver was loaded
// (hlml_device_get_total_energy_consumption). The label Serial has the value of the attribute
// serial of gaudi.intel.com (hlml_device_get_serial, pkg/gaudi of
// intel/intel-resource-drivers-for-kubernetes).
const presetGaudi = `
driver: gaudi.intel.com
match: {label: Serial, hardware: serial}
metrics:
- {name: habanalabs_utilization, quantity: utilization, scale: 0.01}
- {name: habanalabs_memory_used_bytes, quantity: memory_used}
- {name: habanalabs_memory_total_bytes, quantity: memory_capacity}
- {name: habanalabs_power_mW, quantity: power, scale: 0.001}
- {name: habanalabs_power_default_limit_mW, quantity: power_limit, scale: 0.001, labels: {limit: default}}
- {name: habanalabs_energy, quantity: energy, scale: 0.001}
- {name: habanalabs_temperature_onchip, quantity: temperature, labels: {sensor: chip}}
- {name: habanalabs_temperature_onboard, quantity: temperature, labels: {sensor: board}}
- {name: habanalabs_clock_soc_mhz, quantity: clock, scale: 1e6, labels: {domain: soc}}
- {name: habanalabs_pci_link_width, quantity: link_width, labels: {link: pcie}}
- {name: habanalabs_pcie_replay_count, quantity: errors, labels: {kind: pcie_replay}}
- {name: habanalabs_pending_rows_state, quantity: needs_attention,
   labels: {action: reset, reason: row_remap_pending}}
- {name: habanalabs_nic_port_status, quantity: link_up, labels: {link: network}, labels_from: {port: port}}
`

// AWS's neuron-monitor with its companion neuron-monitor-prometheus.py (awsdocs-neuron, Neuron
// Monitor User Guide), which reports every 5 s. Devices have the numbers in the device names of
// neuron.aws.com. Metrics of cores have the number of the core on the node; neuron_hardware_info
// has the number of cores per device. The utilization of a device is that of its busiest core.
// Execution errors are not used, since they have no device.
const presetNeuron = `
driver: neuron.aws.com
match: {label: neuron_device_index, hardware: device, prefix: neuron-device-}
refresh: 5s
metrics:
- {name: neuroncore_utilization_ratio, quantity: utilization, combine: max, match: &core
   {label: neuroncore, hardware: device, prefix: neuron-device-,
    per: {metric: neuron_hardware_info, label: neuroncore_per_device_count}}}
- {name: neuroncore_memory_usage_constants, quantity: memory_used, combine: sum, match: *core}
- {name: neuroncore_memory_usage_model_code, quantity: memory_used, combine: sum, match: *core}
- {name: neuroncore_memory_usage_model_shared_scratchpad, quantity: memory_used, combine: sum, match: *core}
- {name: neuroncore_memory_usage_runtime_memory, quantity: memory_used, combine: sum, match: *core}
- {name: neuroncore_memory_usage_tensors, quantity: memory_used, combine: sum, match: *core}
- {name: hardware_ecc_events_total, quantity: errors, where: {event_type: mem_ecc_corrected},
   labels: {kind: ecc_corrected, code: mem}}
- {name: hardware_ecc_events_total, quantity: errors, where: {event_type: sram_ecc_corrected},
   labels: {kind: ecc_corrected, code: sram}}
- {name: hardware_ecc_events_total, quantity: errors, where: {event_type: mem_ecc_uncorrected},
   labels: {kind: ecc_uncorrected, code: mem}}
- {name: hardware_ecc_events_total, quantity: errors, where: {event_type: sram_ecc_uncorrected},
   labels: {kind: ecc_uncorrected, code: sram}}
`

// GKE's TPU device plugin (port 2112; names, labels and help texts as in its test of
// NewPromMetricsServer): accelerator_id is INSTANCE-N, where N is the attribute index of
// tpu.google.com, for a node of less than 10 chips. Units are percent and bytes. Metrics without
// _node are those of containers.
const presetTPU = `
driver: tpu.google.com
match: {label: accelerator_id, hardware: index, pattern: ".*-([0-9]+)"}
metrics:
- {name: duty_cycle_node, quantity: utilization, scale: 0.01}
- {name: duty_cycle, quantity: utilization, scale: 0.01, combine: max}
- {name: tensorcore_utilization_node, quantity: engine_utilization, scale: 0.01, labels: {engine: tensor}}
- {name: tensorcore_utilization, quantity: engine_utilization, scale: 0.01, labels: {engine: tensor}, combine: max}
- {name: memory_bandwidth_utilization_node, quantity: engine_utilization, scale: 0.01, labels: {engine: dram}}
- {name: memory_bandwidth_utilization, quantity: engine_utilization, scale: 0.01, labels: {engine: dram},
   combine: max}
- {name: memory_used_node, quantity: memory_used}
- {name: memory_used, quantity: memory_used, combine: max}
- {name: memory_total_node, quantity: memory_capacity}
- {name: memory_total, quantity: memory_capacity, combine: max}
`

// Huawei's npu-exporter (Ascend/ascend-npu-exporter), by its API reference: memory in MiB (called
// MB), power in W, frequency in MHz; samples have timestamps. The label id is the number of the
// chip, the attribute index of ascend.project-hami.io. The two chips of a card have the same
// pcie_bus_info.
const presetAscend = `
driver: ascend.project-hami.io
match: {label: id, hardware: index}
metrics:
- {name: npu_chip_info_overall_utilization, quantity: utilization, scale: 0.01}
- {name: npu_chip_info_utilization, quantity: utilization, scale: 0.01}
- {name: npu_chip_info_utilization, quantity: engine_utilization, scale: 0.01, labels: {engine: compute}}
- {name: npu_chip_info_cube_utilization, quantity: engine_utilization, scale: 0.01, labels: {engine: tensor}}
- {name: npu_chip_info_hbm_bandwidth_utilization, quantity: engine_utilization, scale: 0.01, labels: {engine: dram}}
- {name: npu_chip_info_hbm_used_memory, quantity: memory_used, scale: 1048576}
- {name: npu_chip_info_hbm_total_memory, quantity: memory_capacity, scale: 1048576}
- {name: npu_chip_info_used_memory, quantity: memory_used, scale: 1048576}
- {name: npu_chip_info_total_memory, quantity: memory_capacity, scale: 1048576}
- {name: npu_chip_info_power, quantity: power}
- {name: npu_chip_info_temperature, quantity: temperature, labels: {sensor: npu}}
- {name: npu_chip_info_hbm_temperature, quantity: temperature, labels: {sensor: memory}}
- {name: npu_chip_info_aicore_current_freq, quantity: clock, scale: 1e6, labels: {domain: aicore}}
- {name: npu_chip_info_hbm_ecc_single_bit_error_cnt, quantity: errors, labels: {kind: ecc_corrected}}
- {name: npu_chip_info_hbm_ecc_double_bit_error_cnt, quantity: errors, labels: {kind: ecc_uncorrected}}
- {name: npu_chip_info_hbm_ecc_total_single_bit_error_cnt, quantity: lifetime_errors, labels: {kind: ecc_corrected}}
- {name: npu_chip_info_hbm_ecc_total_double_bit_error_cnt, quantity: lifetime_errors, labels: {kind: ecc_uncorrected}}
`

// furiosa-ai/furiosa-metrics-exporter, by internal/collector: percent per core, W (RMS), °C, MHz,
// bytes. Each series of a device that several pods share is repeated for each pod. The label device
// is the device name of npu.furiosa.ai.
const presetFuriosa = `
driver: npu.furiosa.ai
match: {label: device, hardware: device}
metrics:
- {name: furiosa_npu_core_utilization, quantity: utilization, scale: 0.01, combine: max}
- {name: furiosa_npu_dram_usage, quantity: memory_used, combine: max}
- {name: furiosa_npu_dram_total, quantity: memory_capacity, combine: max}
- {name: furiosa_npu_hw_power, quantity: power, where: {label: rms}, combine: max}
- {name: furiosa_npu_hw_temperature, quantity: temperature, labels_from: {sensor: label}, combine: max}
- {name: furiosa_npu_core_frequency, quantity: clock, scale: 1e6, labels: {domain: core}, combine: max}
`

// Tenstorrent's tt_telemetry (tenstorrent/tt-metal: tt_telemetry/telemetry/arc/arc_metrics.cpp,
// tt_telemetry/server/prom_formatter.cpp). The labels tray and chip are the attributes trayID and
// asicLocation of tenstorrent.com (tenstorrent/tt-dra-driver). TDP is the present power, in W.
const presetTenstorrent = `
driver: tenstorrent.com
match: {label: tray, with: chip, hardware: index}
metrics:
- {name: TDP, quantity: power}
- {name: ASICTemperature, quantity: temperature, labels: {sensor: asic}}
- {name: BoardTemperature, quantity: temperature, labels: {sensor: board}}
- {name: AIClock, quantity: clock, scale: 1e6, labels: {domain: ai}}
- {name: AXIClock, quantity: clock, scale: 1e6, labels: {domain: axi}}
- {name: ARCClock, quantity: clock, scale: 1e6, labels: {domain: arc}}
`

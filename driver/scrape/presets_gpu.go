package scrape

// ROCm/device-metrics-exporter: docs/configuration/metricslist.md for names and units (used_vram
// and total_vram are MiB called MB: an MI300X of 192 GiB shows 196592). serial_number is a label
// that is always present; sysfs has the PCI address for it. The two GPUs of a board of the MI200
// series have the same serial number, so that they cannot be distinguished.
//
// In modes other than SPX, the exporter has most metrics only for partition 0, with values of the
// whole GPU: partition: parent attributes these to the GPU; of other metrics, only those of
// partitions 1 and up are used. Unverified: energy is in µJ in all versions. Since version 1.4,
// metrics can have the prefix amd_.
const presetAMD = `
driver: gpu.amd.com
match: {label: serial_number, hardware: serial, or: {label: gpu_uuid, hardware: serial}}
partition: {label: gpu_compute_partition_type, whole: [spx, none, na], number: gpu_partition_id}
metrics:
`

const presetAMDMetrics = `
- {name: gpu_gfx_activity, quantity: utilization, scale: 0.01, partition: own}
- {name: gpu_umc_activity, quantity: engine_utilization, scale: 0.01, labels: {engine: dram}, partition: own}
- {name: gpu_mma_activity, quantity: engine_utilization, scale: 0.01, labels: {engine: video}, partition: own}
- {name: gpu_used_vram, quantity: memory_used, scale: 1048576, partition: own}
- {name: gpu_total_vram, quantity: memory_capacity, scale: 1048576, partition: own}
- {name: gpu_package_power, quantity: power, partition: parent}
- {name: gpu_average_package_power, quantity: power, partition: parent}
- {name: gpu_power_usage, quantity: power, partition: parent}
- {name: gpu_energy_consumed, quantity: energy, scale: 1e-6, partition: parent}
- {name: gpu_edge_temperature, quantity: temperature, labels: {sensor: edge}, partition: parent}
- {name: gpu_junction_temperature, quantity: temperature, labels: {sensor: junction}, partition: parent}
- {name: gpu_memory_temperature, quantity: temperature, labels: {sensor: memory}, partition: parent}
- {name: gpu_ecc_correct_total, quantity: errors, labels: {kind: ecc_corrected}, partition: parent}
- {name: gpu_ecc_uncorrect_total, quantity: errors, labels: {kind: ecc_uncorrected}, partition: parent}
- {name: pcie_replay_count, quantity: errors, labels: {kind: pcie_replay}, partition: parent}
`

// xpumd of intel/xpumanager, with names of OpenTelemetry, by the metrics in its end-to-end test
// (TestMetrics). Series of a subdevice (tile) are series of partitions. Unverified: the sensor
// locations card and package of hw_power, and which of several sensors of one location measures the
// whole (the first is used, the others are duplicates).
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

// utkuozdemir/nvidia_gpu_exporter, by expositions of real machines in its
// internal/integration/testdata. Its uuid lacks the prefix GPU-. It runs nvidia-smi for each scrape
// by default, but this is configurable: refresh is estimated.
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

// Project-HAMi/HAMi, by cmd/vGPUmonitor/metrics.go: metrics of GPUs, by UUID. The utilization ratio
// is 0 to 100. Older names (flag --legacy-metrics) follow. Metrics of containers are not used: they
// have names of pods and not processes.
const presetHAMi = `
driver: hami-core-gpu.project-hami.io
match: {label: device_uuid, hardware: uuid}
metrics:
- {name: hami_host_gpu_utilization_ratio, quantity: utilization, scale: 0.01}
- {name: hami_host_gpu_memory_controller_utilization_ratio, quantity: engine_utilization, scale: 0.01,
   labels: {engine: dram}}
- {name: hami_host_gpu_memory_used_bytes, quantity: memory_used}
- {name: hami_host_gpu_memory_total_bytes, quantity: memory_capacity}
- {name: hami_host_gpu_temperature_celsius, quantity: temperature, labels: {sensor: gpu}}
- {name: hami_host_gpu_power_usage_watts, quantity: power}
- {name: hami_host_gpu_ecc_errors_total, quantity: lifetime_errors, where: {error_type: corrected},
   labels: {kind: ecc_corrected}}
- {name: hami_host_gpu_ecc_errors_total, quantity: lifetime_errors, where: {error_type: uncorrected},
   labels: {kind: ecc_uncorrected}}
- {name: HostCoreUtilization, quantity: utilization, scale: 0.01, match: {label: deviceuuid, hardware: uuid}}
- {name: HostGPUMemoryUsage, quantity: memory_used, match: {label: deviceuuid, hardware: uuid}}
`

//go:build cgo

package dcgm

import (
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// recoveryAction is a field whose value is an action and not a flag ("see
// nvmlDeviceGpuRecoveryAction_t for return values").
const recoveryAction = dcgm.DCGM_FI_DEV_GPU_RECOVERY_ACTION

// Other fields whose values are codes: a "bitmask of DCGM_CLOCKS_EVENT_REASON_*", a
// dcgmFabricManagerStatus_t, and NVML's health summary of the fabric, which is used with it.
const (
	throttleReasons = dcgm.DCGM_FI_DEV_CLOCKS_EVENT_REASONS
	fabricStatus    = dcgm.DCGM_FI_DEV_FABRIC_MANAGER_STATUS
	fabricSummary   = dcgm.DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY
)

// coded returns the readings of a field whose value is a code, or false for other fields.
func (d *state) coded(f *field, k known, now time.Time) ([]driver.Reading, bool) {
	at := driver.Earlier(k.at, now)
	switch f.id {
	case recoveryAction:
		return []driver.Reading{nvidia.RecoveryAction(k.number, at)}, true
	case throttleReasons:
		return nvidia.ThrottleActive(uint64(k.number), at), true
	case fabricSummary:
		return nil, true
	case fabricStatus:
		const failure = 4 // DcgmFMStatusFailure; lower numbers are those of NVML's states
		probe, summary := nvidia.FabricProbe(k.number), uint64(0)
		if probe == failure {
			probe = nvidia.FabricCompleted
		}
		if health, ok := d.latest[fabricSummary]; ok && !health.absent {
			summary = uint64(health.number)
		}
		reading, ok := nvidia.FabricState(probe, k.number == failure, summary, at)
		if !ok {
			return nil, true
		}
		return []driver.Reading{reading}, true
	default:
		return nil, false
	}
}

// conditionFields returns the fields of the condition of the hardware. Flags are 1 or 0 ("1=true",
// "1=yes, 0=no"; assumed for "Whether remapping of rows has failed"). DCGM has no field for pending
// repairs.
func conditionFields() []field {
	return []field{
		// "Ratio of cycles the fp64 pipe is active", and so on.
		newField(dcgm.DCGM_FI_PROF_FP64_UTIL_RATIO, whole, pipes, one, driver.EngineUtilization, "fp64"),
		newField(dcgm.DCGM_FI_PROF_FP32_UTIL_RATIO, whole, pipes, one, driver.EngineUtilization, "fp32"),
		newField(dcgm.DCGM_FI_PROF_FP16_UTIL_RATIO, whole, pipes, one, driver.EngineUtilization, "fp16"),
		newField(dcgm.DCGM_FI_PROF_INT_UTIL_RATIO, whole, pipes, one, driver.EngineUtilization, "int"),
		newField(dcgm.DCGM_FI_DEV_FB_RESERVED, whole, slow, mebibytes, driver.MemoryReserved),
		newField(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS, anyGPU, slow, one, driver.PowerLimit, "enforced"),
		newField(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS, anyGPU, slow, one, driver.PowerLimit, "default"),
		newField(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS, anyGPU, slow, one, driver.PowerLimit, "min"),
		newField(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS, anyGPU, slow, one, driver.PowerLimit, "max"),
		newField(dcgm.DCGM_FI_DEV_MAX_SM_CLOCK, anyGPU, slow, megahertz, driver.ClockMax, "sm"),
		newField(dcgm.DCGM_FI_DEV_MAX_MEM_CLOCK, anyGPU, slow, megahertz, driver.ClockMax, "memory"),
		newField(dcgm.DCGM_FI_DEV_GPU_PSTATE, anyGPU, slow, one, driver.PerformanceState),
		newField(throttleReasons, anyGPU, fast, one, driver.ThrottleActive),
		newField(dcgm.DCGM_FI_DEV_PCIE_LINK_WIDTH, anyGPU, slow, one, driver.LinkWidth, "pcie"),
		newField(dcgm.DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH, anyGPU, slow, one, driver.LinkWidthMax, "pcie"),
		newField(dcgm.DCGM_FI_DEV_PCIE_LINK_GEN, anyGPU, slow, one, driver.LinkGeneration, "pcie"),
		newField(dcgm.DCGM_FI_DEV_PCIE_MAX_LINK_GEN, anyGPU, slow, one, driver.LinkGenerationMax, "pcie"),
		newField(fabricStatus, anyGPU, slow, one, driver.FabricState),
		newField(fabricSummary, anyGPU, slow, one, driver.FabricState),
		newField(dcgm.DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS, anyGPU, slow, one, driver.TemperatureMargin),
		newField(dcgm.DCGM_FI_DEV_FAN_SPEED, anyGPU, slow, percent, driver.FanSpeed),
		newField(dcgm.DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL, anyGPU, slow, one, driver.Errors, "nvlink", "crc"),
		newField(dcgm.DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL, anyGPU, slow, one, driver.Errors, "nvlink", "replay"),
		newField(dcgm.DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL, anyGPU, slow, one, driver.Errors, "nvlink", "recovery"),
		newField(dcgm.DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL, anyGPU, slow, one, // of NVLink 5
			driver.Errors, "nvlink", "recovery"),
		newField(dcgm.DCGM_FI_DEV_ROW_REMAP_PENDING, anyGPU, slow, one, driver.NeedsAttention, "reset", "row_remap_pending"),
		newField(dcgm.DCGM_FI_DEV_ROW_REMAP_FAILED, anyGPU, slow, one, driver.NeedsAttention, "rma", "row_remap_failed"),
		newField(dcgm.DCGM_FI_DEV_PAGE_RETIRED_PENDING, anyGPU, slow, one,
			driver.NeedsAttention, "reset", "page_retirement_pending"),
		newField(dcgm.DCGM_FI_DEV_SRAM_EXCEEDED, anyGPU, slow, one, driver.NeedsAttention, "rma", "sram_ecc_threshold"),
		newField(dcgm.DCGM_FI_DEV_MEMORY_UNREPAIRABLE, anyGPU, slow, one,
			driver.NeedsAttention, "rma", "unrepairable_memory"),
		newField(recoveryAction, anyGPU, slow, one, driver.NeedsAttention),
		newField(dcgm.DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, anyGPU, slow, one, driver.LifetimeErrors, "ecc_corrected"),
		newField(dcgm.DCGM_FI_DEV_ECC_DBE_AGG_TOTAL, anyGPU, slow, one, driver.LifetimeErrors, "ecc_uncorrected"),
		newField(dcgm.DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, anyGPU, slow, one,
			driver.LifetimeErrors, "row_remap", "correctable"),
		newField(dcgm.DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, anyGPU, slow, one,
			driver.LifetimeErrors, "row_remap", "uncorrectable"),
		newField(dcgm.DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL, anyGPU, slow, one, driver.LifetimeErrors, "page_retirement", "sbe"),
		newField(dcgm.DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL, anyGPU, slow, one, driver.LifetimeErrors, "page_retirement", "dbe"),
	}
}

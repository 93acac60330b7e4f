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
// repairs. Fields of schedule newer are in the order of their numbers, which is assumed to be that
// of their age.
func conditionFields() []field {
	asks := func(id dcgm.Short, at schedule, action, reason string) field {
		return field{id, anyGPU, at, driver.NeedsAttention, driver.Labels{action, reason}, one, false}
	}
	lifetime := func(id dcgm.Short, kind, code string) field {
		return field{id, anyGPU, slow, driver.LifetimeErrors, driver.Labels{kind, code}, one, false}
	}
	gauge := func(id dcgm.Short, of scope, at schedule, q driver.Quantity, label string, scale float64) field {
		return field{id, of, at, q, driver.Labels{label}, scale, false}
	}
	nvlink := func(id dcgm.Short, at schedule, code string) field {
		return field{id, anyGPU, at, driver.Errors, driver.Labels{"nvlink", code}, one, false}
	}
	const whole = wholeGPU | instance
	return []field{
		// "Ratio of cycles the fp64 pipe is active", and so on.
		gauge(dcgm.DCGM_FI_PROF_FP64_UTIL_RATIO, whole, pipes, driver.EngineUtilization, "fp64", one),
		gauge(dcgm.DCGM_FI_PROF_FP32_UTIL_RATIO, whole, pipes, driver.EngineUtilization, "fp32", one),
		gauge(dcgm.DCGM_FI_PROF_FP16_UTIL_RATIO, whole, pipes, driver.EngineUtilization, "fp16", one),
		gauge(dcgm.DCGM_FI_PROF_INT_UTIL_RATIO, whole, pipes, driver.EngineUtilization, "int", one),
		gauge(dcgm.DCGM_FI_DEV_FB_RESERVED, whole, slow, driver.MemoryReserved, "", mebibytes),
		gauge(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS, anyGPU, slow, driver.PowerLimit, "enforced", one),
		gauge(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS, anyGPU, slow, driver.PowerLimit, "default", one),
		gauge(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS, anyGPU, slow, driver.PowerLimit, "min", one),
		gauge(dcgm.DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS, anyGPU, slow, driver.PowerLimit, "max", one),
		gauge(dcgm.DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ, anyGPU, slow, driver.ClockMax, "sm", one),
		gauge(dcgm.DCGM_FI_DEV_MAX_SM_CLOCK, anyGPU, slow, driver.ClockMax, "sm", megahertz),
		gauge(dcgm.DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ, anyGPU, slow, driver.ClockMax, "memory", one),
		gauge(dcgm.DCGM_FI_DEV_MAX_MEM_CLOCK, anyGPU, slow, driver.ClockMax, "memory", megahertz),
		gauge(dcgm.DCGM_FI_DEV_GPU_PSTATE, anyGPU, slow, driver.PerformanceState, "", one),
		gauge(throttleReasons, anyGPU, fast, driver.ThrottleActive, "", one),
		gauge(dcgm.DCGM_FI_DEV_PCIE_LINK_WIDTH, anyGPU, slow, driver.LinkWidth, "pcie", one),
		gauge(dcgm.DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH, anyGPU, slow, driver.LinkWidthMax, "pcie", one),
		gauge(dcgm.DCGM_FI_DEV_PCIE_LINK_GEN, anyGPU, slow, driver.LinkGeneration, "pcie", one),
		gauge(dcgm.DCGM_FI_DEV_PCIE_MAX_LINK_GEN, anyGPU, slow, driver.LinkGenerationMax, "pcie", one),
		gauge(fabricStatus, anyGPU, slow, driver.FabricState, "", one),
		gauge(fabricSummary, anyGPU, newer, driver.FabricState, "", one),
		gauge(dcgm.DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS, anyGPU, slow, driver.TemperatureMargin, "", one),
		gauge(dcgm.DCGM_FI_DEV_FAN_SPEED_RATIO, anyGPU, slow, driver.FanSpeed, "", one),
		gauge(dcgm.DCGM_FI_DEV_FAN_SPEED, anyGPU, slow, driver.FanSpeed, "", percent),
		nvlink(dcgm.DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL, slow, "crc"),
		nvlink(dcgm.DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL, slow, "replay"),
		nvlink(dcgm.DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL, slow, "recovery"),
		nvlink(dcgm.DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL, newer, "recovery"), // of NVLink 5
		asks(dcgm.DCGM_FI_DEV_ROW_REMAP_PENDING, slow, "reset", "row_remap_pending"),
		asks(dcgm.DCGM_FI_DEV_ROW_REMAP_FAILED, slow, "rma", "row_remap_failed"),
		asks(dcgm.DCGM_FI_DEV_PAGE_RETIRED_PENDING, slow, "reset", "page_retirement_pending"),
		asks(dcgm.DCGM_FI_DEV_SRAM_EXCEEDED, slow, "rma", "sram_ecc_threshold"),
		asks(dcgm.DCGM_FI_DEV_MEMORY_UNREPAIRABLE, newer, "rma", "unrepairable_memory"),
		asks(recoveryAction, newer, "", ""),
		lifetime(dcgm.DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, "ecc_corrected", ""),
		lifetime(dcgm.DCGM_FI_DEV_ECC_DBE_AGG_TOTAL, "ecc_uncorrected", ""),
		lifetime(dcgm.DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, "row_remap", "correctable"),
		lifetime(dcgm.DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, "row_remap", "uncorrectable"),
		lifetime(dcgm.DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL, "page_retirement", "sbe"),
		lifetime(dcgm.DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL, "page_retirement", "dbe"),
	}
}

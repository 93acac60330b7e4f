//go:build cgo

package dcgm

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// field maps a field of DCGM (DCGM_FI_* in dcgm_fields.h) to a quantity.
type field struct {
	id       dcgm.Short
	of       scope
	schedule schedule
	quantity driver.Quantity
	labels   driver.Labels
	scale    float64 // factor from the field's unit to the quantity's
	rate     bool    // it is a rate, whose integral over time is the counter
}

// scope defines which entities have a field.
type scope uint8

const (
	anyGPU   scope = 1 << iota // every GPU, also in MIG mode, since instances do not have it
	wholeGPU                   // only GPUs that are not in MIG mode: otherwise it would count twice
	instance                   // MIG GPU instances

	whole = wholeGPU | instance
)

// schedule defines how often, and under which conditions, the host engine reads a field.
type schedule uint8

const (
	fast      schedule = iota
	slow               // rarely changes
	profiling          // only if Config.Profiling is set
	pipes              // only if Config.Profiling is set; a pipe of the SMs, which some GPUs lack
)

func (r schedule) interval() time.Duration {
	if r == slow {
		return 10 * time.Second
	}
	return time.Second
}

// Scales of fields.
const (
	one         = 1
	percent     = 0.01
	mebibytes   = 1 << 20
	megahertz   = 1e6
	millijoules = 1e-3
	nanoseconds = 1e-9
)

// migMode is DCGM_FI_DEV_MIG_MODE: "Boolean: 0 is disabled, 1 is enabled".
const migMode = dcgm.DCGM_FI_DEV_MIG_MODE

// xidError is DCGM_FI_DEV_XID_ERROR, "The value is the specific XID error": at each event, the
// engine adds a value with its time to the affected GPU, GPU instance or compute instance
// (RecordXidFor… in DcgmCacheManager.cpp).
const xidError = dcgm.DCGM_FI_DEV_XID_ERROR

// fields returns the table of fields. Of several fields with the same reading, the first that has a
// value counts.
//
// Names are those of DCGM 4.6, which renamed many fields of 4.5.
//
// Units by dcgm-exporter's etc/default-counters.csv: percent for DCGM_FI_DEV_*_UTIL, as integers
// even if the name in 4.6 ends with RATIO, MiB for FB_*, MHz for *_CLOCK and °C for temperatures.
// Violations are in ns, like those of NVML from which they are read.
func fields() []field {
	return slices.Concat([]field{
		newField(dcgm.DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO, whole, profiling, one, driver.Utilization),
		newField(dcgm.DCGM_FI_DEV_GPU_UTIL_RATIO, wholeGPU, fast, percent, driver.Utilization),
		newField(dcgm.DCGM_FI_PROF_SM_UTIL_RATIO, whole, profiling, one, driver.EngineUtilization, "sm"),
		newField(dcgm.DCGM_FI_PROF_TENSOR_UTIL_RATIO, whole, profiling, one, driver.EngineUtilization, "tensor"),
		newField(dcgm.DCGM_FI_PROF_DRAM_UTIL_RATIO, whole, profiling, one, driver.EngineUtilization, "dram"),
		newField(dcgm.DCGM_FI_DEV_MEM_COPY_UTIL, wholeGPU, fast, percent, driver.EngineUtilization, "dram"),
		newField(dcgm.DCGM_FI_DEV_ENC_UTIL, wholeGPU, fast, percent, driver.EngineUtilization, "encoder"),
		newField(dcgm.DCGM_FI_DEV_DEC_UTIL, wholeGPU, fast, percent, driver.EngineUtilization, "decoder"),
		newField(dcgm.DCGM_FI_PROF_SM_OCCUPANCY_RATIO, whole, profiling, one, driver.Occupancy),
		newField(dcgm.DCGM_FI_DEV_FB_USED, whole, fast, mebibytes, driver.MemoryUsed),
		newField(dcgm.DCGM_FI_DEV_FB_TOTAL, whole, fast, mebibytes, driver.MemoryCapacity),
		newField(dcgm.DCGM_FI_DEV_BOARD_POWER_WATTS, anyGPU, fast, one, driver.Power),
		newField(dcgm.DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, anyGPU, fast, millijoules, driver.Energy),
		newField(dcgm.DCGM_FI_DEV_GPU_TEMP_CELSIUS, anyGPU, fast, one, driver.Temperature, "gpu"),
		newField(dcgm.DCGM_FI_DEV_MEMORY_TEMP_CELSIUS, anyGPU, fast, one, driver.Temperature, "memory"),
		newField(dcgm.DCGM_FI_DEV_SM_CLOCK, anyGPU, fast, megahertz, driver.Clock, "sm"),
		newField(dcgm.DCGM_FI_DEV_MEM_CLOCK, anyGPU, fast, megahertz, driver.Clock, "memory"),
		newField(dcgm.DCGM_FI_DEV_VIDEO_CLOCK, anyGPU, fast, megahertz, driver.Clock, "video"),
		newRate(dcgm.DCGM_FI_PROF_PCIE_TX_BYTES, "pcie", "transmit"),
		newRate(dcgm.DCGM_FI_PROF_PCIE_RX_BYTES, "pcie", "receive"),
		newRate(dcgm.DCGM_FI_PROF_NVLINK_TX_BYTES, "nvlink", "transmit"),
		newRate(dcgm.DCGM_FI_PROF_NVLINK_RX_BYTES, "nvlink", "receive"),
		newField(dcgm.DCGM_FI_DEV_POWER_VIOLATION, anyGPU, fast, nanoseconds, driver.ThrottledSeconds, "power"),
		newField(dcgm.DCGM_FI_DEV_THERMAL_VIOLATION, anyGPU, fast, nanoseconds, driver.ThrottledSeconds, "thermal"),
		newField(dcgm.DCGM_FI_DEV_SYNC_BOOST_VIOLATION, anyGPU, fast, nanoseconds, driver.ThrottledSeconds, "sync_boost"),
		newField(dcgm.DCGM_FI_DEV_BOARD_LIMIT_VIOLATION, anyGPU, fast, nanoseconds, driver.ThrottledSeconds, "board_limit"),
		newField(dcgm.DCGM_FI_DEV_RELIABILITY_VIOLATION, anyGPU, fast, nanoseconds, driver.ThrottledSeconds, "reliability"),
		newField(dcgm.DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, anyGPU, slow, one, driver.Errors, "ecc_corrected"),
		newField(dcgm.DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, anyGPU, slow, one, driver.Errors, "ecc_uncorrected"),
		newField(dcgm.DCGM_FI_DEV_PCIE_REPLAY_TOTAL, anyGPU, slow, one, driver.Errors, "pcie_replay"),
		newField(dcgm.DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, anyGPU, slow, one, driver.Errors, "row_remap", "correctable"),
		newField(dcgm.DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, anyGPU, slow, one,
			driver.Errors, "row_remap", "uncorrectable"),
		newField(dcgm.DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL, anyGPU, slow, one, driver.Errors, "page_retirement", "sbe"),
		newField(dcgm.DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL, anyGPU, slow, one, driver.Errors, "page_retirement", "dbe"),
	}, conditionFields())
}

// newField returns a field whose value, times the scale, is that of the quantity.
func newField(
	id dcgm.Short, of scope, at schedule, scale float64, quantity driver.Quantity, labels ...string,
) field {
	f := field{id: id, of: of, schedule: at, quantity: quantity, scale: scale}
	copy(f.labels[:], labels)
	return f
}

// newRate returns a profiling field of the bytes per second over a link in a direction.
func newRate(id dcgm.Short, link, direction string) field {
	f := newField(id, anyGPU, profiling, one, driver.IOBytes, link, direction)
	f.rate = true
	return f
}

// fieldsOf returns the fields of a schedule and a scope.
func fieldsOf(of scope, at schedule) (out []dcgm.Short) {
	for _, f := range fields() {
		if f.of&of != 0 && f.schedule == at {
			out = append(out, f.id)
		}
	}
	if at == slow && of&anyGPU != 0 {
		out = append(out, migMode)
	}
	return out
}

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

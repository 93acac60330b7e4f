//go:build cgo

package dcgm

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
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

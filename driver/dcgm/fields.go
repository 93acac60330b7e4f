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
)

// schedule defines how often, and under which conditions, the host engine reads a field.
type schedule uint8

const (
	fast      schedule = iota
	slow               // rarely changes
	profiling          // only if Config.Profiling is set
	units              // only if Config.Profiling is set; one of several units of an engine, whose mean is reported
	pipes              // only if Config.Profiling is set; a pipe of the SMs, which some GPUs lack
	newer              // rarely changes; some versions of DCGM 4 do not know its number
)

func (r schedule) interval() time.Duration {
	if r == slow || r == units || r == newer {
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
// Names are those of DCGM 4.6, which renamed many fields of 4.5. 4.6.1 added fields in base units
// with numbers from 1600 on; the older numbers still exist, and both are requested.
//
// Units by dcgm-exporter's etc/default-counters.csv: percent for DCGM_FI_DEV_*_UTIL, as integers
// even if the name in 4.6 ends with RATIO, MiB for FB_*, MHz for *_CLOCK and °C for temperatures.
// Violations are in ns, like those of NVML from which they are read.
func fields() []field {
	nothing := driver.Labels{}
	return append([]field{
		{dcgm.DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO, wholeGPU | instance, profiling, driver.Utilization, nothing, one, false},
		{dcgm.DCGM_FI_DEV_GPU_UTIL_RATIO, wholeGPU, fast, driver.Utilization, nothing, percent, false},
		{
			dcgm.DCGM_FI_PROF_SM_UTIL_RATIO, wholeGPU | instance, profiling, driver.EngineUtilization,
			driver.Labels{"sm"},
			one,
			false,
		},
		{
			dcgm.DCGM_FI_PROF_TENSOR_UTIL_RATIO, wholeGPU | instance, profiling, driver.EngineUtilization,
			driver.Labels{"tensor"},
			one, false,
		},
		{
			dcgm.DCGM_FI_PROF_DRAM_UTIL_RATIO, wholeGPU | instance, profiling, driver.EngineUtilization,
			driver.Labels{"dram"},
			one, false,
		},
		{dcgm.DCGM_FI_DEV_MEM_COPY_UTIL, wholeGPU, fast, driver.EngineUtilization, driver.Labels{"dram"}, percent, false},
		{dcgm.DCGM_FI_DEV_ENC_UTIL, wholeGPU, fast, driver.EngineUtilization, driver.Labels{"encoder"}, percent, false},
		{dcgm.DCGM_FI_DEV_DEC_UTIL, wholeGPU, fast, driver.EngineUtilization, driver.Labels{"decoder"}, percent, false},
		{dcgm.DCGM_FI_PROF_SM_OCCUPANCY_RATIO, wholeGPU | instance, profiling, driver.Occupancy, nothing, one, false},
		{dcgm.DCGM_FI_DEV_FB_USED, wholeGPU | instance, fast, driver.MemoryUsed, nothing, mebibytes, false},
		{dcgm.DCGM_FI_DEV_FB_TOTAL, wholeGPU | instance, fast, driver.MemoryCapacity, nothing, mebibytes, false},
		{dcgm.DCGM_FI_DEV_BOARD_POWER_WATTS, anyGPU, fast, driver.Power, nothing, one, false},
		// The older field comes first: the newer one may have whole joules.
		{dcgm.DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, anyGPU, fast, driver.Energy, nothing, millijoules, false},
		{dcgm.DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL, anyGPU, fast, driver.Energy, nothing, one, false},
		{dcgm.DCGM_FI_DEV_GPU_TEMP_CELSIUS, anyGPU, fast, driver.Temperature, driver.Labels{"gpu"}, one, false},
		{dcgm.DCGM_FI_DEV_MEMORY_TEMP_CELSIUS, anyGPU, fast, driver.Temperature, driver.Labels{"memory"}, one, false},
		{dcgm.DCGM_FI_DEV_SM_CLOCK_HERTZ, anyGPU, fast, driver.Clock, driver.Labels{"sm"}, one, false},
		{dcgm.DCGM_FI_DEV_SM_CLOCK, anyGPU, fast, driver.Clock, driver.Labels{"sm"}, megahertz, false},
		{dcgm.DCGM_FI_DEV_MEMORY_CLOCK_HERTZ, anyGPU, fast, driver.Clock, driver.Labels{"memory"}, one, false},
		{dcgm.DCGM_FI_DEV_MEM_CLOCK, anyGPU, fast, driver.Clock, driver.Labels{"memory"}, megahertz, false},
		{dcgm.DCGM_FI_DEV_VIDEO_CLOCK_HERTZ, anyGPU, fast, driver.Clock, driver.Labels{"video"}, one, false},
		{dcgm.DCGM_FI_DEV_VIDEO_CLOCK, anyGPU, fast, driver.Clock, driver.Labels{"video"}, megahertz, false},
		{dcgm.DCGM_FI_PROF_PCIE_TX_BYTES, anyGPU, profiling, driver.IOBytes, driver.Labels{"pcie", "transmit"}, one, true},
		{dcgm.DCGM_FI_PROF_PCIE_RX_BYTES, anyGPU, profiling, driver.IOBytes, driver.Labels{"pcie", "receive"}, one, true},
		{
			dcgm.DCGM_FI_PROF_NVLINK_TX_BYTES, anyGPU, profiling, driver.IOBytes,
			driver.Labels{"nvlink", "transmit"},
			one,
			true,
		},
		{dcgm.DCGM_FI_PROF_NVLINK_RX_BYTES, anyGPU, profiling, driver.IOBytes, driver.Labels{"nvlink", "receive"}, one, true},
	}, troubleFields()...)
}

// troubleFields are the fields of throttling and errors.
func troubleFields() []field {
	return append([]field{
		{dcgm.DCGM_FI_DEV_POWER_VIOLATION, anyGPU, fast, driver.ThrottledSeconds, driver.Labels{"power"}, nanoseconds, false},
		{
			dcgm.DCGM_FI_DEV_THERMAL_VIOLATION, anyGPU, fast, driver.ThrottledSeconds,
			driver.Labels{"thermal"},
			nanoseconds,
			false,
		},
		{
			dcgm.DCGM_FI_DEV_SYNC_BOOST_VIOLATION, anyGPU, fast, driver.ThrottledSeconds,
			driver.Labels{"sync_boost"},
			nanoseconds, false,
		},
		{
			dcgm.DCGM_FI_DEV_BOARD_LIMIT_VIOLATION, anyGPU, fast, driver.ThrottledSeconds,
			driver.Labels{"board_limit"},
			nanoseconds, false,
		},
		{
			dcgm.DCGM_FI_DEV_RELIABILITY_VIOLATION, anyGPU, fast, driver.ThrottledSeconds,
			driver.Labels{"reliability"},
			nanoseconds, false,
		},
		{dcgm.DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, anyGPU, slow, driver.Errors, driver.Labels{"ecc_corrected"}, one, false},
		{dcgm.DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, anyGPU, slow, driver.Errors, driver.Labels{"ecc_uncorrected"}, one, false},
		{dcgm.DCGM_FI_DEV_PCIE_REPLAY_TOTAL, anyGPU, slow, driver.Errors, driver.Labels{"pcie_replay"}, one, false},
		{
			dcgm.DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL, anyGPU, slow, driver.Errors,
			driver.Labels{"row_remap", "correctable"},
			one, false,
		},
		{
			dcgm.DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL, anyGPU, slow, driver.Errors,
			driver.Labels{"row_remap", "uncorrectable"},
			one, false,
		},
		{
			dcgm.DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL, anyGPU, slow, driver.Errors,
			driver.Labels{"page_retirement", "sbe"},
			one,
			false,
		},
		{
			dcgm.DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL, anyGPU, slow, driver.Errors,
			driver.Labels{"page_retirement", "dbe"},
			one,
			false,
		},
	}, slices.Concat(conditionFields(), unitFields())...)
}

// unitFields returns the fields of the units of engines, such as "Ratio of cycles each of the NVDEC
// engines are active". It is assumed that a unit which a device lacks has no value.
func unitFields() []field {
	var out []field
	for _, many := range []struct {
		first  dcgm.Short
		count  dcgm.Short
		engine string
	}{
		{dcgm.DCGM_FI_PROF_NVDEC_UTIL_0_RATIO, 8, "decoder"},
		{dcgm.DCGM_FI_PROF_NVJPG_UTIL_0_RATIO, 8, "jpeg"},
		{dcgm.DCGM_FI_PROF_NVOFA_UTIL_0_RATIO, 2, "ofa"},
	} {
		for i := range many.count {
			out = append(out,
				field{many.first + i, wholeGPU | instance, units, driver.EngineUtilization, driver.Labels{many.engine}, one, false})
		}
	}
	return out
}

// baseUnits is the first number of the fields that DCGM 4.6.1 added ("Base unit field IDs
// (1600-1799)").
const baseUnits dcgm.Short = 1600

// vocabularies returns the fields of a schedule and a scope as lists, in the order in which they
// are offered to an engine, which may not know all numbers: all fields, those of DCGM 4.5, and
// those of a later DCGM without the numbers that 4.6 deprecates.
func vocabularies(of scope, at schedule) [][]dcgm.Short {
	var all, old, renewed []dcgm.Short
	table := fields()
	replaced := func(f field) bool {
		for _, other := range table {
			if other.id >= baseUnits && other.quantity == f.quantity && other.labels == f.labels {
				return f.id < baseUnits
			}
		}
		return false
	}
	for _, f := range table {
		if f.of&of == 0 || f.schedule != at {
			continue
		}
		all = append(all, f.id)
		if f.id < baseUnits {
			old = append(old, f.id)
		}
		if !replaced(f) {
			renewed = append(renewed, f.id)
		}
	}
	if at == newer { // an engine that does not know the newest field may know those before it
		var some [][]dcgm.Short
		for n := len(all); n > 0; n-- {
			some = append(some, all[:n])
		}
		return some
	}
	if at == slow && of&anyGPU != 0 {
		all, old, renewed = append(all, migMode), append(old, migMode), append(renewed, migMode)
	}
	if len(all) == len(old) {
		return [][]dcgm.Short{all}
	}
	return [][]dcgm.Short{all, old, renewed}
}

//go:build cgo

package dcgm

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
)

// field is a field of DCGM (DCGM_FI_* in dcgm_fields.h) and what it says.
type field struct {
	id       dcgm.Short
	of       scope
	schedule schedule
	quantity driver.Quantity
	labels   driver.Labels
	scale    float64 // of the field's unit in the quantity's
	rate     bool    // it is a rate, which fills a counter by its integral over time
}

// scope says whose field it is.
type scope uint8

const (
	anyGPU   scope = 1 << iota // every GPU has it, in MIG mode too: no instance has it
	wholeGPU                   // a GPU without MIG has it: with MIG the instances have it, and it would count twice
	instance                   // a MIG GPU instance has it
)

// schedule says how often the host engine is asked to read a field, and under which conditions.
type schedule uint8

const (
	fast      schedule = iota
	slow               // hardly changes
	profiling          // where that is wanted
	units              // likewise: of one unit of several of an engine, of which the mean counts
	pipes              // likewise: of the pipes of the SMs, which not every GPU has
	newer              // hardly changes, and not every DCGM 4 knows its number
)

func (r schedule) interval() time.Duration {
	if r == slow || r == units || r == newer {
		return 10 * time.Second
	}
	return time.Second
}

// The scales. DCGM says percent, MB and MHz of no field but these, and of some not even that: see
// fields.
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

// xidError is DCGM_FI_DEV_XID_ERROR, "The value is the specific XID error": the engine adds a
// value, with its time, at each event, to the GPU, the GPU instance or the compute instance that it
// concerns (RecordXidFor… in DcgmCacheManager.cpp).
const xidError = dcgm.DCGM_FI_DEV_XID_ERROR

// fields is the table of what is read. Where two fill the same, the first that has a value counts.
//
// The names are those of DCGM 4.6, which gave new names to many numbers of 4.5; 4.6.1 gave new
// numbers, from 1600 on, to fields in base units. The old numbers remain for now, so that both are
// asked for.
//
// Units: dcgm-exporter's etc/default-counters.csv has percentages for DCGM_FI_DEV_*_UTIL, which are
// whole numbers also where the name of 4.6 ends in RATIO, MiB for FB_*, MHz for *_CLOCK and °C for
// temperatures. Violations are in ns, as NVML's, which they are read from.
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
		// The old number first: millijoules are finer than joules, should these be whole.
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

// unitFields are the fields of the units of engines, "Ratio of cycles each of the NVDEC engines are
// active" and so on. A unit that a device does not have is taken to have no value (a guess).
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

// vocabularies returns the numbers of the fields of a schedule that entities of a kind have, as
// lists that an engine may know: all of them, those of 4.5, and those of a later DCGM without the
// numbers that 4.6 calls deprecated.
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
	if at == newer { // an engine that does not know the newest may know those before
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

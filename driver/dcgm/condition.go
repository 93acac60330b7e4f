//go:build cgo

package dcgm

import (
	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
)

// recoveryAction is DCGM_FI_DEV_GPU_RECOVERY_ACTION, whose value is an action, not a flag ("see
// nvmlDeviceGpuRecoveryAction_t for return values").
const recoveryAction = dcgm.DCGM_FI_DEV_GPU_RECOVERY_ACTION

// conditionFields are about the condition of the hardware, whoever uses it. Flags are 1 or 0
// ("1=true", "1=yes, 0=no"; "Whether remapping of rows has failed" is taken to be the same). DCGM
// has no field of pending repairs. Those of schedule newer are in the order of their numbers, taken
// to be that of their age.
func conditionFields() []field {
	asks := func(id dcgm.Short, at schedule, action, reason string) field {
		return field{id, anyGPU, at, driver.NeedsAttention, driver.Labels{action, reason}, one, false}
	}
	lifetime := func(id dcgm.Short, kind, code string) field {
		return field{id, anyGPU, slow, driver.LifetimeErrors, driver.Labels{kind, code}, one, false}
	}
	return []field{
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

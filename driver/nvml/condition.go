//go:build cgo

package nvml

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// rareInterval is how often settings, and conditions that last until a reset, are read.
const rareInterval = time.Minute

// conditionQueries are about the condition of the hardware, whoever uses it.
func conditionQueries() []query {
	return []query{
		{"nvmlDeviceGetSramEccErrorStatus", everyGPU, rareInterval, readSRAM},
		{"nvmlDeviceGetRepairStatus", everyGPU, rareInterval, readRepairs},
		{"nvmlDeviceGetUnrepairableMemoryFlag_v1", everyGPU, rareInterval, readUnrepairableMemory},
	}
}

// conditionFields are about the same, and are read with the slow fields. What they mean is said by
// nvml.h, and by nvidia-smi -q of a B200 (testdata/hardware/qx-b200.xml of NVIDIA/k8s-test-infra),
// which prints each of them by that name.
func conditionFields(branch int) []field {
	asks := func(id uint32, name, action, reason string) field {
		return field{id, name, 0, driver.NeedsAttention, driver.Labels{action, reason}, one}
	}
	lifetime := func(id uint32, name, kind, code string) field {
		return field{id, name, 0, driver.LifetimeErrors, driver.Labels{kind, code}, one}
	}
	fields := []field{
		asks(nvml.FI_DEV_REMAPPED_PENDING, "REMAPPED_PENDING", "reset", "row_remap_pending"),
		asks(nvml.FI_DEV_REMAPPED_FAILURE, "REMAPPED_FAILURE", "rma", "row_remap_failed"),
		asks(nvml.FI_DEV_RETIRED_PENDING, "RETIRED_PENDING", "reset", "page_retirement_pending"),
		lifetime(nvml.FI_DEV_ECC_SBE_AGG_TOTAL, "ECC_SBE_AGG_TOTAL", "ecc_corrected", ""),
		lifetime(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, "ECC_DBE_AGG_TOTAL", "ecc_uncorrected", ""),
		lifetime(nvml.FI_DEV_REMAPPED_COR, "REMAPPED_COR", "row_remap", "correctable"),
		lifetime(nvml.FI_DEV_REMAPPED_UNC, "REMAPPED_UNC", "row_remap", "uncorrectable"),
		lifetime(nvml.FI_DEV_RETIRED_SBE, "RETIRED_SBE", "page_retirement", "sbe"),
		lifetime(nvml.FI_DEV_RETIRED_DBE, "RETIRED_DBE", "page_retirement", "dbe"),
	}
	if branch >= 570 { // the header of CUDA 12.8 is the first that has it
		fields = append(fields, asks(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, recoveryAction, "", ""))
	}
	return fields
}

// recoveryAction is the name of the field whose value is an action, not a flag.
const recoveryAction = "GET_GPU_RECOVERY_ACTION"

// asks adds whether there is a condition for which somebody must act.
func (r *reader) asks(action, reason string, flag uint32) {
	value := 0.
	if flag != 0 {
		value = 1
	}
	r.add(driver.NeedsAttention, value, action, reason)
}

// readSRAM: nvmlEccSramErrorStatus_v1_t, bThresholdExceeded: "if the error threshold of field diag
// is exceeded", which NVIDIA's field diagnostics fail from then on.
func readSRAM(r *reader, device nvml.Device) nvml.Return {
	status, answer := device.GetSramEccErrorStatus()
	if answer == nvml.SUCCESS {
		r.asks("rma", "sram_ecc_threshold", status.BThresholdExceeded)
	}
	return answer
}

// readRepairs: nvmlRepairStatus_v1_t; a repair of a memory channel, or of a TPC, that is pending
// takes place at the next reset.
func readRepairs(r *reader, device nvml.Device) nvml.Return {
	status, answer := device.GetRepairStatus()
	if answer == nvml.SUCCESS {
		r.asks("reset", "channel_repair_pending", status.BChannelRepairPending)
		r.asks("reset", "tpc_repair_pending", status.BTpcRepairPending)
	}
	return answer
}

// readUnrepairableMemory: nvmlUnrepairableMemoryStatus_v1_t.
func readUnrepairableMemory(r *reader, device nvml.Device) nvml.Return {
	status, answer := device.GetUnrepairableMemoryFlag_v1()
	if answer == nvml.SUCCESS {
		r.asks("rma", "unrepairable_memory", status.BUnrepairableMemory)
	}
	return answer
}

//go:build cgo

package nvml

import (
	"errors"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// rareInterval is the interval at which settings, and conditions that last until a reset, are read.
const rareInterval = time.Minute

// conditionQueries returns the queries of the condition and settings of the hardware.
func conditionQueries() []query {
	const watts = 1e-3
	return []query{
		{"nvmlDeviceGetSramEccErrorStatus", everyGPU, rareInterval, values(nvml.Device.GetSramEccErrorStatus, addSRAM)},
		{"nvmlDeviceGetRepairStatus", everyGPU, rareInterval, values(nvml.Device.GetRepairStatus, addRepairs)},
		{
			"nvmlDeviceGetUnrepairableMemoryFlag_v1", everyGPU, rareInterval,
			values(nvml.Device.GetUnrepairableMemoryFlag_v1, addUnrepairableMemory),
		},
		{
			"nvmlDeviceGetEnforcedPowerLimit", everyGPU, slowInterval,
			number(nvml.Device.GetEnforcedPowerLimit, watts, driver.PowerLimit, "enforced"),
		},
		{
			"nvmlDeviceGetPowerManagementDefaultLimit", everyGPU, rareInterval,
			number(nvml.Device.GetPowerManagementDefaultLimit, watts, driver.PowerLimit, "default"),
		},
		{"nvmlDeviceGetPowerManagementLimitConstraints", everyGPU, rareInterval, readPowerLimits},
		{"nvmlDeviceGetMaxClockInfo", everyGPU, rareInterval, readMaxClocks},
		{
			"nvmlDeviceGetPerformanceState", everyGPU, slowInterval,
			values(nvml.Device.GetPerformanceState, addPerformanceState),
		},
		{
			"nvmlDeviceGetCurrentClocksEventReasons", everyGPU, 0,
			values(nvml.Device.GetCurrentClocksEventReasons, addThrottling),
		},
		{
			"nvmlDeviceGetCurrPcieLinkWidth", everyGPU, slowInterval,
			number(nvml.Device.GetCurrPcieLinkWidth, one, driver.LinkWidth, "pcie"),
		},
		{ // the maximum of the device "and system": 8 lanes for a GPU in a slot of 8 lanes
			"nvmlDeviceGetMaxPcieLinkWidth", everyGPU, rareInterval,
			number(nvml.Device.GetMaxPcieLinkWidth, one, driver.LinkWidthMax, "pcie"),
		},
		{
			"nvmlDeviceGetCurrPcieLinkGeneration", everyGPU, slowInterval,
			number(nvml.Device.GetCurrPcieLinkGeneration, one, driver.LinkGeneration, "pcie"),
		},
		{
			"nvmlDeviceGetMaxPcieLinkGeneration", everyGPU, rareInterval,
			number(nvml.Device.GetMaxPcieLinkGeneration, one, driver.LinkGenerationMax, "pcie"),
		},
		{"aer_dev_*", everyGPU, slowInterval, readAER},
		{"nvmlDeviceGetGpuFabricInfoV", everyGPU, slowInterval, readFabric},
		{"nvmlDeviceGetMarginTemperature", everyGPU, slowInterval, values(nvml.Device.GetMarginTemperature, addMargin)},
		// The speed that the fan is set to, in percent of the maximum noise tolerance, "may exceed 100%
		// in certain cases".
		{"nvmlDeviceGetFanSpeed", everyGPU, slowInterval, number(nvml.Device.GetFanSpeed, percent, driver.FanSpeed)},
	}
}

// conditionFields returns the fields of the condition of the hardware, which are read with the slow
// fields. Their meaning is that in nvml.h and in the output of nvidia-smi -q of a B200
// (testdata/hardware/qx-b200.xml of NVIDIA/k8s-test-infra).
func conditionFields() []field {
	return []field{
		newField(
			nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", driver.Errors, "nvlink", "crc",
		),
		newField(
			nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "NVLINK_REPLAY_ERROR_COUNT_TOTAL", driver.Errors, "nvlink", "replay",
		),
		newField(
			nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", driver.Errors,
			"nvlink", "recovery",
		),
		newField(nvml.FI_DEV_REMAPPED_PENDING, "REMAPPED_PENDING", driver.NeedsAttention, "reset", "row_remap_pending"),
		newField(nvml.FI_DEV_REMAPPED_FAILURE, "REMAPPED_FAILURE", driver.NeedsAttention, "rma", "row_remap_failed"),
		newField(nvml.FI_DEV_RETIRED_PENDING, "RETIRED_PENDING", driver.NeedsAttention, "reset", "page_retirement_pending"),
		newField(nvml.FI_DEV_ECC_SBE_AGG_TOTAL, "ECC_SBE_AGG_TOTAL", driver.LifetimeErrors, "ecc_corrected"),
		newField(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, "ECC_DBE_AGG_TOTAL", driver.LifetimeErrors, "ecc_uncorrected"),
		newField(nvml.FI_DEV_REMAPPED_COR, "REMAPPED_COR", driver.LifetimeErrors, "row_remap", "correctable"),
		newField(nvml.FI_DEV_REMAPPED_UNC, "REMAPPED_UNC", driver.LifetimeErrors, "row_remap", "uncorrectable"),
		newField(nvml.FI_DEV_RETIRED_SBE, "RETIRED_SBE", driver.LifetimeErrors, "page_retirement", "sbe"),
		newField(nvml.FI_DEV_RETIRED_DBE, "RETIRED_DBE", driver.LifetimeErrors, "page_retirement", "dbe"),
		// NVLink 5 counts only recoveries; that allLinks is their sum is assumed.
		links(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, "NVLINK_COUNT_LINK_RECOVERY_EVENTS", one,
			driver.Errors, "recovery"),
		newField(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, recoveryAction, driver.NeedsAttention),
	}
}

// recoveryAction is the name of the field whose value is an action and not a flag.
const recoveryAction = "GET_GPU_RECOVERY_ACTION"

// asks adds a reading of NeedsAttention for a flag of NVML.
func (r *reader) asks(action, reason string, flag uint32) {
	r.add(driver.NeedsAttention, driver.Flag(flag != 0), action, reason)
}

// addSRAM: nvmlEccSramErrorStatus_v1_t, bThresholdExceeded: "if the error threshold of field diag
// is exceeded". NVIDIA's field diagnostics then fail.
func addSRAM(r *reader, status nvml.EccSramErrorStatus) {
	r.asks("rma", "sram_ecc_threshold", status.BThresholdExceeded)
}

// addRepairs: nvmlRepairStatus_v1_t. A pending repair of a memory channel or of a TPC is made at
// the next reset.
func addRepairs(r *reader, status nvml.RepairStatus) {
	r.asks("reset", "channel_repair_pending", status.BChannelRepairPending)
	r.asks("reset", "tpc_repair_pending", status.BTpcRepairPending)
}

// addUnrepairableMemory: nvmlUnrepairableMemoryStatus_v1_t.
func addUnrepairableMemory(r *reader, status nvml.UnrepairableMemoryStatus_v1) {
	r.asks("rma", "unrepairable_memory", status.BUnrepairableMemory)
}

// readPowerLimits: the lowest and highest limits that can be set, in milliwatts.
func readPowerLimits(r *reader, device nvml.Device) nvml.Return {
	lowest, highest, answer := device.GetPowerManagementLimitConstraints()
	if answer == nvml.SUCCESS {
		r.add(driver.PowerLimit, float64(lowest)/1000, "min")
		r.add(driver.PowerLimit, float64(highest)/1000, "max")
	}
	return answer
}

// addPerformanceState: nvmlPstates_t, 0 to 15, or NVML_PSTATE_UNKNOWN.
func addPerformanceState(r *reader, state nvml.Pstates) {
	if state != nvml.PSTATE_UNKNOWN {
		r.add(driver.PerformanceState, float64(state))
	}
}

// addThrottling: a bitmask of reasons (nvmlClocksEventReasons).
func addThrottling(r *reader, mask uint64) {
	r.readings = append(r.readings, nvidia.ThrottleActive(mask, r.gpu.now())...)
}

// readAER reads the kernel's counters of PCIe errors.
func readAER(r *reader, _ nvml.Device) nvml.Return {
	correctable, uncorrectable, ok := sysfs.AER(sysfs.PCIDevice(r.gpu.sysfs, r.gpu.hardware.PCI))
	if r.gpu.hardware.PCI == "" || !ok {
		return nvml.ERROR_NOT_SUPPORTED
	}
	r.add(driver.Errors, correctable, "pcie_aer", "correctable")
	r.add(driver.Errors, uncorrectable, "pcie_aer", "uncorrectable")
	return nvml.SUCCESS
}

// readFabric: nvmlGpuFabricInfo_v3_t.
func readFabric(r *reader, device nvml.Device) nvml.Return {
	info, answer := device.GetGpuFabricInfoV().V3()
	if answer == nvml.SUCCESS {
		reading, ok := nvidia.FabricState(nvidia.FabricProbe(info.State), info.Status != uint32(nvml.SUCCESS),
			uint64(info.HealthSummary), r.gpu.now())
		if ok {
			r.append(reading)
		}
	}
	return answer
}

// addMargin: "distance to nearest slowdown threshold", which nvidia-smi -q prints as GPU T.Limit
// Temp in degrees Celsius.
func addMargin(r *reader, margin nvml.MarginTemperature) {
	r.add(driver.TemperatureMargin, float64(margin.MarginTemperature))
}

// callError is a call that failed.
type callError struct {
	call   string // name of the function in nvml.h
	answer nvml.Return
	text   string // NVML's description of answer
}

func (e callError) Error() string { return e.call + ": " + e.text }

// permissionHint describes the permission to read a whole GPU in MIG mode. NVIDIA's container
// toolkit grants it to containers with NVIDIA_MIG_MONITOR_DEVICES=all, and does not start such a
// container without CAP_SYS_ADMIN.
const permissionHint = ": the whole GPU can't be read in MIG mode; set nvidia.migMonitor=true in the chart, or" +
	" give the container NVIDIA_MIG_MONITOR_DEVICES=all and CAP_SYS_ADMIN"

// failure returns the error of a call, nil if it succeeded.
func failure(call string, answer nvml.Return) error {
	if answer == nvml.SUCCESS {
		return nil
	}
	text := answer.Error()
	if answer == nvml.ERROR_NO_PERMISSION {
		text += permissionHint
	}
	return driver.WithReason(reasonOf(answer), callError{call, answer, text})
}

func reasonOf(answer nvml.Return) driver.Reason {
	switch answer {
	case nvml.ERROR_GPU_IS_LOST:
		return driver.ReasonGPULost
	case nvml.ERROR_NO_PERMISSION:
		return driver.ReasonForbidden
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return driver.ReasonDriverNotLoaded
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return driver.ReasonDriverMismatch
	case nvml.ERROR_TIMEOUT:
		return driver.ReasonTimeout
	default:
		return driver.ReasonOther
	}
}

func answerOf(err error) nvml.Return {
	if e, ok := errors.AsType[callError](err); ok {
		return e.answer
	}
	return nvml.SUCCESS
}

// noHardware reports whether NVML could not be initialised because there is no library, no driver
// or no GPU.
func noHardware(err error) bool {
	return slices.Contains([]nvml.Return{
		nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_GPU_NOT_FOUND,
	}, answerOf(err))
}

// driverIsGone reports whether NVML must be initialised again after an error.
func driverIsGone(err error) bool {
	return slices.Contains([]nvml.Return{
		nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH,
	}, answerOf(err))
}

// kindOf classifies the return value of a function.
func kindOf(answer nvml.Return) answerKind {
	switch answer {
	case nvml.SUCCESS:
		return answered
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH,
		nvml.ERROR_DEPRECATED:
		return unsupported
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_DATA, nvml.ERROR_NOT_READY:
		return nothingNow
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return lost
	default:
		return unreadable
	}
}

type answerKind uint8

const (
	answered    answerKind = iota
	unsupported            // by the device, the driver or the library
	nothingNow             // there is no value at the moment
	unreadable             // the value cannot be read
	lost                   // the GPU cannot be read at all
)

const (
	// maxEvents is the maximum number of events of one sample.
	maxEvents = 256
	// noInstance is the ID of an event without GPU or compute instance (nvmlEventData_t).
	noInstance = 0xffffffff
)

// subscribe subscribes to the XID errors of the GPUs (nvmlDeviceRegisterEvents). It ignores GPUs
// and machines that do not support events.
func (s *session) subscribe(gpus []foundGPU) {
	set, answer := s.lib.EventSetCreate()
	if answer != nvml.SUCCESS {
		return
	}
	s.events = set
	for _, g := range gpus {
		_ = g.handle.RegisterEvents(nvml.EventTypeXidCriticalError, set)
	}
}

// polled is the result of poll.
type polled struct {
	events []nvml.EventData
	err    error
}

// poll returns the events since the poll before, or since the start of the session.
// nvmlEventSetWait_v2 waits for at least a millisecond if there is none.
func (s *session) poll() polled {
	var p polled
	if s.events == nil {
		return p
	}
	for len(p.events) < maxEvents {
		event, answer := s.events.Wait(1)
		switch {
		case answer == nvml.SUCCESS:
			if event.EventType == nvml.EventTypeXidCriticalError {
				p.events = append(p.events, event)
			}
			continue
		case answer != nvml.ERROR_TIMEOUT && kindOf(answer) == unreadable:
			p.err = failure("nvmlEventSetWait_v2", answer)
		}
		break
	}
	return p
}

// xidCounts has the XID errors of each device, by UUID.
type xidCounts map[string]*nvidia.XIDs

// add counts events. The counter of a new code was zero when the GPU was last read.
func (c xidCounts) add(p polled, gpus []*gpu) {
	for _, e := range p.events {
		i := slices.IndexFunc(gpus, func(g *gpu) bool { return g.handle == e.Device })
		if i < 0 {
			continue
		}
		uuid := gpus[i].deviceOf(e.GpuInstanceId, e.ComputeInstanceId)
		if c[uuid] == nil {
			c[uuid] = &nvidia.XIDs{}
		}
		c[uuid].Count(nvidia.Error{Code: int64(e.EventData), Before: gpus[i].readAt}) // NVML does not report the time
	}
}

// report adds the counts, as of now, to the samples of all devices, including lost GPUs, whose last
// error shows the cause.
func (c xidCounts) report(samples []driver.Sample, now time.Time) {
	for i := range samples {
		s := &samples[i]
		c[s.Hardware.UUID].Report(s, now)
	}
}

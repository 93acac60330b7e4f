//go:build cgo

package nvml

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

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

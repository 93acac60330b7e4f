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
	call   string // the function's name in nvml.h
	answer nvml.Return
	text   string // NVML's words for it, which only the library knows
}

func (e callError) Error() string { return e.call + ": " + e.text }

// permissionHint says what a container lacks that may not read a GPU in MIG mode as a whole: the
// container toolkit grants that on NVIDIA_MIG_MONITOR_DEVICES=all, and refuses to start a container
// that has the variable without CAP_SYS_ADMIN.
const permissionHint = ": the whole GPU can't be read in MIG mode; set nvidia.migMonitor=true in the chart, or" +
	" give the container NVIDIA_MIG_MONITOR_DEVICES=all and CAP_SYS_ADMIN"

// failure returns the error of a call, nil if there is none.
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

// noHardware reports whether NVML could not be initialised for want of the library, the driver or a
// GPU.
func noHardware(err error) bool {
	return slices.Contains([]nvml.Return{
		nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_GPU_NOT_FOUND,
	}, answerOf(err))
}

// driverIsGone reports whether an error says that NVML as a whole cannot be used until it is
// initialised anew.
func driverIsGone(err error) bool {
	return slices.Contains([]nvml.Return{
		nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH,
	}, answerOf(err))
}

// kindOf says what an answer means for what was asked.
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
	unsupported            // by the device, the driver, or the library
	nothingNow             // there is no value at the moment
	unreadable             // there should be a value
	lost                   // nothing of the GPU can be read
)

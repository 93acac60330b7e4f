//go:build cgo

package nvml

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// callError is a call that failed.
type callError struct {
	call   string // the function's name in nvml.h
	answer nvml.Return
	text   string // NVML's words for it, which only the library knows
}

func (e callError) Error() string { return e.call + ": " + e.text }

// Reason names the error for the label reason.
func (e callError) Reason() string {
	switch e.answer {
	case nvml.ERROR_GPU_IS_LOST:
		return "gpu_lost"
	case nvml.ERROR_NO_PERMISSION:
		return "no_permission"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "driver_not_loaded"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "driver_mismatch"
	default:
		return "error"
	}
}

// failure returns the error of a call, nil if there is none.
func failure(call string, answer nvml.Return) error {
	if answer == nvml.SUCCESS {
		return nil
	}
	return callError{call, answer, answer.Error()}
}

func answerOf(err error) nvml.Return {
	if e, ok := errors.AsType[callError](err); ok {
		return e.answer
	}
	return nvml.SUCCESS
}

// noHardware tells whether NVML could not be initialised for want of the library, the driver or a GPU.
func noHardware(err error) bool {
	return slices.Contains([]nvml.Return{
		nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_GPU_NOT_FOUND,
	}, answerOf(err))
}

// driverIsGone tells whether an error says that NVML as a whole is of no use until it is initialised anew.
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
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return unsupported
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_DATA, nvml.ERROR_NOT_READY:
		return nothingNow
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
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

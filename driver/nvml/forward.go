//go:build cgo

package nvml

/*
#cgo LDFLAGS: -ldl
#include "forward.h"
*/
import "C"

import (
	"reflect"
	"runtime"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// openLibrary opens the library, unless it is open still, and initialises NVML. Where that fails,
// as it does when the driver is not the one that the library came with, the library is closed: the
// next time it is whichever is at that path then.
func openLibrary(path string) (nvml.Interface, error) {
	lib := nvml.New(nvml.WithLibraryPath(path))
	runtime.LockOSThread() // the text of a failure is the thread's
	why := C.dra_nvml_open(C.CString(path))
	text := C.GoString(why)
	runtime.UnlockOSThread()
	if why != nil {
		return nil, driver.WithReason(driver.ReasonNoLibrary, callError{"dlopen", nvml.ERROR_LIBRARY_NOT_FOUND, text})
	}
	if answer := lib.Init(); answer != nvml.SUCCESS {
		err := failure("nvmlInit_v2", answer)
		_ = shutDown(lib) // nothing is initialised: it makes go-nvml close the library
		C.dra_nvml_close()
		return nil, err
	}
	return lib, nil
}

// shutDown shuts NVML down. Where the driver is gone, or NVML is not initialised, there is nothing
// to shut down.
func shutDown(lib nvml.Interface) error {
	_ = lib.Shutdown() // it succeeds always: the true answer comes next
	answer := nvml.Return(C.dra_nvml_shutdown_answer())
	if kindOf(answer) == lost {
		return nil
	}
	return failure("nvmlShutdown", answer)
}

// processesUtilization returns the processes' samples that are newer than a time, in NVML's
// microseconds. go-nvml 0.13 has the function (driver 550 and later), but gives it no room for
// samples.
func processesUtilization(device nvml.Device, since uint64) ([]nvml.ProcessUtilizationInfo_v1, nvml.Return) {
	handle := reflect.ValueOf(device).FieldByName("Handle")
	if !handle.IsValid() {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	const few = 64
	for _, room := range []int{few, maxProcesses} {
		samples, count := make([]nvml.ProcessUtilizationInfo_v1, room), C.uint(room)
		answer := nvml.Return(C.dra_nvml_processes(
			handle.UnsafePointer(), C.ulonglong(since), reflect.ValueOf(samples).UnsafePointer(), &count,
		))
		if answer != nvml.ERROR_INSUFFICIENT_SIZE {
			return samples[:min(int(count), room)], answer
		}
	}
	return nil, nvml.ERROR_INSUFFICIENT_SIZE
}

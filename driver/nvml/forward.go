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

// openLibrary opens the library, unless it is open, and initialises NVML. If the initialisation
// fails, for example because the library does not match the driver, it closes the library, so that
// the next call opens the file that is at the path then.
func openLibrary(path string) (nvml.Interface, error) {
	lib := nvml.New(nvml.WithLibraryPath(path))
	runtime.LockOSThread() // dlerror is per thread
	why := C.dra_nvml_open(C.CString(path))
	text := C.GoString(why)
	runtime.UnlockOSThread()
	if why != nil {
		return nil, driver.WithReason(driver.ReasonNoLibrary, callError{"dlopen", nvml.ERROR_LIBRARY_NOT_FOUND, text})
	}
	if answer := lib.Init(); answer != nvml.SUCCESS {
		err := failure("nvmlInit_v2", answer)
		_ = shutDown(lib) // makes go-nvml close the library
		C.dra_nvml_close()
		return nil, err
	}
	return lib, nil
}

// shutDown shuts NVML down. It is no error if the driver is gone or NVML is not initialised.
func shutDown(lib nvml.Interface) error {
	_ = lib.Shutdown() // always succeeds; the next call returns the actual result
	answer := nvml.Return(C.dra_nvml_shutdown_answer())
	if kindOf(answer) == lost {
		return nil
	}
	return failure("nvmlShutdown", answer)
}

// processesUtilization returns the utilization samples of processes that are newer than since, in
// NVML's microseconds. The wrapper of go-nvml 0.13 for this function (driver 550 and newer) passes
// no buffer for samples.
func processesUtilization(device nvml.Device, since uint64) ([]nvml.ProcessUtilizationInfo_v1, nvml.Return) {
	handle := reflect.ValueOf(device).FieldByName("Handle")
	if !handle.IsValid() {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	const few, many = 64, 4096
	for _, room := range []int{few, many} {
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

//go:build cgo

package dcgm

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

// dra_dcgm_why returns why the library can't be opened, until the next call of the dynamic linker
// on this thread; NULL if it can.
static const char *dra_dcgm_why(void) {
    void *library = dlopen("libdcgm.so.4", RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        return dlerror();
    dlclose(library);
    return NULL;
}

// dra_dcgm_lacks returns whether the library can be opened and does not have a function.
static int dra_dcgm_lacks(const char *function) {
    void *library = dlopen("libdcgm.so.4", RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        return 0;
    int lacks = !dlsym(library, function);
    dlclose(library);
    return lacks;
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/dra-exporter/dra-exporter/driver"
)

// whyNoLibrary returns the error of opening libdcgm.so.4, which go-dcgm does not return.
func whyNoLibrary() error {
	runtime.LockOSThread() // dlerror is per thread
	defer runtime.UnlockOSThread()
	why := C.dra_dcgm_why()
	if why == nil {
		return driver.WithReason(driver.ReasonNoLibrary, errNoLibrary)
	}
	return driver.WithReason(driver.ReasonNoLibrary, fmt.Errorf("%w: %s", errNoLibrary, C.GoString(why)))
}

// functions returns the functions of the library that are required. go-dcgm checks for
// dcgmConnect_v3 itself.
func functions() []string {
	return []string{
		"dcgmInit", "dcgmShutdown", "dcgmStartEmbedded", "dcgmStopEmbedded", "dcgmConnect_v2", "dcgmDisconnect",
		"dcgmGetEntityGroupEntities", "dcgmGetGpuInstanceHierarchy", "dcgmEntitiesGetLatestValues", "dcgmGroupCreate",
		"dcgmGroupAddEntity", "dcgmGroupDestroy", "dcgmFieldGroupCreate", "dcgmFieldGroupDestroy", "dcgmWatchFields",
		"dcgmUnwatchFields", "dcgmUpdateAllFields", "dcgmGetValuesSince_v2", "dcgmHealthSet", "dcgmHealthCheck",
	}
}

// checkFunctions returns an error if the library lacks a required function. Otherwise the dynamic
// linker would end the process (status 127) at the first call of the function.
func checkFunctions() error {
	for _, name := range functions() {
		text := C.CString(name)
		lacks := C.dra_dcgm_lacks(text) != 0
		C.free(unsafe.Pointer(text))
		if lacks {
			return driver.WithReason(driver.ReasonNoLibrary, fmt.Errorf("libdcgm.so.4 has no function %s: it is not of DCGM 4",
				name))
		}
	}
	return nil
}

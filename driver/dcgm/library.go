//go:build cgo

package dcgm

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

// dra_dcgm_why returns why the library can't be opened, until the next call of the dynamic linker
// on this thread; NULL if it can.
static const char *dra_dcgm_why(void) {
    void *library = dlopen("libdcgm.so.4", RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        return dlerror();
    dlclose(library);
    return NULL;
}
*/
import "C"

import (
	"fmt"
	"runtime"

	"github.com/dra-exporter/dra-exporter/driver"
)

// whyNoLibrary returns why libdcgm.so.4 can't be opened, which go-dcgm does not say.
func whyNoLibrary() error {
	runtime.LockOSThread() // the text is the thread's
	defer runtime.UnlockOSThread()
	why := C.dra_dcgm_why()
	if why == nil {
		return driver.WithReason(driver.ReasonNoLibrary, errNoLibrary)
	}
	return driver.WithReason(driver.ReasonNoLibrary, fmt.Errorf("%w: %s", errNoLibrary, C.GoString(why)))
}

//go:build cgo

package dcgmtest

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"
import (
	"fmt"
	"unsafe"
)

// Load loads the double into this process, so that go-dcgm, which asks the dynamic linker for libdcgm.so.4, finds it. There is
// no way to unload it.
func (m *Machine) Load() error {
	path := C.CString(m.Library)
	defer C.free(unsafe.Pointer(path))
	if C.dlopen(path, C.RTLD_LAZY|C.RTLD_GLOBAL) == nil {
		return fmt.Errorf("load the double %s", m.Library)
	}
	return nil
}

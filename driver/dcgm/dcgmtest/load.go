//go:build cgo

package dcgmtest

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
*/
import "C"

import "fmt"

// Load loads the fake into this process, so that go-dcgm, which requests libdcgm.so.4 from the
// dynamic linker, finds it. It cannot be unloaded.
func (m *Machine) Load() error {
	if C.dlopen(C.CString(m.Library),
		C.RTLD_LAZY|C.RTLD_GLOBAL) == nil { // the name lasts as long as the process, as the library does
		return fmt.Errorf("load the fake %s", m.Library)
	}
	return nil
}

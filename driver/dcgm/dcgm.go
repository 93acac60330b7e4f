// Package dcgm reads NVIDIA GPUs and their MIG instances through DCGM 4, NVIDIA's data center GPU
// manager, from a running host engine or from one embedded in this process.
//
// The library, libdcgm.so.4, is opened at run time; without it, Sample returns driver.ErrAbsent.
// Meanings and units of values are those of DCGM's headers dcgm_fields.h and dcgm_structs.h, and of
// the source of the host engine (dcgmlib/src/DcgmCacheManager.cpp); what neither says is marked as
// assumed. The table of this package has the field of each quantity.
//
// Without cgo, [New] returns [ErrNoCgo].
//
// Bounds (max…) are for what vendors' libraries send.
package dcgm

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// ErrNoCgo is the error of a program that was built without cgo and cannot open the library.
var ErrNoCgo = fmt.Errorf("%w: built without cgo, which DCGM needs", driver.ErrNotBuilt)

// ProfilingSwitch is the name of the switch that sets Config.Profiling.
const ProfilingSwitch = "profiling"

// Embedded is the address of a host engine that is embedded in this process.
const Embedded = "embedded"

// Config has the settings of a source.
type Config struct {
	// Address is the address of the host engine, in a form that [CheckAddress] accepts.
	Address string

	// Profiling enables the profiling metrics. A GPU before Hopper can be profiled by one program at a
	// time: while the host engine does, Nsight and others cannot.
	Profiling bool

	// Passthrough reports whether GPUs of this machine may be passed through to guests (vfio). While
	// it returns true, an embedded engine does not run, because it would keep the files of all devices
	// open. Nil: never.
	Passthrough func() bool

	// Now is the clock; nil: time.Now. Times of values are by the clock of the host engine's machine.
	Now func() time.Time
}

// CheckAddress returns an error unless the text is an address of a host engine: Embedded,
// HOST:PORT, the path of a Unix socket, or a URL with the scheme tcp, unix or vsock, which needs
// DCGM 4.5.
func CheckAddress(address string) error {
	if address == Embedded || strings.HasPrefix(address, "/") || isURL(address) {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if _, bad := strconv.ParseUint(port, 10, 16); err == nil && host != "" && bad == nil {
		return nil
	}
	return fmt.Errorf("%q is neither embedded nor HOST:PORT, the path of a socket, or a tcp://, unix:// or vsock:// URL",
		address)
}

func isURL(address string) bool {
	scheme, rest, found := strings.Cut(address, "://")
	switch strings.ToLower(scheme) {
	case "tcp", "unix", "vsock":
		return found && rest != ""
	default:
		return false
	}
}

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) {
	s, err := New(Config{
		Address: h.Address, Profiling: slices.Contains(h.Switches, ProfilingSwitch), Passthrough: h.Passthrough,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity { return append(nvidia.Fills(), driver.Health) }

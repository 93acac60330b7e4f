// Package dcgm reads NVIDIA GPUs and their MIG instances through DCGM 4, NVIDIA's data center GPU
// manager: from a host engine that runs already, or from one inside this process.
//
// The library, libdcgm.so.4, is opened at run time; where it is not there the error is
// driver.ErrAbsent. What each value means, and in which unit, is said by DCGM's headers
// dcgm_fields.h and dcgm_structs.h; the table of this package names the field behind every
// quantity. Where these leave something open, NVIDIA's sources of the host engine were read
// (dcgmlib/src/DcgmCacheManager.cpp), and what is still a guess says so.
//
// Without cgo there is only [New], which returns [ErrNoCgo].
package dcgm

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// ErrNoCgo says that the program was built without cgo, and so can not open the library.
var ErrNoCgo = fmt.Errorf("%w: built without cgo, which DCGM needs", driver.ErrNotBuilt)

// ProfilingSwitch is the name of the switch that sets Config.Profiling.
const ProfilingSwitch = "profiling"

// Embedded is the address of a host engine inside this process.
const Embedded = "embedded"

// Config are the settings of a source.
type Config struct {
	// Address is where the host engine listens, as [CheckAddress] wants it, or Embedded.
	Address string

	// Profiling asks for the profiling metrics. A GPU before Hopper can be profiled by one program
	// at a time: the host engine that profiles keeps Nsight and others from it.
	Profiling bool

	// Passthrough reports whether GPUs of this machine may be handed to guests (vfio). An embedded
	// engine holds the files of all devices open, and does not run then; another process's is its
	// own affair. Nil: never.
	Passthrough func() bool

	// Now is the clock; nil: time.Now. The host engine dates what it reads by its own machine's
	// clock, which is this one's unless the engine is elsewhere.
	Now func() time.Time
}

// CheckAddress returns an error for what is no address of a host engine: HOST:PORT, the path of a
// Unix socket, or one of the URLs tcp://, unix:// and vsock://, which take DCGM 4.5.
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
func Fills() []driver.Quantity {
	return []driver.Quantity{
		driver.Utilization, driver.EngineUtilization, driver.Occupancy, driver.MemoryUsed, driver.MemoryCapacity,
		driver.Power, driver.Energy, driver.Temperature, driver.Clock, driver.IOBytes, driver.Errors,
		driver.ThrottledSeconds, driver.Health, driver.NeedsAttention, driver.LifetimeErrors,
		driver.PowerLimit, driver.ClockMax, driver.PerformanceState, driver.ThrottleActive, driver.LinkWidth,
		driver.LinkWidthMax,
		driver.LinkGeneration, driver.LinkGenerationMax, driver.FabricState, driver.MemoryReserved,
		driver.TemperatureMargin, driver.FanSpeed,
	}
}

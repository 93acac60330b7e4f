// Package nvml reads NVIDIA GPUs and their MIG instances through NVML, NVIDIA's management library.
//
// The library, libnvidia-ml.so.1, is opened at run time and comes with NVIDIA's driver, 510 or
// newer; where it is not there the error is driver.ErrAbsent. What each value
// means, and in which unit, is said by NVML's header, nvml.h; the tables of this package name the
// function, or field, behind every quantity.
//
// Without cgo there is only [New], which returns [ErrNoCgo].
package nvml

import (
	"fmt"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// ErrNoCgo says that the program was built without cgo, and so can not open the library.
var ErrNoCgo = fmt.Errorf("%w: built without cgo, which NVML needs", driver.ErrNotBuilt)

// Config are the settings of a source; the zero Config is that of a usual machine.
type Config struct {
	// Library is the name, or the path, of the library; empty: libnvidia-ml.so.1, wherever the
	// dynamic linker finds it.
	Library string

	// Sysfs is where sysfs is mounted; empty: /sys. It tells the NUMA nodes, and when a GPU came
	// to, or left, the driver.
	Sysfs string

	// Passthrough reports whether GPUs of this machine may be handed to guests (vfio). NVML holds
	// the files of all devices open from its initialisation to its shutdown, and a GPU whose file
	// is open can't leave NVIDIA's driver: so NVML is shut down after every sample while
	// Passthrough is true. XID errors and GPM, which need NVML to stay, are absent then. Nil:
	// never.
	Passthrough func() bool

	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) {
	s, err := New(Config{Sysfs: h.Sysfs, Passthrough: h.Passthrough})
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
		driver.ThrottledSeconds, driver.NeedsAttention, driver.LifetimeErrors, driver.PowerLimit, driver.ClockMax,
		driver.PerformanceState,
		driver.ThrottleActive, driver.LinkWidth, driver.LinkWidthMax, driver.LinkGeneration, driver.LinkGenerationMax,
		driver.FabricState, driver.MemoryReserved, driver.TemperatureMargin, driver.FanSpeed,
	}
}

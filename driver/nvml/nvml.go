// Package nvml reads NVIDIA GPUs and their MIG instances through NVML, NVIDIA's management library.
// The library, libnvidia-ml.so.1, is part of NVIDIA's driver, 570 or newer, and is opened at run
// time; without it, Sample returns driver.ErrAbsent. Meanings and units of values are those of
// NVML's header, nvml.h; the tables of this package have the function or field of each quantity.
//
// Without cgo, [New] returns [ErrNoCgo].
//
// Bounds (max…) are for what vendors' libraries send.
package nvml

import (
	"fmt"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// ErrNoCgo is the error of a program that was built without cgo and cannot open the library.
var ErrNoCgo = fmt.Errorf("%w: built without cgo, which NVML needs", driver.ErrNotBuilt)

// Config has the settings of a source. The zero value suits most machines.
type Config struct {
	// Library is the name or path of the library; empty: libnvidia-ml.so.1, which the dynamic linker
	// finds.
	Library string

	// Sysfs is the mount point of sysfs; empty: /sys. It shows NUMA nodes, and when a GPU is bound to
	// or unbound from the driver.
	Sysfs string

	// Passthrough reports whether GPUs of this machine may be passed through to guests (vfio). NVML
	// keeps the device files of all GPUs open until its shutdown, and a GPU whose file is open cannot
	// be unbound from NVIDIA's driver. While Passthrough returns true, NVML is therefore shut down
	// after each sample; XID errors and GPM, which need a longer session, are absent. Nil: never.
	Passthrough func() bool

	// Complete is the time between two samples that read everything. Between them, the source reads
	// power, memory and processes; other readings stay the same. A sample reads everything also after
	// ReadAll, if the processes of the GPU have changed, and if an idle GPU begins to draw more power.
	// 0: each sample reads everything.
	Complete time.Duration

	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) {
	const complete = 5 * time.Second
	s, err := New(Config{Sysfs: h.Sysfs, Passthrough: h.Passthrough, Complete: complete})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity { return nvidia.Fills() }

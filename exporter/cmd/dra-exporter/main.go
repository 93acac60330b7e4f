// Command dra-exporter tells, for every Kubernetes DRA claim and pod on its node, what the devices it holds are really
// doing, and which of them sit idle.
package main

//go:generate sh -c "go run . metrics-reference >../../METRICS.md"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/cpu"
	"github.com/dra-exporter/dra-exporter/driver/dcgm"
	"github.com/dra-exporter/dra-exporter/driver/netdev"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
	"github.com/dra-exporter/dra-exporter/exporter/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(program.Run(ctx, os.Args[1:], sources(), os.Stdout, os.Stderr))
}

// profiling is the switch of dcgm that asks for profiling metrics.
const profiling = "profiling"

func newDCGM(p program.Paths) (driver.Source, error) {
	source, err := dcgm.New(dcgm.Config{Address: p.Address, Profiling: slices.Contains(p.Switches, profiling), Passthrough: p.Passthrough})
	if errors.Is(err, dcgm.ErrNoCgo) {
		return nil, fmt.Errorf("%w: %w", program.ErrNotBuilt, err)
	}
	return source, err
}

func newNVML(p program.Paths) (driver.Source, error) {
	source, err := nvml.New(nvml.Config{Sysfs: p.Sysfs, Passthrough: p.Passthrough})
	if errors.Is(err, nvml.ErrNoCgo) {
		return nil, fmt.Errorf("%w: %w", program.ErrNotBuilt, err)
	}
	return source, err
}

// sources is THE list of sources, in order of precedence: where two read the same quantity of a device, the first one
// owns it. Endpoints of --source.scrape.config come after all of these.
func sources() []program.Source {
	return []program.Source{
		{
			Name: "nvml", Help: "Read NVIDIA GPUs and MIG instances through NVML.",
			Fills: []driver.Quantity{
				driver.Utilization, driver.EngineUtilization, driver.Occupancy, driver.MemoryUsed, driver.MemoryCapacity, driver.Power,
				driver.Energy, driver.Temperature, driver.Clock, driver.IOBytes, driver.Errors, driver.ThrottledSeconds,
			},
			New: newNVML,
		},
		{
			Name: "dcgm", Help: "Read NVIDIA GPUs and MIG instances through DCGM: embedded, HOST:PORT of a host engine, or off.",
			Addressed: true,
			Switches: []program.Switch{{
				Name: profiling, Help: "Read DCGM's profiling metrics too. Before Hopper they keep other profilers from the GPUs.",
			}},
			Fills: []driver.Quantity{
				driver.Utilization, driver.EngineUtilization, driver.Occupancy, driver.MemoryUsed, driver.MemoryCapacity, driver.Power,
				driver.Energy, driver.Temperature, driver.Clock, driver.IOBytes, driver.Errors, driver.ThrottledSeconds, driver.Health,
			},
			New: newDCGM,
		},
		{
			Name: "netdev", Help: "Read network interfaces of the host from sysfs, and those in pods through procfs.",
			Fills: []driver.Quantity{driver.IOBytes, driver.NetworkPackets, driver.NetworkErrors, driver.NetworkDrops, driver.Capacity},
			New: func(p program.Paths) (driver.Source, error) {
				return netdev.New(netdev.Config{Sysfs: p.Sysfs, Procfs: p.Procfs, Attachments: p.Attachments}), nil
			},
		},
		{
			Name: "cpu", Help: "Read CPUs that devices name from procfs.",
			Fills: []driver.Quantity{driver.Utilization, driver.ActiveSeconds},
			New:   func(p program.Paths) (driver.Source, error) { return cpu.New(p.Procfs), nil },
		},
	}
}

// Command dra-exporter reports, for every Kubernetes DRA claim and pod on its node, what the
// devices that it holds are doing, and which of them are idle.
package main

//go:generate sh -c "go run . metrics-reference >../../METRICS.md"

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/dra-exporter/dra-exporter/driver/amdgpu"
	"github.com/dra-exporter/dra-exporter/driver/bus"
	"github.com/dra-exporter/dra-exporter/driver/cpu"
	"github.com/dra-exporter/dra-exporter/driver/dcgm"
	"github.com/dra-exporter/dra-exporter/driver/drm"
	"github.com/dra-exporter/dra-exporter/driver/health"
	"github.com/dra-exporter/dra-exporter/driver/intelgpu"
	"github.com/dra-exporter/dra-exporter/driver/kmsg"
	"github.com/dra-exporter/dra-exporter/driver/netdev"
	"github.com/dra-exporter/dra-exporter/driver/nvme"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
	"github.com/dra-exporter/dra-exporter/driver/rdma"
	"github.com/dra-exporter/dra-exporter/exporter/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(program.Run(ctx, os.Args[1:], sources(), os.Stdout, os.Stderr))
}

// sources returns the list of sources, in order of precedence: the first source that reads a
// quantity of a device owns it. Endpoints of --source.scrape.config come after all of them, except
// those that are Last.
func sources() []program.Source {
	const display, accelerator = "03", "12" // classes of PCI devices
	nvidia := bus.Hardware{Vendor: "nvidia", ID: "10de", Classes: []string{display}}
	amd := bus.Hardware{Vendor: "amd", ID: "1002", Classes: []string{display, accelerator}}
	return []program.Source{
		{
			Name: "nvml", Help: "Read NVIDIA GPUs and MIG instances through NVML.",
			Fills: nvml.Fills(), New: bus.Expect("nvml", nvidia, nvml.FromHost),
		},
		{
			Name:      "dcgm",
			Help:      "Read NVIDIA GPUs and MIG instances through DCGM: embedded, HOST:PORT of a host engine, or off.",
			Addressed: true,
			Switches: []program.Switch{{
				Name: dcgm.ProfilingSwitch,
				Help: "Read DCGM's profiling metrics too. Before Hopper they keep other profilers from the GPUs.",
			}},
			Fills: dcgm.Fills(), New: bus.Expect("dcgm", nvidia, dcgm.FromHost),
		},
		{
			Name: "amdgpu", Help: "Read AMD GPUs and their partitions from sysfs.",
			Fills: amdgpu.Fills(), New: bus.Expect("amdgpu", amd, amdgpu.FromHost),
		},
		{
			Name: "intelgpu", Help: "Read Intel's GPUs, Gaudi accelerators and NPUs from sysfs.",
			Fills: intelgpu.Fills(), New: intelgpu.FromHost,
		},
		{
			Name: "netdev", Help: "Read network interfaces of the host from sysfs, and those in pods through procfs.",
			Fills: netdev.Fills(), New: netdev.FromHost,
		},
		{
			Name: "rdma", Help: "Read RDMA devices (InfiniBand, RoCE, iWARP, EFA) from sysfs.",
			Fills: rdma.Fills(), New: rdma.FromHost,
		},
		{
			Name: "nvme", Help: "Read NVMe controllers from sysfs.",
			Fills: nvme.Fills(), New: nvme.FromHost,
		},
		{Name: "cpu", Help: "Read CPUs that devices name from procfs.", Fills: cpu.Fills(), New: cpu.FromHost},
		{
			Name: "health", Help: "Read the health of devices from the streams of their DRA drivers.",
			Fills: health.Fills(), New: health.FromHost,
		},
		{
			Name: "kmsg", Help: "Read from the kernel log which process an XID error of an NVIDIA GPU names.",
			Fills: kmsg.Fills(), New: kmsg.FromHost,
		},
		{
			Name: "drm", Last: true, // other sources read the total use of a device
			Help:  "Read from procfs what holders use of DRM devices: of AMD, Intel, XDNA and others.",
			Fills: drm.Fills(), New: drm.FromHost,
		},
	}
}

package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Device describes a simulated device. A zero field means that the device lacks the quantity, so
// that the source does not read it.
type Device struct {
	Name   string // unique in the machine
	Driver string // DRA driver of the device
	Parent string // name of the device that this one is a part of

	Hardware driver.Hardware
	// SampledByName devices are identified in samples by their DRA names, and all others by their
	// hardware.
	SampledByName bool

	Compute       bool    // has a utilization
	MemoryBytes   float64 // capacity
	ReservedBytes float64 // in use while the device is not held

	IdleWatts, MaxWatts     float64
	IdleCelsius, MaxCelsius float64
	IdleHertz, MaxHertz     float64

	Link                      string  // of io_bytes: pcie, network
	ReceiveRate, TransmitRate float64 // bytes per second at full load
	PacketBytes               float64 // mean size of a packet

	Healthy, Unhealthy    bool          // the health that it reports; neither: none
	UncorrectedErrorEvery time.Duration // how often its memory has an error
	LinkDownEvery         time.Duration // how often its link goes down
	XIDEvery              time.Duration // time between two errors with the code XID from its driver
	XID                   int

	Lost Span // time in which its driver can't reach it

	Engines        bool    // reports engines and occupancy in addition to its utilization
	ThrottledShare float64 // share of its busy time in which its power limit slows it down
	Slowed         float64 // part of its clock that it then loses, 0 to 1
	// TensorPart is the share of the device's busy time in which its tensor cores work; 0:
	// tensorPart.
	TensorPart float64

	energy, active, io, packets float64 // initial values of the hardware's counters
}

const (
	gibibyte = 1 << 30
	// uuidFormat takes a number that makes the UUID unique.
	uuidFormat = "GPU-%08x-0000-4000-8000-%012x"
)

// GPU is a healthy GPU of 80 GiB.
func GPU(driverName, name string, seed uint64) Device {
	random := rand.New(rand.NewPCG(seed, 0))
	return Device{
		Name: name, Driver: driverName,
		Hardware: driver.Hardware{
			UUID: fmt.Sprintf(uuidFormat, random.Uint32(), random.Uint64()>>16), Vendor: "example",
			Serial: fmt.Sprintf("%010d", seed), FirmwareVersion: "1.0.0",
		},
		Compute:     true,
		MemoryBytes: 80 * gibibyte, ReservedBytes: gibibyte / 2,
		IdleWatts: 70, MaxWatts: 700,
		IdleCelsius: 31, MaxCelsius: 78,
		IdleHertz: 345e6, MaxHertz: 1980e6,
		Link: "pcie", ReceiveRate: 12e9, TransmitRate: 5e9,
		Healthy: true, Engines: true, ThrottledShare: 0.05,
	}
}

// Partitioned returns a GPU with a number of partitions, like MIG: the parent has the quantities
// that are not measured per partition (power, temperature, clock, links, health), and each
// partition has its own utilization and memory.
func Partitioned(gpu Device, partitions int) []Device {
	out := make([]Device, 0, partitions+1)
	memory := gpu.MemoryBytes / float64(partitions)
	gpu.Compute, gpu.MemoryBytes, gpu.ReservedBytes, gpu.Engines = false, 0, 0, false
	out = append(out, gpu)
	for i := range partitions {
		out = append(out, Device{
			Name: fmt.Sprintf("%s-partition-%d", gpu.Name, i), Driver: gpu.Driver, Parent: gpu.Name, SampledByName: true,
			Hardware: driver.Hardware{
				Kind: driver.KindPartition, Parent: gpu.Hardware.UUID, Vendor: gpu.Hardware.Vendor,
				Profile: fmt.Sprintf("1of%d", partitions),
			},
			Compute: true, MemoryBytes: memory,
		})
	}
	return out
}

// NIC is a network interface of 100 Gbit/s.
func NIC(driverName, name, pci string) Device {
	return Device{
		Name: name, Driver: driverName,
		Hardware: driver.Hardware{NetDev: name, PCI: pci, Vendor: "example"},
		Link:     "network", ReceiveRate: 12.5e9, TransmitRate: 12.5e9, PacketBytes: 1500,
		LinkDownEvery: time.Hour,
	}
}

// spinningPower is the power of spinning kernels above idle power, as a part of the power at full
// load. spinningSMs is the part of the multiprocessors that they occupy: NCCL's kernels have few
// thread blocks.
const spinningPower, spinningSMs = 0.1, 0.1

// joules returns the energy that the device used in a time, given the seconds for which it was
// fully busy and for which it spun.
func (d *Device) joules(elapsed, busy, spun float64) float64 {
	return d.IdleWatts*elapsed + (d.MaxWatts-d.IdleWatts)*(busy+spinningPower*spun)
}

// withCounters returns the device with counters that do not begin at zero, as on real hardware.
func withCounters(d Device, seed uint64) Device {
	random := rand.New(rand.NewPCG(seed, 1))
	d.energy, d.active = 1e6*random.Float64(), 1e4*random.Float64()
	d.io, d.packets = 1e9*random.Float64(), 1e6*random.Float64()
	return d
}

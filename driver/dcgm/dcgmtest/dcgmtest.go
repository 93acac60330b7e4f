// Package dcgmtest builds a fake of libdcgm.so.4 from the C sources in fake, and controls what its
// host engine reports: devices, MIG instances, values over time, XID errors, failures, and calls
// that hang.
//
// The fake and the test map one file, the [State]. A process can have only one fake, since the
// library's functions cannot be bound again.
package dcgmtest

import (
	"context"
	"embed"
	"fmt"
	"math"
	"path/filepath"
	"unsafe"

	"github.com/dra-exporter/dra-exporter/driver/faketest"
)

// Machine is a machine with NVIDIA GPUs, as a process sees it through DCGM.
type Machine struct {
	*State
	// Library is the path of the fake. Its name is the one that programs look for, in LD_LIBRARY_PATH
	// among others.
	Library string

	functions faketest.Functions
}

//go:embed fake
var sources embed.FS

// New builds the fake and its file of state in a folder, which must last as long as the process.
func New(ctx context.Context, dir string) (*Machine, error) {
	m := &Machine{Library: filepath.Join(dir, "libdcgm.so.4")}
	fake := faketest.Fake{Sources: sources, Headers: "github.com/NVIDIA/go-dcgm/pkg/dcgm"}
	memory, err := faketest.Map(dir, unsafe.Sizeof(State{}))
	if err != nil {
		return nil, err
	}
	m.State = (*State)(memory)
	if m.functions, err = fake.Write(dir); err != nil {
		return nil, err
	}
	return m, fake.Compile(ctx, dir, map[string][]string{m.Library: {"-Wl,-soname,libdcgm.so.4"}})
}

// Reset makes the machine one with the given number of busy GPUs, without MIG, failures and
// connections, and with an engine of version 4.6.
func (m *Machine) Reset(gpus int, now float64) {
	engine := m.Engine + 1
	*m.State = State{
		magic: magic, size: uint64(unsafe.Sizeof(State{})), Count: int64(gpus), Engine: engine, Time: now,
		CUDAVersion:   13000,
		driverVersion: text("580.65.06"),
	}
	for i := range gpus {
		m.GPUs[i] = newGPU(i)
	}
}

func newGPU(i int) GPU {
	g := GPU{
		PCIBus: int64(0x1b + i),
		Work: Work{
			Graphics: 0.755, SM: 0.5, Occupancy: 0.25, Tensor: 0.125, DRAM: 0.3, FP64: 0.12, FP32: 0.13,
			FP16: 0.14, Integer: 0.11, MemoryTotal: 80 << 30, Memory: 16 << 30, MemoryReserved: 1 << 30,
		},
		Utilization: 0.75, MemoryUtilization: 0.25, Encoder: 0.1, Decoder: 0.2,
		Power: 312.5 + float64(i), Energy: 1e6 * float64(i+1), Temperature: 61, MemoryTemperature: 70,
		ClockSM: 1.74e9, ClockMemory: 2.619e9, ClockVideo: 1.5e9,
		PCIeTransmitRate: 2e9, PCIeReceiveRate: 1e9, NVLinkTransmitRate: 4e9, NVLinkReceiveRate: 3e9,
		ThrottledPower: 12.5, ThrottledThermal: 3, ThrottledSyncBoost: 4, ThrottledBoardLimit: 1, ThrottledReliability: 2,
		Corrected: 5, Uncorrected: 1, PCIeReplays: 3, RemappedCorrected: 2, RemappedUncorrected: 7, RetiredSBE: 4,
		RetiredDBE: 6,
		Condition: Condition{
			LifetimeCorrected: 105, LifetimeUncorrected: 11,
			LimitEnforced: 650, LimitDefault: 700, LimitMin: 200, LimitMax: 750, PerformanceState: 2, Throttling: 0x4,
			LinkWidth: 8, LinkWidthMax: 16, LinkGeneration: 4, LinkGenerationMax: 5,
			ClockSMMax: 1.98e9, ClockMemoryMax: 2.619e9,
			NVLinkCRC: 21, NVLinkReplay: 22, NVLinkRecovery: 23, NVLink5Recovery: math.NaN(),
			FabricStatus: 3, FabricSummary: 1, Margin: 49, Fan: 0.35,
		},
		uuid: text(fmt.Sprintf("GPU-%08d-0000-4000-8000-000000000000", i)), name: text("NVIDIA H100 80GB HBM3"),
	}
	copy(g.serial[:], fmt.Sprintf("16508234567%02d", i))
	copy(g.vbios[:], "96.00.61.00.01")
	return g
}

// Partition switches MIG mode on for a GPU and creates the given number of GPU instances of one
// slice, each with a compute instance.
func (m *Machine) Partition(gpu, instances int) {
	g := &m.GPUs[gpu]
	g.MIG, g.Instances = 1, [MaxInstances]Instance{}
	for i := range instances {
		g.Instances[i] = Instance{
			Present: 1, GPUInstance: int64(7 + i), ComputeInstances: 1, Profile: 19, name: text("1g.10gb"),
			Work: Work{
				Graphics: float64(i+1) / 10, SM: 0.05, Occupancy: 0.04, Tensor: 0.03, DRAM: 0.02, FP64: 0.02,
				FP32: 0.03, FP16: 0.04, Integer: 0.01,
				MemoryTotal: 10 << 30, Memory: float64(i+1) * (1 << 30), MemoryReserved: 1 << 27,
			},
		}
	}
}

// Advance lets the machine work for a time.
func (m *Machine) Advance(seconds float64) {
	m.Time += seconds
	for i := range m.Count {
		g := &m.GPUs[i]
		g.Energy += g.Power * seconds
		g.ThrottledPower += seconds / 2
	}
}

// Restart replaces the engine with a new one.
func (m *Machine) Restart() { m.Engine++ }

// Fail makes a function return a dcgmReturn_t; 0 ends that.
func (m *Machine) Fail(function string, answer int) {
	m.fail[m.functions.Number(function)] = int64(answer)
}

// Hang makes a function block, or ends that.
func (m *Machine) Hang(function string, hang bool) {
	var value int64
	if hang {
		value = 1
	}
	m.hang[m.functions.Number(function)] = value
}

// Calls returns how often a function was called.
func (m *Machine) Calls(function string) int { return int(m.calls[m.functions.Number(function)]) }

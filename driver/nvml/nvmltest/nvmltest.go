// Package nvmltest builds a fake of libnvidia-ml.so.1 from the C sources in fake, and controls the
// machine that it reports: devices, MIG instances, values, errors, and calls that hang.
//
// The fake and the test map one file, the [State]. A process can have only one fake, since go-nvml
// binds the library's functions once.
package nvmltest

import (
	"context"
	"embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver/faketest"
)

// Machine is a machine with NVIDIA GPUs, as a process sees it through NVML.
type Machine struct {
	*State
	// Library is the path of the fake. OldLibrary is that of an old driver, which lacks functions.
	// NewLibrary is that of the driver NewVersion, which is the installed one if Init is
	// NVML_ERROR_LIB_RM_VERSION_MISMATCH.
	Library, OldLibrary, NewLibrary string
	// Files is the folder of the device files nvidia0, nvidia1 and so on, which the fake keeps open
	// while NVML is initialised.
	Files string

	functions faketest.Functions
}

// NewVersion is the driver version of NewLibrary.
const NewVersion = "590.44.01"

//go:embed fake
var sources embed.FS

// New builds the fake and its state file in a folder, which must exist as long as the process.
func New(ctx context.Context, dir string) (*Machine, error) {
	m := &Machine{
		Library: filepath.Join(dir, "libnvidia-ml.so.1"), OldLibrary: filepath.Join(dir, "libnvidia-ml-old.so.1"),
		NewLibrary: filepath.Join(dir, "libnvidia-ml-new.so.1"), Files: filepath.Join(dir, "dev"),
	}
	fake := faketest.Fake{Sources: sources, Headers: "github.com/NVIDIA/go-nvml/pkg/nvml"}
	memory, err := faketest.Map(dir, unsafe.Sizeof(State{}))
	if err != nil {
		return nil, err
	}
	m.State = (*State)(memory)
	if m.functions, err = fake.Write(dir); err != nil {
		return nil, err
	}
	const current = "-DNVML_NO_UNVERSIONED_FUNC_DEFS=1"
	if err := fake.Compile(ctx, dir, map[string][]string{
		m.Library: {current}, m.OldLibrary: {current, "-DOLD"},
		m.NewLibrary: {current, "-DDRIVER_VERSION=\"" + NewVersion + "\""},
	}); err != nil {
		return nil, err
	}
	if err := os.Mkdir(m.Files, 0o755); err != nil {
		return nil, fmt.Errorf("make the device files: %w", err)
	}
	for i := range MaxGPUs {
		if err := os.WriteFile(filepath.Join(m.Files, fmt.Sprintf("nvidia%d", i)), nil, 0o600); err != nil {
			return nil, fmt.Errorf("make the device files: %w", err)
		}
	}
	return m, nil
}

// Reset makes the machine one with the given number of busy GPUs without MIG and without failures,
// on which NVML has never been initialised. Generation continues.
func (m *Machine) Reset(gpus int) {
	generation := m.Generation
	*m.State = State{
		magic: magic, size: uint64(unsafe.Sizeof(State{})), Count: int64(gpus), Generation: generation,
		CUDAVersion:   13000,
		driverVersion: text("580.65.06"),
	}
	copy(m.files[:], m.Files)
	for i := range gpus {
		m.GPUs[i] = newGPU(i)
	}
}

func newGPU(i int) GPU {
	g := GPU{
		Minor: int64(i), PCIBus: int64(0x1b + i), MaxMIG: 7, GPM: 1,
		ProcessTime: 1e9, SamplePeriod: 0.2,
		Power: 312.5 + float64(i), Energy: 1e6 * float64(i+1),
		Utilization: 0.75, MemoryUtilization: 0.25, Encoder: 0.1, Decoder: 0.2, JPEG: 0.3, OFA: 0.4,
		MemoryTotal: 80 << 30, MemoryReserved: 1 << 30, Memory: 16 << 30,
		Temperature: 61, MemoryTemperature: 70,
		ClockGraphics: 1.755e9, ClockSM: 1.74e9, ClockMemory: 2.619e9, ClockVideo: 1.5e9,
		PCIeTransmitRate: 2e9, PCIeReceiveRate: 1e9,
		NVLinkTransmit: 1 << 40, NVLinkReceive: 1 << 41,
		PCIeReplays: 3, Corrected: 5, Uncorrected: 1, RemappedCorrected: 2, RemappedUncorrected: 1, RetiredSBE: 4,
		RetiredDBE: 6,
		Throttled: Throttled{
			Power: 12.5, Thermal: 3, SyncBoost: 0, BoardLimit: 1, Reliability: 2, SoftThermal: 3.5, HardThermal: 0.5,
			PowerBrake: 0.25,
		},
		Condition: Condition{
			LifetimeCorrected: 105, LifetimeUncorrected: 11,
			LimitEnforced: 650, LimitDefault: 700, LimitMin: 200, LimitMax: 750, PerformanceState: 2, Throttling: 0x4,
			LinkWidth: 8, LinkWidthMax: 16, LinkGeneration: 4, LinkGenerationMax: 5,
			ClockSMMax: 1.98e9, ClockMemoryMax: 2.619e9,
			NVLinkCRC: 21, NVLinkReplay: 22, NVLinkRecovery: 23, NVLink5Recovery: math.NaN(),
			FabricState: 3, FabricSummary: 1, Margin: 49, Fan: 0.35,
		},
	}
	g.SetUUID(fmt.Sprintf("GPU-%08d-0000-4000-8000-000000000000", i), "NVIDIA H100 80GB HBM3")
	g.SetBoard(fmt.Sprintf("16508234567%02d", i), "96.00.61.00.01")
	g.Counters.Advance(1, g.metrics())
	return g
}

// metrics returns GPM's metrics of a GPU, by NVML_GPM_METRIC_*: the shares of graphics, SMs,
// occupancy, tensor and memory, of the integer, FP64, FP32 and FP16 pipes, and the bytes per second
// over PCIe and NVLink.
func (g *GPU) metrics() map[int]float64 {
	return map[int]float64{
		4: 0.11, 11: 0.12, 12: 0.13, 13: 0.14,
		1: g.Utilization, 2: g.Utilization / 2, 3: g.Utilization / 4, 5: g.Utilization / 8, 10: g.MemoryUtilization,
		20: g.PCIeTransmitRate, 21: g.PCIeReceiveRate,
		60: 3e6, 61: 1000 * 1024,
	}
}

// Partition enables MIG mode for a GPU and creates the given number of instances of one slice, with
// the profile 1g.10gb.
func (m *Machine) Partition(gpu, instances int) {
	g := &m.GPUs[gpu]
	g.MIG = 1
	for i := range instances {
		instance := &g.Instances[i]
		*instance = Instance{
			Present: 1, GPUInstance: int64(7 + i), Profile: 19, Start: int64(i), Size: 1,
			MemoryTotal: 10 << 30, MemoryReserved: 1 << 27, Memory: float64(i+1) * (1 << 30),
		}
		instance.SetUUID(fmt.Sprintf("MIG-%04d%04d-0000-5000-8000-000000000000", gpu, i), "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
		instance.Counters.Advance(1, instance.metrics())
	}
}

func (m *Instance) metrics() map[int]float64 {
	return map[int]float64{
		4: 0.11, 11: 0.12, 12: 0.13, 13: 0.14,
		1: float64(m.Start+1) / 10, 2: 0.05, 3: 0.04, 5: 0.03, 10: 0.02, 20: 1e6, 21: 2e6,
		60: 3e6, 61: 4e6,
	}
}

// Live makes GPM's counters advance with the clock until Reset, at the last rates: two samples then
// differ by the time between them, however late the test calls Advance.
func (m *Machine) Live() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	m.live = float64(now.Nano()) * 1e-9
	return nil
}

// Advance lets the machine work for a time.
func (m *Machine) Advance(seconds float64) {
	for i := range m.Count {
		g := &m.GPUs[i]
		g.Energy += g.Power * seconds
		g.NVLinkTransmit += math.Trunc(seconds*1000) * 1024
		g.Throttled.Power += seconds / 2
		g.ProcessTime += seconds
		if m.live != 0 {
			continue
		}
		g.Counters.Advance(seconds, g.metrics())
		for j := range g.Instances {
			g.Instances[j].Counters.Advance(seconds, g.Instances[j].metrics())
		}
	}
}

// Fail makes a function return an nvmlReturn_t for one GPU, or for gpu -1 if the function has no
// GPU. 0 ends that.
func (m *Machine) Fail(function string, gpu, answer int) {
	*m.at(&m.fail, function, gpu) = int64(answer)
}

// Hang makes a function block, or ends that.
func (m *Machine) Hang(function string, gpu int, hang bool) {
	*m.at(&m.hang, function, gpu) = 0
	if hang {
		*m.at(&m.hang, function, gpu) = 1
	}
}

// Cost makes each call of a function take that much processor time.
func (m *Machine) Cost(function string, d time.Duration) {
	m.cost[m.functions.Number(function)] = d.Nanoseconds()
}

// CostAsH100 makes calls take what they took on an H100 with driver 580: with one busy process or
// none 7.6 ms for a sample that reads everything, with two 12 ms. NVIDIA's driver spends the time
// on the processor. What calls other than these three took was measured as a whole; here each takes
// the same.
func (m *Machine) CostAsH100(busy bool) {
	const others = 19 // calls of a sample that reads everything
	for function := range m.functions {
		m.Cost(function, 2600*time.Microsecond/others)
	}
	m.Cost("nvmlDeviceGetTotalEnergyConsumption", 3300*time.Microsecond)
	m.Cost("nvmlGpmSampleGet", 1700*time.Microsecond)
	m.Cost("nvmlGpmMetricsGet", 0) // included
	m.Cost("nvmlDeviceGetProcessUtilization", 1600*time.Microsecond)
	m.Cost("nvmlEventSetWait_v2", 0) // waits
	if busy {
		m.Cost("nvmlGpmSampleGet", 4800*time.Microsecond)
	}
}

// Spent returns the processor time that all calls so far have taken, by their costs.
func (m *Machine) Spent() time.Duration {
	sum := int64(0)
	for i, calls := range m.calls {
		sum += int64(calls) * m.cost[i]
	}
	return time.Duration(sum)
}

// Calls returns how often a function was called.
func (m *Machine) Calls(function string) int { return int(m.calls[m.functions.Number(function)]) }

func (m *Machine) at(table *[maxFunctions][MaxGPUs + 1]int64, function string, gpu int) *int64 {
	if gpu < 0 {
		gpu = MaxGPUs
	}
	return &table[m.functions.Number(function)][gpu]
}

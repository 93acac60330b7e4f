package nvmltest

import (
	"bytes"
	"math"
)

// Bounds of a machine, as in fake/state.h.
const (
	MaxGPUs      = 64
	MaxInstances = 8
	maxProcesses = 8
	maxEvents    = 64
	maxMetrics   = 176
	maxFunctions = 72

	magic = 0x4e564d4c646f7562
)

// State mirrors the struct state of fake/state.h, which describes it. Values are in base units; NaN
// means that the device does not support the value.
type State struct {
	magic, size   uint64
	Init          int64 // the nvmlReturn_t of nvmlInit_v2
	Users         int64 // initialisations of NVML without a shutdown
	Generation    int64 // number of initialisations
	Misuse        int64 // calls with stale handles, or that the header forbids
	Count         int64 // of GPUs
	CUDAVersion   int64 // as nvmlSystemGetCudaDriverVersion_v2 has it
	GPMNaN        int64 // a metric of GPM that succeeds with NaN; 0: none
	GPMSamples    int64 // allocated and not freed
	EventSets     int64
	live          float64 // CLOCK_MONOTONIC in seconds since which GPM's counters advance with the clock; 0: they do not
	written, read int64   // events
	registered    int64
	calls         [maxFunctions]uint64
	fail, hang    [maxFunctions][MaxGPUs + 1]int64
	cost          [maxFunctions]int64
	events        [maxEvents]event
	GPUs          [MaxGPUs]GPU
	driverVersion [64]byte
	files         [256]byte
}

// GPU is a GPU of the machine.
type GPU struct {
	Lost                                   int64 // not 0: it has fallen off the bus
	Minor, PCIDomain, PCIBus, PCIDevice    int64
	MIG, MaxMIG, GPM                       int64
	PowerSmoothing                         int64 // it has the feature, with settings of 0
	Power, Energy                          float64
	Utilization, MemoryUtilization         float64
	Encoder, Decoder, JPEG, OFA            float64
	MemoryTotal, MemoryReserved, Memory    float64
	Temperature, MemoryTemperature         float64
	ClockGraphics, ClockSM, ClockMemory    float64
	ClockVideo                             float64
	PCIeTransmitRate, PCIeReceiveRate      float64
	NVLinkTransmit, NVLinkReceive          float64
	PCIeReplays, Corrected, Uncorrected    float64
	RemappedCorrected, RemappedUncorrected float64
	RetiredSBE, RetiredDBE                 float64
	Throttled                              Throttled
	Condition                              Condition
	ProcessTime                            float64 // seconds since 1970 up to which there are samples of processes
	SamplePeriod                           float64 // of these, in seconds
	BusySince                              float64 // seconds since 1970 before which no process ran
	Counters                               Counters
	Processes                              [maxProcesses]Process
	Instances                              [MaxInstances]Instance
	uuid, name                             [64]byte
	serial, vbios                          [32]byte
}

// Throttled has the seconds in which a GPU was throttled, by reason.
type Throttled struct {
	Power, Thermal, SyncBoost, BoardLimit, Reliability float64
	SoftThermal, HardThermal, PowerBrake               float64
}

// Condition is the condition of a GPU's hardware: flags are 0 or 1.
type Condition struct {
	RemapPending, RemapFailed, RetirementPending, ChannelRepair, TPCRepair float64
	SRAMThreshold, Unrepairable                                            float64
	RecoveryAction                                                         float64 // nvmlDeviceGpuRecoveryAction_t
	LifetimeCorrected, LifetimeUncorrected                                 float64 // ECC errors
	LimitEnforced, LimitDefault, LimitMin, LimitMax                        float64 // watts
	PerformanceState                                                       float64
	Throttling                                                             float64 // nvmlClocksEventReason*
	LinkWidth, LinkWidthMax, LinkGeneration, LinkGenerationMax             float64
	ClockSMMax, ClockMemoryMax                                             float64 // hertz
	NVLinkCRC, NVLinkReplay, NVLinkRecovery                                float64
	NVLink5Recovery                                                        float64 // of NVLink 5; below 0: refused
	FabricState, FabricStatus, FabricSummary                               float64 // as nvmlGpuFabricInfo_v3_t has them
	Margin, Fan                                                            float64
}

// Counters are the basis of GPM's metrics: integrals over time of shares and rates, by
// NVML_GPM_METRIC_*.
type Counters struct {
	Seconds float64
	Total   [maxMetrics]float64
	rate    [maxMetrics]float64 // of the last Advance
}

// Process is a process on a GPU; GPUInstance is -1 for none.
type Process struct {
	PID, Graphics       int64
	MPS                 int64 // not 0: it is a client of MPS
	Memory, Utilization float64
	GPUInstance         int64
}

// Instance is a MIG device.
type Instance struct {
	Present, GPUInstance, ComputeInstance, Profile, Start, Size int64

	MemoryTotal, MemoryReserved, Memory float64
	Counters                            Counters
	uuid, name                          [64]byte
}

type event struct{ gpu, xid, gpuInstance, computeInstance int64 }

// SetUUID sets a GPU's UUID and name.
func (g *GPU) SetUUID(uuid, name string) { g.uuid, g.name = text(uuid), text(name) }

// SetBoard sets a GPU's serial number and VBIOS version.
func (g *GPU) SetBoard(serial, vbios string) {
	g.serial, g.vbios = [32]byte{}, [32]byte{}
	copy(g.serial[:len(g.serial)-1], serial)
	copy(g.vbios[:len(g.vbios)-1], vbios)
}

// SetDriver sets the version of the machine's driver, such as 580.65.06, from the next session on.
// The numbers of fields then have their meaning in that driver.
func (s *State) SetDriver(version string) { s.driverVersion = text(version) }

// UUID returns the GPU's UUID.
func (g *GPU) UUID() string { return untext(g.uuid[:]) }

// SetUUID sets a MIG device's UUID and name.
func (m *Instance) SetUUID(uuid, name string) { m.uuid, m.name = text(uuid), text(name) }

// UUID returns the MIG device's UUID.
func (m *Instance) UUID() string { return untext(m.uuid[:]) }

func text(s string) (b [64]byte) {
	copy(b[:len(b)-1], s)
	return b
}

func untext(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// Advance advances GPM's counters by a time in which each metric had a constant value: a share of
// 1, or bytes per second. Other metrics are not supported.
func (c *Counters) Advance(seconds float64, values map[int]float64) {
	c.Seconds += seconds
	for i := range c.Total {
		c.rate[i] = values[i]
		if v, ok := values[i]; ok {
			if math.IsNaN(c.Total[i]) {
				c.Total[i] = 0
			}
			c.Total[i] += v * seconds
		} else {
			c.Total[i] = math.NaN()
		}
	}
}

// XID makes the driver report an error of a GPU and, unless it is -1, of a GPU instance.
func (s *State) XID(gpu, xid, gpuInstance, computeInstance int) {
	s.events[s.written%maxEvents] = event{int64(gpu), int64(xid), int64(gpuInstance), int64(computeInstance)}
	s.written++
}

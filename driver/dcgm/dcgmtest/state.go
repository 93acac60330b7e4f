package dcgmtest

import "bytes"

// Bounds of a machine, as in fake/state.h.
const (
	MaxGPUs      = 32
	MaxInstances = 8
	maxEvents    = 64
	maxFunctions = 32
	maxGroups    = 16
	maxEntities  = 160
	maxFields    = 64

	magic = 0x4443474d646f7562
)

// State mirrors the struct state of fake/state.h, which describes it. Values are in base units; NaN
// means that the device does not support the value.
type State struct {
	magic, size   uint64
	Down          int64 // not 0 if no engine listens
	Engine        int64 // number of starts of the engine; connections to an earlier one are closed
	Early         int64 // not 0 if it is an earlier DCGM 4: without the numbers from 1507 on
	Profiling     int64 // the dcgmReturn_t of requests for profiling metrics
	Pipes         int64 // the same for those of the pipes of multiprocessors
	Connections   int64
	Misuse        int64 // calls that the header forbids
	Count         int64 // of GPUs
	CUDAVersion   int64 // as DCGM_FI_CUDA_DRIVER_VERSION has it
	Values        int64 // that were delivered
	Embedded      int64 // not 0 if an engine runs in this process
	written       int64
	Time          float64 // now, in seconds since 1970
	calls         [maxFunctions]uint64
	fail, hang    [maxFunctions]int64
	events        [maxEvents]event
	groups        [maxGroups]group
	fieldGroups   [maxGroups]fieldGroup
	GPUs          [MaxGPUs]GPU
	driverVersion [64]byte
}

// Work has the fields that GPUs and GPU instances share.
type Work struct {
	Graphics, SM, Occupancy, Tensor, DRAM float64
	FP64, FP32, FP16, Integer             float64
	MemoryTotal, Memory, MemoryReserved   float64
}

// Instance is a GPU instance.
type Instance struct {
	Present, GPUInstance, ComputeInstances, Profile int64

	Work Work

	name [64]byte // of its profile
}

// GPU is a GPU of the machine.
type GPU struct {
	Lost                                    int64 // not 0 if it has fallen off the bus
	Stalled                                 int64 // not 0 if the engine does not refresh its values
	MIG, Health, PCIBus                     int64 // Health: a dcgmHealthWatchResults_t
	Work                                    Work
	Utilization, MemoryUtilization          float64
	Encoder, Decoder                        float64
	Power, Energy                           float64
	Temperature, MemoryTemperature          float64
	ClockSM, ClockMemory, ClockVideo        float64
	PCIeTransmitRate, PCIeReceiveRate       float64
	NVLinkTransmitRate, NVLinkReceiveRate   float64
	ThrottledPower, ThrottledThermal        float64
	ThrottledSyncBoost, ThrottledBoardLimit float64
	ThrottledReliability                    float64
	Corrected, Uncorrected, PCIeReplays     float64
	RemappedCorrected, RemappedUncorrected  float64
	RetiredSBE, RetiredDBE                  float64
	Condition                               Condition
	Instances                               [MaxInstances]Instance
	uuid, name                              [64]byte
	serial, vbios                           [32]byte
}

// Condition is the condition of a GPU's hardware: flags are 0 or 1.
type Condition struct {
	RemapPending, RemapFailed, RetirementPending float64
	SRAMThreshold, Unrepairable                  float64
	RecoveryAction                               float64 // nvmlDeviceGpuRecoveryAction_t
	LifetimeCorrected, LifetimeUncorrected       float64 // ECC errors
	LimitEnforced, LimitDefault                  float64 // watts
	LimitMin, LimitMax                           float64
	PerformanceState                             float64
	Throttling                                   float64 // DCGM_CLOCKS_EVENT_REASON_*
	LinkWidth, LinkWidthMax                      float64
	LinkGeneration, LinkGenerationMax            float64
	ClockSMMax, ClockMemoryMax                   float64 // hertz
	NVLinkCRC, NVLinkReplay, NVLinkRecovery      float64
	NVLink5Recovery                              float64 // of NVLink 5
	FabricStatus, FabricSummary                  float64 // as DCGM has them
	Margin, Fan                                  float64
}

type event struct {
	gpu, instance, compute, xid int64
	time                        float64
}

type group struct {
	used, count int64
	kinds, ids  [maxEntities]int64
}

type fieldGroup struct {
	used, count     int64
	fields          [maxFields]int64
	watched, group  int64
	begun, interval float64
}

// UUID returns the GPU's UUID.
func (g *GPU) UUID() string {
	b, _, _ := bytes.Cut(g.uuid[:], []byte{0})
	return string(b)
}

func text(s string) (b [64]byte) {
	copy(b[:len(b)-1], s)
	return b
}

// XID reports an error of a GPU now and, unless they are -1, of the instance and compute instance
// at these positions.
func (s *State) XID(gpu, xid, instance, compute int) {
	s.events[s.written%maxEvents] = event{int64(gpu), int64(instance), int64(compute), int64(xid), s.Time}
	s.written++
}

// Groups returns the numbers of groups of entities and of fields that the engine has.
func (s *State) Groups() (entities, fields int) {
	for i := range maxGroups {
		entities += int(s.groups[i].used)
		fields += int(s.fieldGroups[i].used)
	}
	return entities, fields
}

package stalltest

import "math"

// Field is a value of a sample.
type Field uint8

// The fields. Those up to NetworkTransmitted belong to the device, the others to the cgroups and
// the network namespace of the claim's pods.
const (
	Busy      Field = iota // share of time in which any kernel ran
	SM                     // share of SMs with at least one warp, over time
	Occupancy              // resident warps as a share of what the device can hold
	Tensor                 // shares of time of the pipes
	FP64
	FP32
	FP16
	Int
	DRAM // share of the memory's bandwidth, or of the time in which the memory was used
	Copy // share of time of the copy engines
	Decoder
	Encoder
	JPEG
	OFA
	MemoryUsed // bytes
	Power      // watts
	Clock      // hertz, of the SMs
	ClockMax   // hertz

	Energy             // joules so far
	PCIeReceived       // bytes so far, by the device
	PCIeTransmitted    // bytes so far
	FabricReceived     // bytes so far over NVLink or XGMI
	FabricTransmitted  // bytes so far
	NetworkReceived    // bytes so far over the claim's RDMA or network device
	NetworkTransmitted // bytes so far
	HostCPU            // seconds so far: usage_usec of cpu.stat
	HostRead           // bytes so far: rbytes of io.stat
	HostWritten        // bytes so far: wbytes of io.stat
	PageFaults         // so far: pgfault of memory.stat
	MajorFaults        // so far: pgmajfault of memory.stat
	HostAnon           // bytes: anon of memory.stat
	HostFile           // bytes: file of memory.stat
	PodReceived        // bytes so far, by the interfaces of the pod's network namespace
	PodTransmitted     // bytes so far
	NumFields          // the number of fields, not one of them

	firstCounter = Energy
	firstHost    = HostCPU
)

// Values has a value for each field, NaN if the telemetry does not measure it.
type Values [NumFields]float64

// IsCounter reports whether the values only grow.
func (f Field) IsCounter() bool {
	return f >= firstCounter && f < NumFields && f != HostAnon && f != HostFile
}

// Host reports whether the value is of the pods' cgroups or network, and not of the device.
func (f Field) Host() bool { return f >= firstHost && f < NumFields }

// noValues returns values that are not measured.
func noValues() (v Values) {
	for f := range v {
		v[f] = math.NaN()
	}
	return v
}

package stalltest

import (
	"math"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

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

// String returns the field's name: that of the quantity and its labels for a device, that of the
// file and its key for a cgroup.
func (f Field) String() string {
	if q, labels, ok := f.Reading(); ok {
		name := []string{q.String()}
		for _, label := range labels {
			if label != "" {
				name = append(name, label)
			}
		}
		return strings.Join(name, "/")
	}
	switch f {
	case HostCPU:
		return "cpu.stat usage_usec"
	case HostRead:
		return "io.stat rbytes"
	case HostWritten:
		return "io.stat wbytes"
	case PageFaults:
		return "memory.stat pgfault"
	case MajorFaults:
		return "memory.stat pgmajfault"
	case HostAnon:
		return "memory.stat anon"
	case HostFile:
		return "memory.stat file"
	case PodReceived:
		return "pod network receive"
	case PodTransmitted:
		return "pod network transmit"
	default:
		return ""
	}
}

// IsCounter reports whether the values only grow.
func (f Field) IsCounter() bool {
	return f >= firstCounter && f < NumFields && f != HostAnon && f != HostFile
}

// Host reports whether the value is of the pods' cgroups or network, and not of the device.
func (f Field) Host() bool { return f >= firstHost && f < NumFields }

// Reading returns the quantity and the labels with which a driver reports the field. The link of
// the fabric is nvlink, that of the network rdma. ok is false for the fields of the host.
func (f Field) Reading() (q driver.Quantity, labels driver.Labels, ok bool) {
	switch f {
	case Busy:
		return driver.Utilization, labels, true
	case Occupancy:
		return driver.Occupancy, labels, true
	case SM, Tensor, FP64, FP32, FP16, Int, DRAM, Copy, Decoder, Encoder, JPEG, OFA:
		return driver.EngineUtilization, driver.Labels{f.engine()}, true
	case MemoryUsed:
		return driver.MemoryUsed, labels, true
	case Power:
		return driver.Power, labels, true
	case Clock:
		return driver.Clock, driver.Labels{"sm"}, true
	case ClockMax:
		return driver.ClockMax, driver.Labels{"sm"}, true
	case Energy:
		return driver.Energy, labels, true
	case PCIeReceived:
		return driver.IOBytes, driver.Labels{"pcie", "receive"}, true
	case PCIeTransmitted:
		return driver.IOBytes, driver.Labels{"pcie", "transmit"}, true
	case FabricReceived:
		return driver.IOBytes, driver.Labels{"nvlink", "receive"}, true
	case FabricTransmitted:
		return driver.IOBytes, driver.Labels{"nvlink", "transmit"}, true
	case NetworkReceived:
		return driver.IOBytes, driver.Labels{"rdma", "receive"}, true
	case NetworkTransmitted:
		return driver.IOBytes, driver.Labels{"rdma", "transmit"}, true
	default:
		return 0, labels, false
	}
}

func (f Field) engine() string {
	return map[Field]string{
		SM: "sm", Tensor: "tensor", FP64: "fp64", FP32: "fp32", FP16: "fp16", Int: "int", DRAM: "dram", Copy: "copy",
		Decoder: "decoder", Encoder: "encoder", JPEG: "jpeg", OFA: "ofa",
	}[f]
}

// noValues returns values that are not measured.
func noValues() (v Values) {
	for f := range v {
		v[f] = math.NaN()
	}
	return v
}

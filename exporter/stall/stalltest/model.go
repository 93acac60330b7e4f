package stalltest

// Model is a model of a device: its size, its levels of power and its clocks.
type Model struct {
	Name   string
	SMs    int     // or compute units
	Memory float64 // bytes

	// IdleWatts is drawn without a context, ContextWatts with an idle one. Hopper and older keep
	// high clocks while a context is open.
	IdleWatts, ContextWatts, LimitWatts float64
	// Watts above ContextWatts at a full share of each activity.
	SMWatts, TensorWatts, FP64Watts, FP32Watts, IntWatts, DRAMWatts, L2Watts float64

	ClockIdle, ClockMax float64 // hertz
	// ReadingReceived and ReadingTransmitted are the bytes per second over PCIe that reading the
	// device's counters causes from the first context on.
	ReadingReceived, ReadingTransmitted float64
}

// The levels of the H100 and the H200 come from recordings: 70 to 73 W without a context, 115 to
// 123 W with one, 294 W at fp32 .30 and int .12, 415 to 483 W at int 1, 263 W for dependent loads
// in L2, 4 to 8 W for a spin on 16 of 132 SMs; 549 W at fp64 .77 and int .29, 626 W at dram .61 and
// int .36, 695 W at tensor .47 and dram .36. The other models are scaled to their limit of power;
// their idle levels are those that users report from nvidia-smi and rocm-smi.

// H100 is an NVIDIA H100 SXM.
func H100() Model {
	return Model{
		Name: "NVIDIA H100 80GB HBM3", SMs: 132, Memory: 80 * gib,
		IdleWatts: 71.5, ContextWatts: 118, LimitWatts: 700,
		SMWatts: 33, TensorWatts: 640, FP64Watts: 395, FP32Watts: 390, IntWatts: 300, DRAMWatts: 600, L2Watts: 110,
		ClockIdle: 345e6, ClockMax: 1980e6, ReadingReceived: 0.21e6, ReadingTransmitted: 0.48e6,
	}
}

// scaled returns a model with the power of activities of the H100, scaled to another range of
// power.
func scaled(name string, sms int, memoryGiB, idle, context, limit, clock float64) Model {
	m := H100()
	by := (limit - context) / (m.LimitWatts - m.ContextWatts)
	m.Name, m.SMs, m.Memory = name, sms, memoryGiB*gib
	m.IdleWatts, m.ContextWatts, m.LimitWatts = idle, context, limit
	for _, watts := range []*float64{
		&m.SMWatts, &m.TensorWatts, &m.FP64Watts, &m.FP32Watts, &m.IntWatts, &m.DRAMWatts, &m.L2Watts,
	} {
		*watts *= by
	}
	m.ClockMax = clock
	return m
}

// A100 is an NVIDIA A100 SXM.
func A100() Model { return scaled("NVIDIA A100-SXM4-80GB", 108, 80, 52, 72, 400, 1410e6) }

// H200 is an NVIDIA H200 SXM (recorded).
func H200() Model {
	m := scaled("NVIDIA H200", 132, 141, 80, 124, 700, 1980e6)
	m.ReadingReceived, m.ReadingTransmitted = 0.39e6, 0.67e6
	return m
}

// L4 is an NVIDIA L4: without a context 12 W, with one 28 W.
func L4() Model { return scaled("NVIDIA L4", 58, 23, 12, 28, 72, 2040e6) }

// V100 is an NVIDIA V100 SXM: 53 W with a context, 65 to 78 W in a collective that waits
// (github.com/pytorch/pytorch/issues/22671, github.com/zai-org/GLM-130B/issues/32), so that a spin
// draws more of its range than on an H100.
func V100() Model {
	m := scaled("Tesla V100-SXM2-32GB", 80, 32, 40, 53, 300, 1530e6)
	m.SMWatts = 100
	return m
}

// R9700 is an AMD Radeon AI PRO R9700.
func R9700() Model { return scaled("AMD Radeon AI PRO R9700", 64, 32, 17, 44, 300, 2920e6) }

const (
	gib = 1 << 30
)

// Telemetry is what can be measured of a device.
type Telemetry uint8

// The kinds of telemetry.
const (
	// FullGPM is everything: NVML with GPM (Hopper and newer), or DCGM with all profiling fields.
	FullGPM Telemetry = iota
	// DCGMDefault is what dcgm-exporter serves without configuration: utilization, memory copy or
	// DRAM activity, tensor, decoder and encoder, PCIe and NVLink, power, clock, memory.
	DCGMDefault
	// NVMLOnly is NVML without GPM (Ampere and older): utilization, and that of the memory, which
	// stands for DRAM; decoder and encoder, PCIe, power, clock, memory.
	NVMLOnly
	// AMDSysfs is gpu_busy_percent and mem_busy_percent, power, clock, memory and XGMI.
	AMDSysfs
)

// Measures reports whether the telemetry has the field. All have those of the host: whether cgroups
// can be read does not depend on the device.
func (t Telemetry) Measures(f Field) bool {
	if f.Host() || f == Busy || f == MemoryUsed {
		return true
	}
	switch f {
	case SM, Occupancy, FP64, FP32, FP16, Int, JPEG, OFA:
		return t == FullGPM
	case Copy:
		return t == AMDSysfs
	case Tensor:
		return t == FullGPM || t == DCGMDefault
	case Decoder, Encoder, PCIeReceived, PCIeTransmitted:
		return t <= NVMLOnly
	default:
		return true
	}
}

package stalltest

// Load is what a job does during a phase: shares of time for the engines, amounts per second for
// traffic and work, levels for memory. The zero value is a process that has not opened the device
// and does nothing.
type Load struct {
	// Context means that a process has a context on the device: it keeps its clocks high.
	Context bool

	Busy, SM, Occupancy, Tensor, FP64, FP32, FP16, Int, DRAM float64
	Copy, Decoder, Encoder, JPEG, OFA                        float64
	L2                                                       float64 // no telemetry measures it; it draws power
	Memory                                                   float64 // bytes in use on the device
	Clock                                                    float64 // share of the maximum; 0: what the device chooses
	// Noise is the relative spread of the engines' values from second to second; 0 means 0.03.
	Noise float64

	// Bytes per second over PCIe: what the device receives and transmits.
	ToDevice, FromDevice float64
	Fabric               float64 // bytes per second each way over NVLink or XGMI
	// Bytes per second over the claim's RDMA or network device.
	NetworkIn, NetworkOut float64

	// The pods' cgroups: CPU seconds per second (1 is one busy thread), bytes and faults per second,
	// and bytes of memory.
	CPU, Read, Written, Faults, MajorFaults, Anon, File float64
	// Bytes per second of the pod's own interfaces.
	PodIn, PodOut float64
}

// rates are a load as the values of a second: shares, levels, and for counters what one second
// adds.
func (l Load) rates(m *Model) (v Values) {
	v[Busy], v[SM], v[Occupancy], v[Tensor] = l.Busy, l.SM, l.Occupancy, l.Tensor
	v[FP64], v[FP32], v[FP16], v[Int], v[DRAM] = l.FP64, l.FP32, l.FP16, l.Int, l.DRAM
	v[Copy], v[Decoder], v[Encoder], v[JPEG], v[OFA] = l.Copy, l.Decoder, l.Encoder, l.JPEG, l.OFA
	v[MemoryUsed], v[ClockMax] = l.Memory, m.ClockMax
	v[Power], v[Clock] = l.power(m)
	v[Energy] = v[Power]
	v[PCIeReceived], v[PCIeTransmitted] = l.ToDevice, l.FromDevice
	v[FabricReceived], v[FabricTransmitted] = l.Fabric, l.Fabric
	v[NetworkReceived], v[NetworkTransmitted] = l.NetworkIn, l.NetworkOut
	v[HostCPU], v[HostRead], v[HostWritten] = l.CPU, l.Read, l.Written
	v[PageFaults], v[MajorFaults], v[HostAnon], v[HostFile] = l.Faults, l.MajorFaults, l.Anon, l.File
	v[PodReceived], v[PodTransmitted] = l.PodIn, l.PodOut
	return v
}

// power returns the watts and the clock of the SMs. At the limit of power the device lowers its
// clock.
func (l Load) power(m *Model) (watts, clock float64) {
	if !l.Context {
		return m.IdleWatts, m.ClockIdle
	}
	share := 1.0
	if l.Clock > 0 {
		share = l.Clock
	}
	above := l.SM*m.SMWatts + l.Tensor*m.TensorWatts + l.FP64*m.FP64Watts + (l.FP32+l.FP16)*m.FP32Watts +
		l.Int*m.IntWatts + l.DRAM*m.DRAMWatts + l.L2*m.L2Watts +
		(l.Copy+l.Decoder+l.Encoder+l.JPEG+l.OFA)*mediaWatts
	above *= share
	if room := m.LimitWatts - m.ContextWatts; above > room {
		share *= max(room/above, lowestClock)
		above = room
	}
	return m.ContextWatts + above, m.ClockMax * share
}

const (
	mediaWatts  = 8    // of a busy copy, decode or encode engine
	lowestClock = 0.55 // share of the maximum under a limit of power
)

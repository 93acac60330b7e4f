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

// The loads from which kinds are built. Each function names its evidence; the levels of the host
// are those of a PyTorch process unless a kind sets its own.

// rest is what a pod does that waits: a Python process with its threads, and probes of the kubelet.
func rest() Load {
	return Load{CPU: 0.01, Faults: 4, Anon: 3 * gib, File: 1 * gib, PodIn: 200, PodOut: 300}
}

// open is a process at rest with a context and memory on the device.
func open(memoryGiB float64) Load {
	l := rest()
	l.Context, l.Memory, l.Noise = true, memoryGiB*gib, 0.003
	return l
}

// start is the start of a PyTorch process: imports, then CUDA (recorded: the first seconds of each
// segment).
func start() Load { return rest().host(1, 9000).disk(2e6, 0) }

// cpu sets the CPU time per second.
func (l Load) cpu(threads float64) Load {
	l.CPU = threads
	return l
}

// host sets the CPU time and the page faults per second.
func (l Load) host(threads, faults float64) Load {
	l.CPU, l.Faults = threads, faults
	return l
}

// disk sets the bytes per second of block devices.
func (l Load) disk(read, written float64) Load {
	l.Read, l.Written = read, written
	return l
}

// net sets the bytes per second of the pod's own interfaces.
func (l Load) net(in, out float64) Load {
	l.PodIn, l.PodOut = in, out
	return l
}

// pcie sets the bytes per second to and from the device.
func (l Load) pcie(to, from float64) Load {
	l.ToDevice, l.FromDevice = to, from
	return l
}

// links sets the bytes per second each way over NVLink or XGMI, and over RDMA.
func (l Load) links(fabric, rdma float64) Load {
	l.Fabric, l.NetworkIn, l.NetworkOut = fabric, rdma, rdma
	return l
}

// grown sets the memory of the host in GiB: anonymous and of files.
func (l Load) grown(anon, file float64) Load {
	l.Anon, l.File = anon*gib, file*gib
	return l
}

// duty returns the load with a share of its engines' time, for rhythms below a second.
func (l Load) duty(share float64) Load {
	for _, v := range []*float64{
		&l.Busy, &l.SM, &l.Occupancy, &l.Tensor, &l.FP64, &l.FP32, &l.FP16, &l.Int, &l.DRAM, &l.L2, &l.Copy, &l.Decoder,
		&l.Encoder, &l.JPEG, &l.OFA, &l.ToDevice, &l.FromDevice, &l.Fabric, &l.NetworkIn, &l.NetworkOut,
	} {
		*v *= share
	}
	return l
}

// trainBF16 is training in bfloat16 with large matrices (recorded: train_bf16).
func trainBF16(memoryGiB float64) Load {
	l := open(memoryGiB).host(1.6, 300).disk(8e6, 2e3).pcie(40e6, 8.5e6)
	l.Busy, l.SM, l.Occupancy, l.Tensor, l.FP32, l.Int, l.DRAM, l.Noise = 0.985, 0.9, 0.36, 0.465, 0.022, 0.16, 0.35, 0.04
	return l
}

// decode is the generation of tokens, which reads the weights for each (recorded: infer_decode,
// with layers that are small for the device; a full batch reads memory for half of the time).
func decode(memoryGiB, share float64) Load {
	l := open(memoryGiB).host(1.1, 60).pcie(30e6, 6e6).net(20e3, 60e3)
	l.Busy, l.SM, l.Occupancy, l.Tensor, l.FP32, l.Int, l.DRAM, l.Noise = 0.95, 0.6, 0.1, 0.05, 0.006, 0.05, 0.55, 0.08
	return l.duty(share)
}

// spin waits in a kernel that polls flags in the device's memory with blocks of 512 threads, as
// NCCL's kernel does with one block for each channel (recorded: hang_spin_device with 16 blocks).
// The process's thread spins in cudaStreamSynchronize (recorded: one CPU).
func spin(memoryGiB float64, blocks int) Load {
	l := open(memoryGiB).cpu(1.01)
	share := float64(blocks) / 132
	l.Busy, l.SM, l.Occupancy, l.Int = 1, share, share/4, share*0.027
	return l
}

// spinNet is a spin in a collective over the network: NCCL's proxy thread polls too
// (github.com/NVIDIA/nccl/issues/374).
func spinNet(memoryGiB float64, blocks int) Load { return spin(memoryGiB, blocks).cpu(2.02) }

// spinHostFlag polls a flag in pinned memory of the host with two blocks (recorded:
// hang_spin_hostflag).
func spinHostFlag(memoryGiB float64) Load {
	l := open(memoryGiB).cpu(1.01).pcie(45e6, 18.5e6)
	l.Busy, l.SM, l.Occupancy = 1, 0.0151, 0.0038
	return l
}

// mcFP32 is a Monte Carlo in single precision (recorded: mc_fp32).
func mcFP32() Load {
	l := open(0.52).cpu(1)
	l.Busy, l.SM, l.Occupancy, l.FP32, l.Int, l.Noise = 1, 1, 0.6, 0.298, 0.119, 0.01
	return l
}

// hash works with integers alone (recorded: int_hash).
func hash() Load {
	l := open(0.52).cpu(1)
	l.Busy, l.SM, l.Occupancy, l.Int, l.Noise = 1, 0.985, 0.67, 1, 0.01
	return l
}

func oneBlockInt() Load {
	l := open(0.52).cpu(1)
	l.Busy, l.SM, l.Occupancy, l.Int = 1, 0.0076, 0.0002, 0.0018
	return l
}

// chase follows pointers in L2: no pipe works, and no memory (recorded: pointer_chase).
func chase() Load {
	l := open(0.53).cpu(1)
	l.Busy, l.SM, l.Occupancy, l.Int, l.L2 = 1, 1, 0.0625, 0.0128, 1
	return l
}

// stencil is a solver on a grid in double precision, bound by memory.
func stencil(memoryGiB float64) Load {
	l := open(memoryGiB).cpu(1)
	l.Busy, l.SM, l.Occupancy, l.FP64, l.Int, l.DRAM, l.Noise = 0.97, 0.93, 0.45, 0.16, 0.14, 0.72, 0.03
	return l
}

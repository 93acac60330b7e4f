package stalltest

// The loads from which kinds are built. Each function names its evidence.

// rest is what a pod does that waits: a Python process with its threads, probes of the kubelet.
func rest() Load {
	return Load{CPU: 0.01, Faults: 4, Anon: 3 * gib, File: 1 * gib, PodIn: 200, PodOut: 300}
}

// open is a process at rest with a context and memory on the device.
func open(memoryGiB float64) Load {
	l := rest()
	l.Context, l.Memory = true, memoryGiB*gib
	return l
}

// trainBF16 is a step of training in bfloat16 with large matrices.
func trainBF16(memoryGiB float64) Load {
	l := open(memoryGiB)
	l.Busy, l.SM, l.Occupancy, l.Tensor, l.FP32, l.FP16, l.Int, l.DRAM = 0.99, 0.88, 0.3, 0.46, 0.06, 0.01, 0.1, 0.38
	l.ToDevice, l.FromDevice, l.CPU, l.Faults, l.Read = 40e6, 8e6, 2.4, 2500, 60e6
	return l
}

// spinNCCL waits in a collective: NCCL's kernel has one block of 512 threads or so for each channel,
// here 16, which polls flags (recorded: hang_spin_device). The thread of the process spins in
// cudaStreamSynchronize.
func spinNCCL(memoryGiB float64) Load {
	l := open(memoryGiB)
	l.Busy, l.SM, l.Occupancy, l.Int, l.CPU, l.Noise = 1, 0.1212, 0.0303, 0.0031, 1.02, 0.003
	return l
}

// mcFP32 is a Monte Carlo in single precision (recorded: mc_fp32).
func mcFP32() Load {
	l := open(0.52)
	l.Busy, l.SM, l.Occupancy, l.FP32, l.Int, l.CPU = 1, 1, 0.6, 0.299, 0.12, 1.0
	return l
}

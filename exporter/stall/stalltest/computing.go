package stalltest

// computingKinds are simulations, rendering, genomics, cryptography and data processing.
func computingKinds() []Kind {
	return []Kind{
		job("fp32-monte-carlo", "kernels of seconds in registers: no memory traffic, no launches to speak of",
			"recording mc_fp32", work("simulate", 0, mcFP32())),
		job("fp32-monte-carlo-nvml", "the same where only the memory's utilization is measured",
			"recording mc_fp32, scaled", work("simulate", 0, mcFP32())).on(A100(), NVMLOnly),
		job("fp32-monte-carlo-utilization", "the same where nothing but utilization is measured", "recording mc_fp32",
			work("simulate", 0, mcFP32())).on(T4(), UtilizationOnly),
		job("fp64-monte-carlo", "double precision in registers", "recording mc_fp64", work("simulate", 0, mcFP64())),
		job("integer-hash", "integers only", "recording int_hash", work("search", 0, hash())),
		job("one-block-fp32", "one block of 256 threads works on one SM", "recording one_block_fp32",
			work("work", 0, oneBlockFP32())),
		job("one-block-integers", "one block of 64 threads works on one SM", "recording one_block_int",
			work("work", 0, oneBlockInt())),
		job("dependent-loads", "a table of 1 MB in L2 is followed pointer by pointer: only power shows it",
			"recording pointer_chase", work("walk", 0, chase())),
		job("dependent-loads-few-blocks", "the same in 16 blocks, with as little activity as a spin",
			"recording pointer_chase, a part of the SMs", work("walk", 0, chase().duty(0.121).whole())),
		job("dgemm", "double precision on the tensor pipe, at the limit of power", "recording matmul_fp64",
			work("multiply", 0, gemmFP64(2.3))),
		job("spectral-solver", "transforms, then a transposition through the host", "recording fft",
			loop(0, work("transform", 40*second, fft(60)),
				work("transpose", 20*second, open(60).host(6, 2e3).pcie(11e9, 11e9)))),
		job("cfd-host-phase", "an implicit solver computes on 30 CPUs for twelve minutes, the device idles", "reasoning",
			loop(0, work("explicit", 20*minute, stencil(40)), work("implicit on CPU", 12*minute, open(40).host(30, 200).
				grown(50, 1)))),
		job("cfd-host-phase-one-thread", "the same in one thread without new memory, as a direct solver's triangular solve",
			"reasoning", loop(0, work("explicit", 20*minute, stencil(40)),
				work("solve on CPU", 12*minute, open(40).host(1, 3).grown(50, 1)))),
		job("coupled-solver-polls", "the kernel polls a flag while the host prepares the next interval for nine minutes",
			"recordings hang_spin_hostflag, wait_tokenizing", loop(0, work("interval", 6*minute, stencil(30)),
				work("host prepares", 9*minute, spinHostFlag(30).host(12, 900)))),
		job("structure-prediction", "sequences are searched on the CPUs for an hour before the device is opened",
			"github.com/google-deepmind/alphafold3/issues/105",
			loop(0, work("search", hour, rest().host(8, 2e3).disk(700e6, 1e6).grown(8, 200)).spread(0.2),
				work("compile", 90*second, open(60).host(1.4, 9e3)), work("predict", 5*minute, trainBF16(60).duty(0.8)).
					spread(0.4))).on(A100(), FullGPM),
		job("data-frames", "joins and sorts in bursts, reads between them", "recording sort",
			loop(0, work("read", 20*second, open(30).host(4, 3e3).disk(900e6, 0).pcie(5e9, 1e6)).spread(0.3),
				work("sort", 12*second, sorting(60)).spread(0.3))),
		job("copies-only", "a cache for other devices: nothing but copies, no kernel", "recording memcpy_h2d",
			work("copy", 0, copies())),
		job("low-occupancy-solver", "four blocks integrate stiff equations in double precision for hours",
			"recording mc_fp64, a part of the SMs", work("integrate", 0, fewBlocksFP64())),
		job("half-precision-kernels", "own kernels in fp16 without tensors", "reasoning",
			work("compute", 0, halfPrecision())),
	}
}

// whole sets the device to busy all the time, as its other activity is.
func (l Load) whole() Load {
	l.Busy = 1
	return l
}

func slowClock(l Load, share float64) Load {
	l.Clock = share
	return l
}

func copies() Load {
	l := open(1.6).cpu(1).pcie(59e9, 3.5e9)
	l.DRAM, l.Noise = 0.0115, 0.05
	return l
}

func fewBlocksFP64() Load {
	l := open(0.6).cpu(1)
	l.Busy, l.SM, l.Occupancy, l.FP64, l.Int = 1, 4.0/132, 0.004, 0.0095, 0.003
	return l
}

func halfPrecision() Load {
	l := open(8).cpu(1)
	l.Busy, l.SM, l.Occupancy, l.FP16, l.Int, l.DRAM, l.Noise = 0.99, 0.97, 0.5, 0.38, 0.12, 0.2, 0.02
	return l
}

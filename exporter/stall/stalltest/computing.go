package stalltest

import "time"

// computingKinds are simulations, rendering, genomics, cryptography and data processing.
func computingKinds() []Kind { //nolint:funlen // a table
	return []Kind{
		job("fp32-monte-carlo", "kernels of seconds in registers: no memory traffic, no launches to speak of",
			"recording mc_fp32", work("simulate", 0, mcFP32())),
		job("fp32-monte-carlo-dcgm", "the same where tensor and DRAM are the only engines", "recording mc_fp32",
			work("simulate", 0, mcFP32())).on(H100(), DCGMDefault),
		job("fp32-monte-carlo-nvml", "the same where only the memory's utilization is measured",
			"recording mc_fp32, scaled", work("simulate", 0, mcFP32())).on(A100(), NVMLOnly),
		job("fp32-monte-carlo-utilization", "the same where nothing but utilization is measured", "recording mc_fp32",
			work("simulate", 0, mcFP32())).on(T4(), UtilizationOnly),
		job("fp64-monte-carlo", "double precision in registers", "recording mc_fp64", work("simulate", 0, mcFP64())),
		job("fp64-monte-carlo-dcgm", "the same with dcgm-exporter's default fields", "recording mc_fp64",
			work("simulate", 0, mcFP64())).on(H200(), DCGMDefault),
		job("fp64-monte-carlo-nvml", "the same without counters of pipes", "recording mc_fp64, scaled",
			work("simulate", 0, mcFP64())).on(V100(), NVMLOnly),
		job("integer-hash", "integers only", "recording int_hash", work("search", 0, hash())),
		job("integer-hash-nvml", "the same without counters of pipes", "recording int_hash, scaled",
			work("search", 0, hash())).on(A100(), NVMLOnly),
		job("hashcat-paused", "attacks of minutes with pauses in which rules are read", "recording int_hash",
			loop(0, work("attack", 14*minute, hash()).spread(0.4),
				work("next list", 3*minute, open(2).host(1, 3e3).disk(60e6, 0)))),
		job("one-block-fp32", "one block of 256 threads works on one SM", "recording one_block_fp32",
			work("work", 0, oneBlockFP32())),
		job("one-block-integers", "one block of 64 threads works on one SM", "recording one_block_int",
			work("work", 0, oneBlockInt())),
		job("one-block-dcgm", "the same with dcgm-exporter's default fields: nothing but utilization shows it",
			"recording one_block_int", work("work", 0, oneBlockInt())).on(H100(), DCGMDefault),
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
		job("molecular-dynamics", "single precision, small traffic each step", "reasoning: GROMACS",
			loop(0, work("steps", 30*minute, moleculeSteps()), work("write the trajectory", 5*second, open(3).host(2, 5e3).
				disk(0, 300e6)))),
		job("genomics", "alignment on the device, sorting and compressing on the CPUs for eight minutes",
			"reasoning: Parabricks", loop(0, work("align", 12*minute, hash().duty(0.6).host(20, 9e3).disk(250e6, 150e6)).
				spread(0.2), work("sort and compress", 8*minute, open(14).host(44, 70e3).disk(300e6, 260e6)).spread(0.2))),
		job("structure-prediction", "sequences are searched on the CPUs for an hour before the device is opened",
			"github.com/google-deepmind/alphafold3/issues/105",
			loop(0, work("search", hour, rest().host(8, 2e3).disk(700e6, 1e6).grown(8, 200)).spread(0.2),
				work("compile", 90*second, open(60).host(1.4, 9e3)), work("predict", 5*minute, trainBF16(60).duty(0.8)).
					spread(0.4))).on(A100(), FullGPM),
		job("rendering", "the acceleration structure is built on the CPUs for four minutes, then a frame is traced",
			"reasoning: Cycles", loop(0, work("build", 4*minute, open(12).host(22, 40e3).grown(20, 4)).spread(0.2),
				work("trace", 10*minute, render(16)).spread(0.2), work("denoise and write", 12*second, open(16).host(3, 3e3).
					disk(0, 30e6)))).on(L40S(), DCGMDefault),
		job("data-frames", "joins and sorts in bursts, reads between them", "recording sort",
			loop(0, work("read", 20*second, open(30).host(4, 3e3).disk(900e6, 0).pcie(5e9, 1e6)).spread(0.3),
				work("sort", 12*second, sorting(60)).spread(0.3))),
		job("copies-only", "a cache for other devices: nothing but copies, no kernel", "recording memcpy_h2d",
			work("copy", 0, copies())),
		job("quantum-circuit", "gates stream the state through memory", "reasoning", work("simulate", 0, fft(76))),
		job("zk-prover", "the witness is computed in six threads for six minutes, then integers on the device", "reasoning",
			loop(0, work("witness", 6*minute, open(30).host(6, 4e3).grown(60, 2)), work("prove", 9*minute, hash().duty(0.9)).
				spread(0.2))),
		job("seismic-imaging", "shots of 90 s, each read from a parallel file system that no block device counts",
			"reasoning", loop(0, work("read", 25*second, open(60).host(2, 2e3).pcie(3e9, 1e6).grown(30, 20)),
				work("migrate", 90*second, stencil(60)).spread(0.1))),
		job("environments-on-cpu", "a simulator runs in 24 processes, the policy is small",
			"reasoning: reinforcement learning", loop(0, work("simulate", 800*time.Millisecond, open(4).host(24, 900)),
				work("policy", 60*time.Millisecond, trainFP32(4)))),
		job("low-occupancy-solver", "four blocks integrate stiff equations in double precision for hours",
			"recording mc_fp64, a part of the SMs", work("integrate", 0, fewBlocksFP64())),
		job("half-precision-kernels", "own kernels in fp16 without tensors", "reasoning",
			work("compute", 0, halfPrecision())),
		job("clock-limited-night", "an operator lowers the clock by half for the night, the work goes on", "reasoning",
			loop(0, work("day", 14*hour, trainBF16(50)), work("night", 10*hour, slowClock(trainBF16(50), 0.5)))),
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

func moleculeSteps() Load {
	l := open(2.5).cpu(8).pcie(120e6, 90e6)
	l.Busy, l.SM, l.Occupancy, l.FP32, l.Int, l.DRAM, l.Noise = 0.93, 0.8, 0.35, 0.33, 0.14, 0.06, 0.03
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

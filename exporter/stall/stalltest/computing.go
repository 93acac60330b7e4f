package stalltest

// computingKinds are simulations, rendering, genomics, cryptography and data processing.
func computingKinds() []Kind {
	return []Kind{
		job("fp32-monte-carlo", "kernels of seconds in registers: no memory traffic, no launches to speak of",
			"recording mc_fp32", work("simulate", 0, mcFP32())),
		job("integer-hash", "integers only", "recording int_hash", work("search", 0, hash())),
		job("one-block-integers", "one block of 64 threads works on one SM", "recording one_block_int",
			work("work", 0, oneBlockInt())),
		job("dependent-loads", "a table of 1 MB in L2 is followed pointer by pointer: only power shows it",
			"recording pointer_chase", work("walk", 0, chase())),
		job("dependent-loads-few-blocks", "the same in 16 blocks, with as little activity as a spin",
			"recording pointer_chase, a part of the SMs", work("walk", 0, chase().duty(0.121).whole())),
		job("coupled-solver-polls", "the kernel polls a flag while the host prepares the next interval for nine minutes",
			"recordings hang_spin_hostflag, wait_tokenizing", loop(0, work("interval", 6*minute, stencil(30)),
				work("host prepares", 9*minute, spinHostFlag(30).host(12, 900)))),
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

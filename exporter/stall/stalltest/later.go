package stalltest

// laterKinds are healthy jobs that were written after the verdicts on the others had been seen:
// they look as much like a hang as a job that works can.
func laterKinds() []Kind {
	steps := stepsOverNetwork()
	// quiet is a spin whose process sleeps: cudaDeviceScheduleBlockingSync, or a sleeping poll.
	quiet := func(memoryGiB float64, blocks int) Load { return spin(memoryGiB, blocks).cpu(0.002) }
	return []Kind{
		job("bare-pods-sleep-in-barrier",
			"ranks are bare pods that environment variables join; their processes sleep while rank 0 on another node writes "+
				"for ten minutes", "reasoning: torchrun in plain pods, blocking synchronisation",
			loop(0, work("steps", 50*minute, steps), wait("barrier", 10*minute, OthersHost, quiet(72, 16)))).
			in(Pod{WorkloadKind: "Pod", Members: 4}),
		job("job-for-each-rank", "each rank is a Job of its own with one completion; rank 0 tokenizes for 35 minutes",
			"reasoning: launchers that create a Job for each rank", work("start", minute, start()),
			wait("barrier", 35*minute, OthersHost, quiet(2, 16)), work("steps", 0, steps)).
			in(Pod{WorkloadKind: "Job", Completions: 1, Parallelism: 1, Members: 4}),
		job("server-sleeps-in-broadcast",
			"a server over two devices waits for requests in a broadcast, its processes sleep",
			"github.com/zai-org/GLM-130B/issues/32", loop(0, work("requests", 5*minute, decode(74, 0.7).links(30e9, 0)).
				spread(0.5), Phase{Name: "no request", For: 5 * hour, Spread: 0.4, Truth: Idle, Load: quiet(74, 16).cpu(0.05).
				net(2e3, 3e3)})).in(deployment()).devices(2),
		job("packets-at-night",
			"a persistent kernel polls the rings of a network device; at night 300 packets a second come",
			"reasoning: DOCA GPUNetIO", loop(0, work("day", 16*hour, packets(1)), idle("night", 8*hour, packets(0.0005)))).
			in(Pod{WorkloadKind: "DaemonSet", Members: 1}),
		job("debugger-at-breakpoint", "a kernel stands at a breakpoint for half an hour while its user reads",
			"reasoning: cuda-gdb", loop(0, work("run", 9*minute, stencil(20)), Phase{
				Name: "breakpoint", For: 30 * minute,
				Spread: 0.5, Truth: Idle, Load: quiet(20, 60).net(400, 900),
			})).in(notebook()),
		job("work-queue-sleeps", "a persistent kernel sleeps between polls of its queue; tasks come each two hours",
			"recording hang_spin_nanosleep", loop(0, work("task", minute, mcFP32()),
				Phase{Name: "polls", For: 2 * hour, Spread: 0.5, Truth: Idle, Load: quiet(4, 16).net(1e3, 1e3)})).in(deployment()),
		job("storage-to-device",
			"the kernel waits for blocks that a storage device writes into its memory: no CPU, no page fault",
			"reasoning: GPUDirect Storage", loop(0, work("compute", 5*minute, stencil(60)),
				wait("read", 15*minute, OthersHost, quiet(60, 16).pcie(900e6, 1e6).disk(890e6, 0)))),
		job("frozen-by-checkpoint",
			"the pod is frozen and its memory written for twelve minutes, after its kernel was drained",
			"reasoning: cuda-checkpoint and CRIU", loop(0, work("steps", 3*hour, trainBF16(60)),
				work("frozen", 12*minute, open(60).host(0, 0).net(0, 0)))),
		job("solver-of-one-warp", "one warp solves a small sparse system for an hour, all its data in one SM's memory",
			"recording one_block_int, less", loop(0, work("solve", hour, oneBlockInt().duty(0.25).whole()),
				work("next system", 20*second, open(1).host(1, 900)))),
		job("spin-lock-contention", "blocks take turns in a critical section: most of them spin, one works", "reasoning",
			work("run", 0, contention())),
		job("warm-standby", "a replica of a trainer holds weights and waits for its turn in a barrier for a day",
			"reasoning: hot spares", work("start", minute, start()), wait("standby", 20*hour, OthersWork, quiet(70, 16)),
			work("steps", 0, steps)).in(jobSet(17)),
	}
}

// packets is a persistent kernel that polls the rings of a network device, with a share of its full
// traffic.
func packets(share float64) Load {
	l := spin(6, 8).cpu(0.02).pcie(4e6+3e9*share, 2e6+3e9*share)
	l.NetworkIn, l.NetworkOut = 3e9*share, 2.5e9*share
	l.Int += 0.05 * share
	return l
}

// contention is one block at work among 64 that spin.
func contention() Load {
	l := spin(2, 64).cpu(1)
	l.FP32, l.Int = l.FP32+0.0022, l.Int+0.0009
	return l
}

// laterHangs are hangs that were written after the verdicts on the others had been seen.
func laterHangs() []Kind {
	steps := stepsOverNetwork()
	return []Kind{
		job("hang-in-cold-start", "it hangs after a minute of work: there is little past to compare with", "reasoning",
			work("start", 40*second, start()), work("first steps", minute, trainBF16(40)), hang(OthersGone, spin(40, 16))).
			in(onePod()),
		job("hang-slow-memory", "the kernel polls a flag over NVLink in another device's memory", "reasoning",
			after(steps, OthersSpin, pollsPeer())...).in(onePod()).devices(2),
	}
}

// pollsPeer reads a flag over NVLink: some traffic, and no pipe.
func pollsPeer() Load {
	l := spin(40, 2).links(12e6, 0)
	l.Int = 0
	return l
}

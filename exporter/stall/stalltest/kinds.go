package stalltest

import (
	"slices"
	"time"
)

const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
)

// Healthy returns the kinds of jobs that never hang.
func Healthy() []Kind {
	return slices.Concat(trainingKinds(), memberKinds(), servingKinds(), computingKinds(), laterKinds())
}

// Hung returns the kinds of jobs that hang for ever after a while.
func Hung() []Kind { return slices.Concat(spinKinds(), quietKinds(), laterHangs()) }

// trainingKinds are healthy jobs that train on one node, or whose pod has no other members.
func trainingKinds() []Kind {
	ddp := trainBF16(70).host(14, 3000).disk(60e6, 8e3).links(60e9, 0)
	return []Kind{
		job("train-bf16", "steps without a pause, a checkpoint each half hour", "recordings train_bf16, train_checkpoint",
			work("start", 40*second, start()), loop(work("steps", 30*minute, trainBF16(40)).spread(0.02),
				work("checkpoint", 45*second, open(40).host(1, 119e3).disk(0, 450e6).pcie(5e6, 476e6)))),
		job("rank0-tokenizes-in-pod",
			"rank 0 of the same pod tokenizes with one thread, the others spin: as many threads are busy as would be in a "+
				"hang, but memory grows and files are read", "github.com/hiyouga/LlamaFactory/issues/2424",
			work("start", minute, start().cpu(8)), wait("rank 0 tokenizes", 35*minute, OthersHost, spin(2, 16).host(8, 1800).
				disk(6e6, 9e6).grown(40, 12)), work("steps", 0, ddp)).devices(8),
		job("checkpoint-10min-to-disk", "rank 0 gathers and writes 230 GB for ten minutes, the others wait in a barrier",
			"recording wait_checkpoint; size by reasoning", loop(work("steps", 50*minute, ddp),
				wait("checkpoint", 10*minute, OthersHost, spin(70, 16).host(8, 4e3).disk(0, 380e6)))).devices(8),
		job("validation-on-cpu",
			"each hour rank 0 computes scores for twelve minutes in one thread (COCO's evaluation), the others wait in a "+
				"barrier: as many threads are busy as would be in a hang",
			"github.com/jpata/particleflow/issues/390 and reasoning",
			loop(work("steps", hour, ddp), work("predict", 3*minute, ddp.duty(0.4)),
				wait("rank 0 scores", 12*minute, OthersHost, spin(70, 16).host(8, 450).grown(66, 20)))).devices(8),
		job("dev-pod-sleeps", "sleep infinity with a claim: nobody has opened the device yet", "reasoning",
			idle("sleep", 0, Load{Anon: 1e6, File: 2e6, CPU: 0.0001})),
	}
}

// memberKinds are healthy members of jobs that have others elsewhere.
func memberKinds() []Kind {
	steps := trainBF16(72).host(15, 3000).disk(50e6, 8e3).links(80e9, 6e9)
	return []Kind{
		job("checkpoint-elsewhere-no-labels",
			"the same, in bare pods that only environment variables join: nothing tells that it has members",
			"reasoning: torchrun in plain pods", loop(work("steps", 100*minute, steps),
				wait("barrier", 10*minute, OthersHost, spinNet(72, 16).cpu(16.2)))).devices(8).
			in(Pod{WorkloadKind: "Pod", Members: 4}),
		job("uneven-data-join", "members with fewer batches wait in Join for 15 minutes at the end of each epoch",
			"reasoning: DDP's join", loop(work("epoch", 2*hour, steps.cpu(3)),
				wait("join", 15*minute, OthersWork, spinNet(72, 16)))).in(pyTorchJob(8)),
		job("rl-trainer-waits", "the trainers wait 25 minutes in a broadcast for rollouts of other pods",
			"github.com/huggingface/open-r1/issues/620", loop(wait("broadcast", 25*minute, OthersWork, spinNet(60, 16)).
				spread(0.1), work("update", 6*minute, steps.cpu(3)))).in(rayCluster(9)),
		job("leader-worker-server",
			"the worker of a server over two nodes waits for requests in a receive, at full utilization, all night",
			"github.com/zai-org/GLM-130B/issues/32", loop(work("day", 14*hour, decode(74, 0.6).links(0, 700e6).cpu(2)),
				Phase{Name: "night", For: 10 * hour, Truth: Idle, Others: OthersIdle, Load: spinNet(74, 2)})).
			in(leaderWorkerSet(2)),
		job("nvshmem-waits", "a kernel of all SMs polls for data of another member, which reads files for 20 minutes",
			"reasoning", loop(work("steps", hour, stencil(50).links(40e9, 0)),
				wait("poll", 20*minute, OthersHost, spin(50, 132)))).in(mpiJob(2)),
	}
}

// servingKinds are servers and pipelines: idle is what they do when nobody asks.
func servingKinds() []Kind {
	return []Kind{
		job("vllm-tp2-spins-idle",
			"with two devices the worker waits for the next request in a broadcast: full utilization, nothing to do, for days",
			"github.com/vllm-project/vllm/issues/12664",
			loop(work("request", 20*second, decode(74, 0.9).links(30e9, 0).cpu(3)), Phase{
				Name: "no request", For: 3 * hour,
				Spread: 0.7, Truth: Idle, Load: spin(74, 16).cpu(2.1),
			})).in(deployment()).devices(2),
		job("glm-broadcast", "ranks wait for the next prompt in a broadcast at 66 W of a V100, rank 0 idles",
			"github.com/zai-org/GLM-130B/issues/32", loop(work("prompt", 40*second, decode(20, 0.9).links(10e9, 0)),
				Phase{Name: "no prompt", For: 70 * minute, Spread: 0.5, Truth: Idle, Load: spin(20, 16).cpu(8)})).in(onePod()).
			devices(8).on(V100(), NVMLOnly),
		job("nvenc-transcoding", "decoder and encoder work, the SMs do almost nothing", "reasoning",
			work("transcode", 0, transcode())).on(L4(), DCGMDefault).in(deployment()),
		job("amd-idle-model-resident",
			"amdgpu reports 100 % busy and boosts the clock as long as a compute context is resident, with nothing running",
			"github.com/ROCm/legacy-rocm-build/issues/5706, github.com/tobocop2/lilbee/issues/675",
			loop(work("answer", 30*second, decode(24, 0.9)), Phase{
				Name: "no request", For: 4 * hour, Spread: 0.4,
				Truth: Idle, Load: phantom(24),
			})).on(R9700(), AMDSysfs).in(deployment()),
		job("work-queue-in-kernel",
			"a persistent kernel polls a queue in the device's memory; a task comes each seven minutes", "reasoning",
			loop(work("task", 9*second, mcFP32()).spread(0.5), Phase{
				Name: "polls the queue", For: 7 * minute, Spread: 0.6,
				Truth: Idle, Load: spin(4, 132).cpu(0.3).net(2e3, 2e3),
			})).in(deployment()),
	}
}

func transcode() Load {
	l := open(2.5).host(1.5, 200).disk(4e6, 2e6).pcie(9e6, 5e6)
	l.Busy, l.SM, l.Occupancy, l.Decoder, l.Encoder, l.DRAM, l.Noise = 0.04, 0.01, 0.003, 0.55, 0.72, 0.06, 0.05
	return l
}

// phantom is a resident context that its driver reports as busy.
func phantom(memoryGiB float64) Load {
	l := open(memoryGiB)
	l.Busy = 1
	return l
}

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
			"recordings hang_spin_hostflag, wait_tokenizing", loop(work("interval", 6*minute, stencil(30)),
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

// after returns the phases of a job that trains for forty minutes and then hangs.
func after(l Load, others Others, hung Load) []Phase {
	return []Phase{work("start", 40*second, start()), work("steps", 40*minute, l), hang(others, hung)}
}

// spinKinds hang in a kernel that polls.
func spinKinds() []Kind {
	ddp := trainBF16(70).host(14, 3000).disk(60e6, 8e3).links(60e9, 0)
	steps := trainBF16(72).host(15, 3000).disk(50e6, 8e3).links(80e9, 6e9)
	return []Kind{
		job("hang-nccl-one-pod",
			"one of eight processes of the pod died without an error, the others wait in NCCL for ever",
			"github.com/facebookresearch/maskrcnn-benchmark/issues/659, recording hang_spin_device",
			after(ddp, OthersSpin, spin(70, 16).cpu(7.1))...).devices(8),
		job("hang-nccl-one-channel", "a send without its receive: one block polls", "recording hang_spin_device, one block",
			after(trainBF16(40), OthersSpin, spin(40, 1).cpu(2.1))...).devices(2),
		job("hang-spin-quiet-host", "the process waits with a blocking synchronisation and uses no CPU",
			"recording hang_after_training", after(trainBF16(40), OthersGone, spin(40, 16).cpu(0.001))...).in(onePod()),
		job("hang-nccl-network", "a member on another node died, the proxy threads poll the network",
			"github.com/NVIDIA/nccl/issues/374, marin-community/marin 7344",
			after(steps, OthersSpin, spinNet(72, 16).cpu(16.3))...).devices(8).in(pyTorchJob(64)),
		job("hang-with-observers",
			"threads that watch the process go on: metrics to a service each fifteen seconds, a heartbeat, a log line",
			"reasoning: wandb, PyTorch's heartbeat monitor", work("start", 40*second, start()), work("steps", 40*minute, ddp),
			loop(hangFor("quiet", 14*second, spin(70, 16).cpu(8.15)), hangFor("metrics", second, spin(70, 16).host(8.7, 900).
				disk(0, 60e3).net(9e3, 45e3)))).devices(8),
		job("hang-host-flag", "the kernel polls a flag in the host's memory that nobody will set: 64 MB/s over PCIe",
			"recording hang_spin_hostflag", after(stencil(30), OthersGone, spinHostFlag(30))...).in(onePod()),
		job("hang-all-sms", "a grid barrier that one block never reaches: all SMs poll",
			"reasoning: cooperative groups without enough blocks", after(stencil(30), OthersGone, spin(30, 132))...).
			in(onePod()),
		job("hang-dead-nic", "the network device sends the same 1.5 MB/s again and again, nothing comes back",
			"reasoning: retransmissions of RoCE", after(steps, OthersSpin, retransmits())...).in(pyTorchJob(8)),
		job("hang-at-first-collective", "a rank runs another collective than the others from the first step on",
			"github.com/cupy/cupy/issues/3557", work("start", 40*second, start()), hang(OthersSpin, spin(2, 16).cpu(2.1))).
			devices(2),
		job("hang-stopped", "someone stopped the process while a kernel polled", "recording hang_stopped",
			after(trainBF16(40), OthersSpin, spin(40, 16).cpu(0))...).in(onePod()),
		job("hang-one-sm-loops", "an endless loop in one block: it computes, but never ends",
			"recording one_block_int as its levels", after(hash(), OthersGone, oneBlockInt())...).in(onePod()),
	}
}

// quietKinds hang with an idle device, or with little activity that leads nowhere.
func quietKinds() []Kind {
	steps := trainBF16(72).host(3, 3000).disk(50e6, 8e3).links(80e9, 6e9)
	return []Kind{
		job("hang-dataloader-futex", "a deadlock after fork: all threads sleep, the device idles with its memory",
			"github.com/pytorch/pytorch/issues/1355, recording hang_idle",
			after(trainBF16(30), OthersGone, open(30).cpu(0.002))...),
		job("hang-mpi-poll", "MPI polls on sixteen CPUs for a member that died, the devices idle",
			"reasoning: MPI_Allreduce on the host", after(stencil(40).links(0, 2e9), InStep, open(40).cpu(16))...).
			in(mpiJob(4)).devices(4),
		job("hang-retry-loop", "item() each millisecond for ever: 0.95 MB/s over PCIe, no kernel to speak of",
			"recording hang_retry_loop", after(trainBF16(30), OthersGone, retries(0.0001, 0, 0.25e6))...),
		job("hang-retry-1.2MB", "a poller copies its flag and launches a small kernel: 60 % busy, 1.2 MB/s over PCIe",
			"reasoning", after(trainBF16(30), OthersGone, retries(0.6, 0.00005, 0.5e6))...),
		job("hang-retry-spins", "every 10 minutes the collective is aborted and tried again",
			"reasoning: retries of a resilient trainer", work("start", 40*second, start()), work("steps", 40*minute, steps),
			loop(hangFor("collective", 10*minute, spinNet(72, 16)),
				hangFor("abort", 20*second, open(72).host(1, 3e3).net(20e3, 20e3)))).in(pyTorchJob(4)),
	}
}

// hangFor is a part of a hang with a rhythm.
func hangFor(name string, length time.Duration, l Load) Phase {
	return Phase{Name: name, For: length, Truth: Hangs, Load: l}
}

// retries is a loop that launches a kernel and copies a flag.
func retries(busy, sm, bytes float64) Load {
	l := open(30).cpu(1).pcie(bytes*0.6, bytes*0.4)
	l.Busy, l.SM, l.Occupancy, l.Int, l.Noise = busy, sm, sm/8, sm*0.02, 0.05
	return l
}

func retransmits() Load {
	l := spinNet(72, 16)
	l.NetworkOut = 1.5e6
	return l
}

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
			loop(work("steps", 50*minute, steps), wait("barrier", 10*minute, OthersHost, quiet(72, 16)))).
			in(Pod{WorkloadKind: "Pod", Members: 4}),
		job("job-for-each-rank", "each rank is a Job of its own with one completion; rank 0 tokenizes for 35 minutes",
			"reasoning: launchers that create a Job for each rank", work("start", minute, start()),
			wait("barrier", 35*minute, OthersHost, quiet(2, 16)), work("steps", 0, steps)).
			in(Pod{WorkloadKind: "Job", Completions: 1, Parallelism: 1, Members: 4}),
		job("server-sleeps-in-broadcast",
			"a server over two devices waits for requests in a broadcast, its processes sleep",
			"github.com/zai-org/GLM-130B/issues/32", loop(work("requests", 5*minute, decode(74, 0.7).links(30e9, 0)).
				spread(0.5), Phase{Name: "no request", For: 5 * hour, Spread: 0.4, Truth: Idle, Load: quiet(74, 16).cpu(0.05).
				net(2e3, 3e3)})).in(deployment()).devices(2),
		job("packets-at-night",
			"a persistent kernel polls the rings of a network device; at night 300 packets a second come",
			"reasoning: DOCA GPUNetIO", loop(work("day", 16*hour, packets(1)), idle("night", 8*hour, packets(0.0005)))).
			in(Pod{WorkloadKind: "DaemonSet", Members: 1}),
		job("debugger-at-breakpoint", "a kernel stands at a breakpoint for half an hour while its user reads",
			"reasoning: cuda-gdb", loop(work("run", 9*minute, stencil(20)), Phase{
				Name: "breakpoint", For: 30 * minute,
				Spread: 0.5, Truth: Idle, Load: quiet(20, 60).net(400, 900),
			})).in(notebook()),
		job("work-queue-sleeps", "a persistent kernel sleeps between polls of its queue; tasks come each two hours",
			"recording hang_spin_nanosleep", loop(work("task", minute, mcFP32()),
				Phase{Name: "polls", For: 2 * hour, Spread: 0.5, Truth: Idle, Load: quiet(4, 16).net(1e3, 1e3)})).in(deployment()),
		job("storage-to-device",
			"the kernel waits for blocks that a storage device writes into its memory: no CPU, no page fault",
			"reasoning: GPUDirect Storage", loop(work("compute", 5*minute, stencil(60)),
				wait("read", 15*minute, OthersHost, quiet(60, 16).pcie(900e6, 1e6).disk(890e6, 0)))),
		job("frozen-by-checkpoint",
			"the pod is frozen and its memory written for twelve minutes, after its kernel was drained",
			"reasoning: cuda-checkpoint and CRIU", loop(work("steps", 3*hour, trainBF16(60)),
				work("frozen", 12*minute, open(60).host(0, 0).net(0, 0)))),
		job("solver-of-one-warp", "one warp solves a small sparse system for an hour, all its data in one SM's memory",
			"recording one_block_int, less", loop(work("solve", hour, oneBlockInt().duty(0.25).whole()),
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

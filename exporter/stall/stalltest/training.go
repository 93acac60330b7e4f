package stalltest

import "time"

// trainingKinds are healthy jobs that train on one node, or whose pod has no other members.
func trainingKinds() []Kind {
	ddp := trainBF16(70).host(14, 3000).disk(60e6, 8e3).links(60e9, 0)
	return []Kind{
		job("train-bf16", "steps without a pause, a checkpoint each half hour", "recordings train_bf16, train_checkpoint",
			work("start", 40*second, start()), loop(0, work("steps", 30*minute, trainBF16(40)).spread(0.02),
				work("checkpoint", 45*second, open(40).host(1, 119e3).disk(0, 450e6).pcie(5e6, 476e6)))),
		job("train-fp32-v100", "an old network without tensor cores; NVML has no counters of its pipes",
			"recording train_fp32, scaled", loop(0, work("steps", 12*minute, trainFP32(28)),
				work("validation", minute, trainFP32(20).duty(0.5)))).on(V100(), NVMLOnly),
		job("train-ddp-8", "eight devices of one pod reduce gradients over NVLink",
			"recording train_bf16; traffic by reasoning", work("start", minute, start().cpu(8)),
			loop(0, work("steps", hour, ddp), wait("checkpoint of rank 0", 90*second, OthersHost, spin(70, 16).host(8, 8e3).
				disk(0, 380e6)))).devices(8),
		job("rank0-tokenizes-in-pod",
			"rank 0 of the same pod tokenizes with one thread, the others spin: as many threads are busy as would be in a "+
				"hang, but memory grows and files are read", "github.com/hiyouga/LlamaFactory/issues/2424",
			work("start", minute, start().cpu(8)), wait("rank 0 tokenizes", 35*minute, OthersHost, spin(2, 16).host(8, 1800).
				disk(6e6, 9e6).grown(40, 12)), work("steps", 0, ddp)).devices(8),
		job("checkpoint-10min-to-disk", "rank 0 gathers and writes 230 GB for ten minutes, the others wait in a barrier",
			"recording wait_checkpoint; size by reasoning", loop(0, work("steps", 50*minute, ddp),
				wait("checkpoint", 10*minute, OthersHost, spin(70, 16).host(8, 4e3).disk(0, 380e6)))).devices(8),
		job("dataloader-starved", "Python decodes on one CPU, the device waits for each batch",
			"recording train_dataloader", loop(0, work("batch", 1200*time.Millisecond, open(11).host(1, 900).disk(3e6, 0)),
				work("step", 50*time.Millisecond, trainBF16(11)))),
		job("validation-on-cpu",
			"each hour rank 0 computes scores for twelve minutes in one thread (COCO's evaluation), the others wait in a "+
				"barrier: as many threads are busy as would be in a hang",
			"github.com/jpata/particleflow/issues/390 and reasoning",
			loop(0, work("steps", hour, ddp), work("predict", 3*minute, ddp.duty(0.4)),
				wait("rank 0 scores", 12*minute, OthersHost, spin(70, 16).host(8, 450).grown(66, 20)))).devices(8),
		job("jax-compiles-20min",
			"the first step is compiled for twenty minutes: three quarters of the memory are taken, nothing runs",
			"github.com/openxla/xla/issues/44517, github.com/google-deepmind/tapnet/issues/53",
			work("import", minute, start()), work("compile", 20*minute, open(60).host(3.2, 12e3).grown(18, 2)),
			work("steps", 0, trainBF16(62))),
		job("torch-autotunes", "max-autotune compiles in 32 processes and times each candidate", "reasoning",
			work("start", minute, start()),
			loop(14*minute, work("compile", 20*second, open(12).host(28, 90e3).disk(0, 2e6).grown(25, 4)).spread(0.4),
				work("measure", 5*second, trainBF16(12).duty(0.5))), work("steps", 0, trainBF16(60))),
		job("sweep-of-tiny-models", "each kernel takes microseconds, launches take all the time", "recording small_kernels",
			loop(0, work("fit", 6*minute, smallKernels(1)).spread(0.4), work("next", 15*second, open(0.65).host(1, 5e3)))),
		job("download-then-train", "400 GB are downloaded before the device is opened", "reasoning",
			work("download", 45*minute, rest().host(2.5, 6e3).disk(0, 150e6).net(150e6, 1.5e6).grown(2, 60)),
			work("start", minute, start()), work("steps", 0, trainBF16(70))),
		job("dev-pod-sleeps", "sleep infinity with a claim: nobody has opened the device yet", "reasoning",
			idle("sleep", 0, Load{Anon: 1e6, File: 2e6, CPU: 0.0001})),
		job("notebook", "a user runs a cell, thinks, runs the next one, has lunch",
			"reasoning", work("import", 30*second, start()),
			loop(0, work("cell", 40*second, trainBF16(9)).spread(0.9), idle("thinks", 7*minute, open(9)).spread(0.9),
				work("pandas", 2*minute, open(9).host(1, 9e3)).spread(0.6), work("long cell", 12*minute, trainFP32(14)).
					spread(0.5), idle("lunch", 50*minute, open(14)).spread(0.4))).in(notebook()).on(A100(), NVMLOnly),
		job("federated-client", "trains for three minutes, then waits twenty for the aggregator", "reasoning",
			loop(0, work("train", 3*minute, trainFP32(8)), work("upload", 10*second, open(8).host(0.6, 900).net(50e3, 60e6)),
				wait("aggregator", 20*minute, OthersHost, open(8).net(700, 900)).spread(0.3))).on(T4(), DCGMDefault),
	}
}

// memberKinds are healthy members of jobs that have others elsewhere.
func memberKinds() []Kind {
	steps := trainBF16(72).host(15, 3000).disk(50e6, 8e3).links(80e9, 6e9)
	return []Kind{
		job("checkpoint-elsewhere-no-labels",
			"the same, in bare pods that only environment variables join: nothing tells that it has members",
			"reasoning: torchrun in plain pods", loop(0, work("steps", 100*minute, steps),
				wait("barrier", 10*minute, OthersHost, spinNet(72, 16).cpu(16.2)))).devices(8).
			in(Pod{WorkloadKind: "Pod", Members: 4}),
		job("peer-reads-slow-shard", "another member's first read of a cold shard takes 18 minutes", "reasoning",
			work("start", minute, start()), wait("first all-reduce", 18*minute, OthersHost, spinNet(30, 8)),
			work("steps", 0, steps.cpu(3))).in(podGroup(2)),
		job("uneven-data-join", "members with fewer batches wait in Join for 15 minutes at the end of each epoch",
			"reasoning: DDP's join", loop(0, work("epoch", 2*hour, steps.cpu(3)),
				wait("join", 15*minute, OthersWork, spinNet(72, 16)))).in(pyTorchJob(8)),
		job("elastic-restart",
			"a node is lost every three hours: abort after five minutes, six minutes of rendezvous, weights again",
			"reasoning: torchrun with max-restarts", loop(0, work("steps", 3*hour, steps.cpu(3)).spread(0.3),
				wait("until the watchdog aborts", 5*minute, OthersSpin, spinNet(72, 16)), work("start", 50*second, start()),
				wait("rendezvous", 6*minute, OthersHost, rest().cpu(0.05).net(3e3, 3e3)),
				work("weights", 3*minute, open(70).host(2, 20e3).disk(300e6, 0).pcie(300e6, 1e6)))).in(pyTorchJob(16)),
		job("rl-colocated",
			"rollouts, rewards from sandboxes on other nodes for ten minutes with the device asleep, then training",
			"reasoning: verl with vLLM's sleep mode", loop(0, work("rollouts", 8*minute, decode(70, 0.9)).spread(0.2),
				wait("rewards", 10*minute, OthersHost, open(20).cpu(0.15).net(40e3, 60e3)).spread(0.3),
				work("wake up", 20*second, open(60).host(2, 9e3).pcie(3e9, 1e6)), work("update", 4*minute, steps.cpu(3)))).
			in(rayCluster(5)),
		job("rl-trainer-waits", "the trainers wait 25 minutes in a broadcast for rollouts of other pods",
			"github.com/huggingface/open-r1/issues/620", loop(0, wait("broadcast", 25*minute, OthersWork, spinNet(60, 16)).
				spread(0.1), work("update", 6*minute, steps.cpu(3)))).in(rayCluster(9)),
		job("leader-worker-server",
			"the worker of a server over two nodes waits for requests in a receive, at full utilization, all night",
			"github.com/zai-org/GLM-130B/issues/32", loop(0, work("day", 14*hour, decode(74, 0.6).links(0, 700e6).cpu(2)),
				Phase{Name: "night", For: 10 * hour, Truth: Idle, Others: OthersIdle, Load: spinNet(74, 2)})).
			in(leaderWorkerSet(2)),
		job("nvshmem-waits", "a kernel of all SMs polls for data of another member, which reads files for 20 minutes",
			"reasoning", loop(0, work("steps", hour, stencil(50).links(40e9, 0)),
				wait("poll", 20*minute, OthersHost, spin(50, 132)))).in(mpiJob(2)),
	}
}

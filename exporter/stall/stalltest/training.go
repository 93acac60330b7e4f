package stalltest

// trainingKinds are healthy jobs that train on one node, or whose pod has no other members.
func trainingKinds() []Kind {
	ddp := trainBF16(70).host(14, 3000).disk(60e6, 8e3).links(60e9, 0)
	return []Kind{
		job("train-bf16", "steps without a pause, a checkpoint each half hour", "recordings train_bf16, train_checkpoint",
			work("start", 40*second, start()), loop(0, work("steps", 30*minute, trainBF16(40)).spread(0.02),
				work("checkpoint", 45*second, open(40).host(1, 119e3).disk(0, 450e6).pcie(5e6, 476e6)))),
		job("rank0-tokenizes-in-pod",
			"rank 0 of the same pod tokenizes with one thread, the others spin: as many threads are busy as would be in a "+
				"hang, but memory grows and files are read", "github.com/hiyouga/LlamaFactory/issues/2424",
			work("start", minute, start().cpu(8)), wait("rank 0 tokenizes", 35*minute, OthersHost, spin(2, 16).host(8, 1800).
				disk(6e6, 9e6).grown(40, 12)), work("steps", 0, ddp)).devices(8),
		job("checkpoint-10min-to-disk", "rank 0 gathers and writes 230 GB for ten minutes, the others wait in a barrier",
			"recording wait_checkpoint; size by reasoning", loop(0, work("steps", 50*minute, ddp),
				wait("checkpoint", 10*minute, OthersHost, spin(70, 16).host(8, 4e3).disk(0, 380e6)))).devices(8),
		job("validation-on-cpu",
			"each hour rank 0 computes scores for twelve minutes in one thread (COCO's evaluation), the others wait in a "+
				"barrier: as many threads are busy as would be in a hang",
			"github.com/jpata/particleflow/issues/390 and reasoning",
			loop(0, work("steps", hour, ddp), work("predict", 3*minute, ddp.duty(0.4)),
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
			"reasoning: torchrun in plain pods", loop(0, work("steps", 100*minute, steps),
				wait("barrier", 10*minute, OthersHost, spinNet(72, 16).cpu(16.2)))).devices(8).
			in(Pod{WorkloadKind: "Pod", Members: 4}),
		job("uneven-data-join", "members with fewer batches wait in Join for 15 minutes at the end of each epoch",
			"reasoning: DDP's join", loop(0, work("epoch", 2*hour, steps.cpu(3)),
				wait("join", 15*minute, OthersWork, spinNet(72, 16)))).in(pyTorchJob(8)),
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

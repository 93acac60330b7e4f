package stalltest

import "time"

// trainingKinds are healthy jobs that train on one node, or whose pod has no other members.
func trainingKinds() []Kind { //nolint:funlen // a table
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
		job("rank0-tokenizes-many-threads", "rank 0 of the same pod maps the dataset with 32 processes",
			"github.com/huggingface/nanotron/issues/204", wait("rank 0 tokenizes", 28*minute, OthersHost,
				spin(2, 24).host(35, 60e3).disk(90e6, 140e6).grown(60, 40)), work("steps", 0, ddp)).devices(8),
		job("checkpoint-10min-to-disk", "rank 0 gathers and writes 230 GB for ten minutes, the others wait in a barrier",
			"recording wait_checkpoint; size by reasoning", loop(0, work("steps", 50*minute, ddp),
				wait("checkpoint", 10*minute, OthersHost, spin(70, 16).host(8, 4e3).disk(0, 380e6)))).devices(8),
		job("checkpoint-to-object-store", "the upload goes through the pod's network at 120 MB/s", "reasoning",
			loop(0, work("steps", 2*hour, ddp), wait("upload", 8*minute, OthersHost, spin(70, 16).host(8.6, 900).
				net(400e3, 120e6)))).devices(8),
		job("checkpoint-to-nfs",
			"the kernel writes pages to NFS outside of the pod's cgroup and network namespace: what is seen is that file "+
				"pages come and go", "reasoning: NFS has no block device in io.stat", loop(0, work("steps", hour, trainBF16(60)),
				work("copy", 25*second, open(60).host(1, 40e3).pcie(1e6, 2.2e9).grown(60, 8)),
				work("dirty pages fill", 90*second, open(60).host(0.9, 9e3).grown(60, 30)),
				work("written back", 4*minute, open(60).host(0.25, 300).grown(20, 26)))),
		job("dataloader-starved", "Python decodes on one CPU, the device waits for each batch",
			"recording train_dataloader", loop(0, work("batch", 1200*time.Millisecond, open(11).host(1, 900).disk(3e6, 0)),
				work("step", 50*time.Millisecond, trainBF16(11)))),
		job("epoch-restarts-workers",
			"between epochs of nine minutes the workers of the data loader are started again and shuffle",
			"github.com/mlfoundations/open_clip/issues/703", loop(0, work("epoch", 9*minute, trainBF16(30)).spread(0.1),
				work("shuffle", 4*minute, open(30).host(15, 25e3).disk(45e6, 0).grown(90, 60)).spread(0.2))),
		job("accumulation-on-slow-storage", "micro-batches come from slow storage: two busy seconds of each twenty",
			"reasoning", loop(0, work("read", 18*second, open(30).host(0.4, 200).disk(11e6, 0)).spread(0.3),
				work("step", 2*second, trainBF16(30)))),
		job("validation-on-cpu",
			"each hour rank 0 computes scores for twelve minutes in one thread (COCO's evaluation), the others wait in a "+
				"barrier: as many threads are busy as would be in a hang",
			"github.com/jpata/particleflow/issues/390 and reasoning",
			loop(0, work("steps", hour, ddp), work("predict", 3*minute, ddp.duty(0.4)),
				wait("rank 0 scores", 12*minute, OthersHost, spin(70, 16).host(8, 450).grown(66, 20)))).devices(8),
		job("validation-on-cpu-alone", "one device idles while its process computes scores", "reasoning",
			loop(0, work("steps", 45*minute, trainBF16(40)), work("score", 12*minute, open(40).host(1, 700).grown(30, 9)))),
		job("jax-compiles-20min",
			"the first step is compiled for twenty minutes: three quarters of the memory are taken, nothing runs",
			"github.com/openxla/xla/issues/44517, github.com/google-deepmind/tapnet/issues/53",
			work("import", minute, start()), work("compile", 20*minute, open(60).host(3.2, 12e3).grown(18, 2)),
			work("steps", 0, trainBF16(62))),
		job("torch-autotunes", "max-autotune compiles in 32 processes and times each candidate", "reasoning",
			work("start", minute, start()),
			loop(14*minute, work("compile", 20*second, open(12).host(28, 90e3).disk(0, 2e6).grown(25, 4)).spread(0.4),
				work("measure", 5*second, trainBF16(12).duty(0.5))), work("steps", 0, trainBF16(60))),
		job("zero-offload", "the optimizer runs on the CPU for 30 s of each minute, weights cross PCIe",
			"reasoning: DeepSpeed's CPU Adam",
			loop(0, work("forward and backward", 28*second, trainBF16(70).pcie(6e9, 11e9).cpu(4)),
				work("adam on CPU", 30*second, open(70).host(30, 2e3).pcie(2e9, 30e6)).spread(0.1)).spread(0)),
		job("sweep-of-tiny-models", "each kernel takes microseconds, launches take all the time", "recording small_kernels",
			loop(0, work("fit", 6*minute, smallKernels(1)).spread(0.4), work("next", 15*second, open(0.65).host(1, 5e3)))),
		job("resnet-dali", "JPEG and augmentation run on the device", "reasoning",
			loop(0, work("epoch", 20*minute, jpegTraining()), work("validation", 2*minute, jpegTraining().duty(0.7)))).
			on(A100(), FullGPM),
		job("graph-network", "neighbours are sampled on the CPU, small batches go to the device", "reasoning",
			loop(0, work("sample", 700*time.Millisecond, open(9).host(12, 8e3)),
				work("step", 90*time.Millisecond, trainFP32(9).pcie(4e9, 5e6)))),
		job("gptq-layers", "each layer is calibrated: twenty seconds on the device, one minute on the CPU", "reasoning",
			loop(0, work("hessian", 20*second, trainFP32(50)), work("solve on CPU", minute, open(50).host(8, 2e3)).
				spread(0.3))),
		job("lora-l4", "fine-tuning at the limit of power of a small card, with dcgm-exporter's default fields",
			"reasoning", loop(0, work("steps", 15*minute, trainBF16(21)), work("evaluate", 2*minute, trainBF16(21).duty(0.6)))).
			on(L4(), DCGMDefault),
		job("llm-evaluation", "answers are generated, then scored with symbolic algebra on the CPU for five minutes",
			"reasoning: lm-evaluation-harness", loop(0, work("generate", 11*minute, decode(70, 0.9)).spread(0.3),
				work("score", 5*minute, open(70).host(1, 2500).grown(9, 2)).spread(0.3))),
		job("download-then-train", "400 GB are downloaded before the device is opened", "reasoning",
			work("download", 45*minute, rest().host(2.5, 6e3).disk(0, 150e6).net(150e6, 1.5e6).grown(2, 60)),
			work("start", minute, start()), work("steps", 0, trainBF16(70))),
		job("weights-from-slow-storage", "one thread reads 140 GB of weights for twenty minutes and copies them",
			"reasoning", work("start", 30*second, start()), work("load", 20*minute, open(60).host(0.6, 30e3).disk(116e6, 0).
				pcie(116e6, 1e6).grown(4, 100)), loop(0, work("generate", 5*minute, decode(75, 1)),
				idle("no request", 3*minute, open(75).cpu(0.05)).spread(0.8))),
		job("recommender", "embedding tables live in the host's memory", "reasoning",
			loop(0, work("gather on CPU", 600*time.Millisecond, open(20).host(24, 3e3)),
				work("step", 250*time.Millisecond, trainFP32(20).pcie(9e9, 4e9)))),
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

func jpegTraining() Load {
	l := trainBF16(36).host(3, 1e3).disk(140e6, 0)
	l.JPEG, l.FP32, l.Tensor, l.DRAM = 0.42, 0.11, 0.3, 0.45
	return l
}

// memberKinds are healthy members of jobs that have others elsewhere.
func memberKinds() []Kind {
	steps := trainBF16(72).host(15, 3000).disk(50e6, 8e3).links(80e9, 6e9)
	return []Kind{
		job("rank0-tokenizes-elsewhere",
			"rank 0 on another node tokenizes for 35 minutes, all devices here spin in the barrier",
			"github.com/NVIDIA/nccl/issues/865, recording wait_tokenizing", work("start", minute, start().cpu(8)),
			wait("barrier", 35*minute, OthersHost, spinNet(2, 16).cpu(16.2)), work("steps", 0, steps)).devices(8).
			in(pyTorchJob(4)),
		job("rank0-checkpoints-elsewhere", "rank 0 on another node writes for ten minutes of each hour",
			"recording wait_checkpoint", loop(0, work("steps", 50*minute, steps), wait("barrier", 10*minute, OthersHost,
				spinNet(72, 16).cpu(16.2)))).devices(8).in(jobSet(16)),
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
		job("slow-peer-each-step", "one member has a throttled device: the others spin for 5 of each 15 seconds",
			"reasoning", loop(0, work("step", 10*second, steps.cpu(3)), wait("slow peer", 5*second, OthersWork,
				spinNet(72, 16)).spread(0.1))).in(pyTorchJob(8)),
		job("pipeline-stage", "bubbles of the pipeline: it works for 1.4 s and waits in receive for 0.6 s",
			"reasoning: 1F1B with few micro-batches",
			loop(0, work("stage", 1400*time.Millisecond, trainBF16(66).links(0, 900e6).cpu(2)),
				wait("bubble", 600*time.Millisecond, OthersWork, spinNet(66, 2)))).in(jobSet(8)),
		job("moe-training", "experts are unequal: all-to-all takes half of the time", "reasoning",
			loop(0, work("experts", 900*time.Millisecond, steps.cpu(3)), wait("all-to-all", 500*time.Millisecond, OthersWork,
				spinNet(72, 24).links(20e9, 12e9)))).in(pyTorchJob(16)),
		job("elastic-restart",
			"a node is lost every three hours: abort after five minutes, six minutes of rendezvous, weights again",
			"reasoning: torchrun with max-restarts", loop(0, work("steps", 3*hour, steps.cpu(3)).spread(0.3),
				wait("until the watchdog aborts", 5*minute, OthersSpin, spinNet(72, 16)), work("start", 50*second, start()),
				wait("rendezvous", 6*minute, OthersHost, rest().cpu(0.05).net(3e3, 3e3)),
				work("weights", 3*minute, open(70).host(2, 20e3).disk(300e6, 0).pcie(300e6, 1e6)))).in(pyTorchJob(16)),
		job("nccl-init-2000-ranks", "creating communicators of 2048 ranks takes twelve minutes on the CPUs", "reasoning",
			work("start", minute, start()), work("communicators", 12*minute, open(3).host(1.3, 800).net(90e3, 90e3)),
			work("steps", 0, steps.cpu(3))).in(jobSet(256)),
		job("rl-colocated",
			"rollouts, rewards from sandboxes on other nodes for ten minutes with the device asleep, then training",
			"reasoning: verl with vLLM's sleep mode", loop(0, work("rollouts", 8*minute, decode(70, 0.9)).spread(0.2),
				wait("rewards", 10*minute, OthersHost, open(20).cpu(0.15).net(40e3, 60e3)).spread(0.3),
				work("wake up", 20*second, open(60).host(2, 9e3).pcie(3e9, 1e6)), work("update", 4*minute, steps.cpu(3)))).
			in(rayCluster(5)),
		job("rl-trainer-waits", "the trainers wait 25 minutes in a broadcast for rollouts of other pods",
			"github.com/huggingface/open-r1/issues/620", loop(0, wait("broadcast", 25*minute, OthersWork, spinNet(60, 16)).
				spread(0.1), work("update", 6*minute, steps.cpu(3)))).in(rayCluster(9)),
		job("rl-rollout-long-tail", "a few long answers hold up the batch: small batches for nine minutes", "reasoning",
			loop(0, work("batch", 6*minute, decode(72, 1)), work("long tail", 9*minute, decode(72, 0.35)),
				wait("update elsewhere", 6*minute, OthersWork, open(72).cpu(1.05)))).in(rayCluster(9)),
		job("leader-worker-server",
			"the worker of a server over two nodes waits for requests in a receive, at full utilization, all night",
			"github.com/zai-org/GLM-130B/issues/32", loop(0, work("day", 14*hour, decode(74, 0.6).links(0, 700e6).cpu(2)),
				Phase{Name: "night", For: 10 * hour, Truth: Idle, Others: OthersIdle, Load: spinNet(74, 2)})).
			in(leaderWorkerSet(2)),
		job("parameter-server-worker", "gradients go through the pod's network, the server is slow", "reasoning",
			loop(0, work("step", 3*second, trainFP32(14)), wait("server", 4*second, OthersHost, open(14).host(0.7, 500).
				net(160e6, 160e6)))).on(T4(), DCGMDefault).in(indexedJob(4)),
		job("mpi-solver-host-phase", "each member solves an implicit step on the CPUs for twelve minutes of each half hour",
			"reasoning: CFD", loop(0, work("explicit", 18*minute, stencil(50).links(0, 2e9).cpu(2)),
				work("implicit on CPU", 12*minute, open(50).host(16, 600).links(0, 30e6)))).in(mpiJob(4)),
		job("nvshmem-waits", "a kernel of all SMs polls for data of another member, which reads files for 20 minutes",
			"reasoning", loop(0, work("steps", hour, stencil(50).links(40e9, 0)),
				wait("poll", 20*minute, OthersHost, spin(50, 132)))).in(mpiJob(2)),
	}
}

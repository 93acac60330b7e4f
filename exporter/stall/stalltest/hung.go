package stalltest

import "time"

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
			loop(0, hangFor("quiet", 14*second, spin(70, 16).cpu(8.15)), hangFor("metrics", second, spin(70, 16).host(8.7, 900).
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
			loop(0, hangFor("collective", 10*minute, spinNet(72, 16)),
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

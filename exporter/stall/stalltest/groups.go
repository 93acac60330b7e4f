package stalltest

import (
	"fmt"
	"slices"
)

// Group is a job of several members, each alone on a node with a judge of its own. What they say
// together is what a rule over all nodes sees.
type Group struct {
	Name, Why, Source string
	// Hangs is true if the job hangs to the end, from some second on.
	Hangs   bool
	Members []Kind
}

// group returns a job of members, which do what a function returns. Their phases have the same
// lengths: they work in step.
func group(name, why, source string, pod func(members int) Pod, members int, phases func(member int) []Phase) Group {
	g := Group{Name: name, Why: why, Source: source}
	for i := range members {
		k := job(fmt.Sprintf("%s-%d", name, i), why, source, phases(i)...).in(pod(members))
		k.Pod.Labels = labelled(k.Pod.Labels, i)
		g.Members = append(g.Members, k)
	}
	return g
}

// labelled returns the labels with the index of a member.
func labelled(labels map[string]string, member int) map[string]string {
	out := map[string]string{}
	for name, value := range labels {
		switch name {
		case "training.kubeflow.org/replica-index", "batch.kubernetes.io/job-completion-index",
			"leaderworkerset.sigs.k8s.io/worker-index", "jobset.sigs.k8s.io/job-index":
			value = fmt.Sprint(member)
		}
		out[name] = value
	}
	return out
}

func (g Group) hung() Group {
	g.Hangs = true
	return g
}

func stepsOverNetwork() Load {
	return trainBF16(72).host(3, 3000).disk(50e6, 8e3).links(0, 6e9)
}

// Groups returns jobs of several members, healthy and hung.
func Groups() []Group { return slices.Concat(healthyGroups(), hungGroups()) }

// leaderElse returns one load for member 0 and another one for the others.
func leaderElse(member int, leader, other Phase) Phase {
	if member == 0 {
		return leader
	}
	return other
}

func healthyGroups() []Group {
	steps := stepsOverNetwork()
	return []Group{
		group("group-tokenizes", "rank 0 tokenizes in sixteen processes for 35 minutes, three members spin",
			"github.com/NVIDIA/nccl/issues/865", pyTorchJob, 4, func(i int) []Phase {
				return []Phase{
					work("start", minute, start()),
					leaderElse(i, work("tokenize", 35*minute, open(2).host(16, 30e3).disk(60e6, 90e6).grown(40, 20)),
						wait("barrier", 35*minute, OthersHost, spinNet(2, 16))),
					work("steps", 0, steps),
				}
			}),
		group("group-tokenizes-one-thread", "rank 0 tokenizes in one thread: its device idles, the others spin",
			"github.com/hiyouga/LlamaFactory/issues/2424", jobSet, 4, func(i int) []Phase {
				return []Phase{
					work("start", minute, start()),
					leaderElse(i, work("tokenize", 35*minute, open(2).host(1, 1500).disk(5e6, 8e6).grown(9, 7)),
						wait("barrier", 35*minute, OthersHost, spinNet(2, 16))),
					work("steps", 0, steps),
				}
			}),
		group("group-scores-on-cpu", "rank 0 computes scores in one thread for twelve minutes, without a byte or a new page",
			"github.com/jpata/particleflow/issues/390", indexedJob, 4, func(i int) []Phase {
				return []Phase{loop(work("steps", hour, steps),
					leaderElse(i, work("score", 12*minute, open(72).host(1, 6)), wait("barrier", 12*minute, OthersHost,
						spinNet(72, 16))))}
			}),
		group("group-uneven-data", "one member has more batches: it works on for 15 minutes", "reasoning: DDP's join",
			pyTorchJob, 4, func(i int) []Phase {
				return []Phase{loop(work("epoch", 2*hour, steps), leaderElse(i, work("more batches", 15*minute, trainBF16(72)),
					wait("join", 15*minute, OthersWork, spinNet(72, 16))))}
			}),
		group("group-rl", "trainers spin in a broadcast while rollouts decode for 25 minutes",
			"github.com/huggingface/open-r1/issues/620",
			rayCluster, 4, func(i int) []Phase {
				if i >= 2 {
					return []Phase{loop(work("rollouts", 25*minute, decode(72, 0.9)), wait("update", 6*minute, OthersWork,
						open(72).cpu(1.05)))}
				}
				return []Phase{loop(wait("broadcast", 25*minute, OthersWork, spinNet(60, 16)), work("update", 6*minute, steps))}
			}),
		group("group-server-at-night", "a server over two nodes: the leader idles without requests, the worker spins in "+
			"a receive",
			"github.com/zai-org/GLM-130B/issues/32", leaderWorkerSet, 2, func(i int) []Phase {
				return []Phase{loop(work("day", 14*hour, decode(74, 0.6).links(0, 700e6).cpu(2)),
					leaderElse(i, idle("night", 10*hour, open(74).cpu(1.05).net(3e3, 3e3)), Phase{
						Name: "night", For: 10 * hour, Truth: Idle, Others: OthersIdle, Load: spinNet(74, 2),
					}))}
			}),
		group("group-solver", "each member solves an implicit step on the CPUs for twelve minutes", "reasoning: CFD",
			mpiJob, 4,
			func(int) []Phase {
				return []Phase{loop(work("explicit", 18*minute, stencil(50).links(0, 2e9).cpu(2)),
					work("implicit on CPU", 12*minute, open(50).host(16, 600).links(0, 30e6)))}
			}),
		group("group-prepares-for-long", "after an hour, rank 0 prepares the next part of the data in eight processes for "+
			"90 minutes, its device idles", "reasoning: tokenizing of a large corpus", pyTorchJob, 4, func(i int) []Phase {
			return []Phase{loop(work("steps", hour, steps),
				leaderElse(i, work("prepare", 90*minute, open(72).host(8, 20e3).disk(40e6, 60e6)),
					wait("barrier", 90*minute, OthersHost, spinNet(72, 16))))}
		}),
		group("group-replaced", "a member's node is lost: seven minutes until its pod runs again, the others wait at "+
			"the rendezvous", "reasoning: torchrun", pyTorchJob, 3, func(i int) []Phase {
			return []Phase{loop(work("steps", 4*hour, steps),
				leaderElse(i, idle("node lost", 5*minute, Load{}),
					wait("until the watchdog aborts", 5*minute, OthersGone, spinNet(72, 16))),
				wait("rendezvous", 7*minute, OthersHost, rest().net(3e3, 3e3)),
				work("weights", 3*minute, open(70).host(2, 20e3).disk(300e6, 0).pcie(300e6, 1e6)))}
		}),
	}
}

func hungGroups() []Group {
	steps := stepsOverNetwork()
	// after returns a job that trains for an hour and then hangs, each member in its own way.
	after := func(name, why, source string, pod func(int) Pod, members int, hung func(member int) Load) Group {
		return group(name, why, source, pod, members, func(i int) []Phase {
			return []Phase{work("start", minute, start()), work("steps", hour, steps), hang(OthersSpin, hung(i))}
		}).hung()
	}
	first := func(leader Load) func(int) Load {
		return func(i int) Load {
			if i == 0 {
				return leader
			}
			return spinNet(72, 16)
		}
	}
	return []Group{
		after("group-hang-all-spin", "the network lost a message: all members spin", "marin-community/marin issue 7344",
			jobSet, 4,
			first(spinNet(72, 16))),
		after("group-hang-lock", "one member is stuck in a lock of its host, its device idles",
			"github.com/pytorch/pytorch/issues/22259",
			indexedJob, 8, first(open(72).cpu(0.01))),
		after("group-hang-stopped", "one member was stopped in a kernel", "recording hang_stopped", pyTorchJob, 4,
			first(spin(72, 16).host(0, 0))),
		after("group-hang-dead-nic", "one member's network device is dead, it sends again and again", "reasoning",
			pyTorchJob, 4,
			first(retransmits())),
		after("group-hang-mpi", "all members poll on their CPUs, the devices idle", "reasoning", mpiJob, 4,
			func(int) Load { return open(72).cpu(4) }),
		after("group-hang-observers", "all spin, and their observers go on", "reasoning", pyTorchJob, 4,
			func(int) Load { return spinNet(72, 16).host(2.1, 60).disk(0, 4e3).net(800, 3e3) }),
		group("group-hang-at-end", "rank 0 has ended, the others wait in the last barrier", "recording hang_after_training",
			pyTorchJob, 4, func(i int) []Phase {
				phases := []Phase{work("start", minute, start()), work("steps", 5*hour, steps)}
				if i == 0 {
					return append(phases, work("save", minute, open(72).host(1, 60e3).disk(0, 400e6)), idle("ended", 0, Load{}))
				}
				return append(phases, wait("save", minute, OthersHost, spinNet(72, 16)), hang(OthersGone, spinNet(72, 16)))
			}).hung(),
		group("group-hang-rendezvous", "the last member's pod cannot start, the others wait for its key",
			"github.com/NVIDIA/nccl/issues/708",
			pyTorchJob, 3, func(int) []Phase {
				return []Phase{work("start", minute, start()), hang(OthersIdle, open(0.5).cpu(0.02).net(1500, 1500))}
			}).hung(),
	}
}

// Efficiency is a job with the FLOP utilization that it reaches: the mean over time of the tensor
// pipe's activity times the clock's share of its maximum. The product of the two means differs:
// Means.
type Efficiency struct {
	Kind

	FLOPs, Means float64
}

// Efficiencies returns jobs whose tensor activity and clock vary together.
func Efficiencies() []Efficiency {
	busy := func(tensor, clock float64) Load {
		l := open(20)
		l.Busy, l.SM, l.Occupancy, l.Tensor, l.Int, l.Clock, l.Noise = 1, 0.6, 0.2, tensor, 0.1, clock, 0.02
		return l
	}
	pause := slowClock(open(20), 0.174) // 345 of 1980 MHz
	return []Efficiency{
		{job("flops-steady", "the same activity at the same clock all the time", "reasoning",
			work("steps", 0, busy(0.5, 0.9))), 0.45, 0.45},
		{
			job("flops-alternate", "steps at the full clock, and longer pauses in which the clock falls to its lowest",
				"reasoning", loop(work("steps", 24*second, busy(0.8, 1)), wait("batch", 36*second, OthersHost, pause))),
			0.32, 0.161,
		},
		{
			job("flops-capped", "a cap of power lowers the clock while the tensor pipe works, and not while it pauses",
				"reasoning", loop(work("steps", 30*second, busy(0.8, 0.708)), wait("batch", 30*second, OthersHost, open(20)))),
			0.283, 0.341,
		},
		{job("flops-throttled-later", "after half of the time heat takes half of the clock", "reasoning",
			work("cool", 2*hour, busy(0.6, 1)), work("hot", 2*hour, busy(0.6, 0.5))), 0.45, 0.45},
		{job("flops-of-bursts", "short bursts between long pauses at the lowest clock", "reasoning",
			loop(work("burst", 4*second, busy(0.8, 1)), idle("pause", 36*second, pause))), 0.08, 0.0205},
		{job("flops-none", "no tensors", "recording mc_fp32", work("simulate", 0, mcFP32())), 0, 0},
	}
}

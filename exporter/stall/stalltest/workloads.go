package stalltest

// becameAt is the minute in which a member becomes slow.
const becameAt = 60

// waiting is what the others do when one member takes longer: they spin for a part of each step.
func waiting(s Second, share float64) Second {
	s.Tensor *= 1 - share
	s.SM = s.SM*(1-share) + 0.12*share
	s.Watts -= (s.Watts - 125) * share
	s.Traffic *= 1 - share
	return s
}

// slowWorkloads each have a member that became slow.
func slowWorkloads() []Workload {
	// slow returns eight members in step, of which number 5 changes and the others wait for it.
	slow := func(name, why, source, reason string, share float64, change func(Second) Second) Workload {
		return Workload{
			Name: name, Why: why, Source: source, Kind: "JobSet", Stragglers: []Straggler{{
				5, reason, becameAt,
				WorkloadMinutes,
			}},
			Members: members(8, func(i, minute int) Second {
				switch {
				case minute < becameAt:
					return inStep()
				case i == 5:
					s := change(inStep())
					s.Traffic *= 1 - share
					return s
				default:
					return waiting(inStep(), share)
				}
			}),
		}
	}
	shed := slow("became-low-clock-then-recovers", "a power brake of half an hour", "reasoning", "low_clock", 0.2,
		func(s Second) Second { s.Clock, s.Watts = 0.76, 480; return s })
	usual := shed.Members[0].At
	for i := range shed.Members {
		at := shed.Members[i].At
		shed.Members[i].At = func(minute int) Second {
			if minute >= becameAt+30 {
				return usual(0)
			}
			return at(minute)
		}
	}
	shed.Stragglers[0].To = becameAt + 30
	return []Workload{
		slow("became-low-clock", "its clock falls to three quarters, all steps take longer",
			"arXiv 2605.17879 (fail-slow)", "low_clock", 0.22,
			func(s Second) Second { s.Clock, s.Watts = 0.74, 470; return s }),
		slow("became-hot", "a fan failed: heat throttles it for a third of the time", "reasoning", "throttled", 0.2,
			func(s Second) Second { s.Clock, s.Throttled, s.Watts = 0.78, 0.35, 500; return s }),
		slow("became-slow-at-full-clock", "its memory became slow: it computes for longer at the same clock",
			"Greyhound, ATC'25", "busy", 0.3,
			func(s Second) Second { s.Tensor = 0.46; return s }),
		slow("became-starved", "its storage became slow: it waits for batches, the others spin", "reasoning", "starved", 0.3,
			func(s Second) Second { s.Utilization, s.Tensor, s.SM, s.Watts = 0.7, 0.33, 0.64, 470; return s }),
		{
			Name: "low-clock-from-the-start", Why: "one card never reaches more than 60 % of its maximum at the same work",
			Source: "github.com/ROCm/legacy-rocm-build/issues/4414", Kind: "PyTorchJob",
			Stragglers: []Straggler{{2, "low_clock", 0, WorkloadMinutes}},
			Members: members(4, func(i, _ int) Second {
				if i == 2 {
					s := inStep()
					s.Clock, s.Watts = 0.58, 400
					return s
				}
				return waiting(inStep(), 0.35)
			}),
		},
		shed,
	}
}

// lateMember returns members of which the last joins later, and reads weights before it works.
func lateMember() []Member {
	late := members(6, func(int, int) Second { return inStep() })
	late[5].First = 75
	at := late[5].At
	late[5].At = func(minute int) Second {
		if minute < 80 {
			return Second{Clock: 0.17, Watts: 75}
		}
		return at(minute)
	}
	return late
}

// evenWorkloads have members that are all as fast, or of which nobody can tell who is slow.
func evenWorkloads() []Workload { //nolint:funlen // a table
	low := func(s Second, clock, watts float64) Second {
		s.Clock, s.Watts = clock, watts
		return s
	}
	mixed := func(clock float64) []Member {
		out := members(4, func(int, int) Second { return inStep() })
		out[3].Model = A100()
		out[3].At = func(minute int) Second {
			return Second{
				Utilization: 0.99, Tensor: 0.62, SM: 0.93, Clock: clock, Watts: 380,
				Traffic: 6e9,
			}.noisy("worker-3", minute)
		}
		return out
	}
	return []Workload{
		{
			Name: "equal", Why: "all members do the same", Source: "recording train_bf16", Kind: "JobSet",
			Members: members(8, func(int, int) Second { return inStep() }),
		},
		{
			Name: "h100-and-capped-a100", Why: "models have their own limits of power, and are not compared",
			Source: "reasoning", Kind: "PyTorchJob", Members: mixed(0.8),
		},
		{
			Name: "late-member", Why: "a member joins after 75 minutes, and reads weights for five", Source: "reasoning",
			Kind: "JobSet", Members: lateMember(),
		},
		{
			Name: "half-slow", Why: "the limit of power of one node is lowered: four of eight, so that no member differs " +
				"from most",
			Source: "reasoning", Kind: "JobSet", Members: members(8, func(i, minute int) Second {
				if i >= 4 && minute >= becameAt {
					return low(inStep(), 0.75, 450)
				}
				return inStep()
			}),
		},
		{
			Name: "short-dip", Why: "a member is slow for three minutes while its node is backed up", Source: "reasoning",
			Kind: "JobSet",
			Members: members(8, func(i, minute int) Second {
				switch {
				case minute < becameAt || minute >= becameAt+3:
					return inStep()
				case i == 5:
					return low(inStep(), 0.8, 500)
				default:
					return waiting(inStep(), 0.15)
				}
			}),
		},
		{
			Name: "takes-turns", Why: "sequences differ in length: in each minute another member is the slowest",
			Source: "reasoning", Kind: "JobSet",
			Members: members(8, func(i, minute int) Second {
				if minute%8 == i {
					return inStep()
				}
				return waiting(inStep(), 0.12)
			}),
		},
		{
			Name: "validation-on-rank-0", Why: "rank 0 validates on its device for ten minutes of each hour, the others spin",
			Source: "reasoning", Kind: "PyTorchJob",
			Members: members(8, func(i, minute int) Second {
				switch {
				case minute%60 < 50:
					return inStep()
				case i == 0:
					return Second{Utilization: 0.97, Tensor: 0.5, SM: 0.8, Clock: 0.98, Watts: 600}
				default:
					return Second{Utilization: 1, Tensor: 0, SM: 0.12, Clock: 1, Watts: 127}
				}
			}),
		},
	}
}

// unequalWorkloads have members that differ by design, or that have nothing to do with each other.
func unequalWorkloads() []Workload { //nolint:funlen // a table
	// each returns members with levels of their own for all the time.
	each := func(levels ...Second) []Member {
		return members(len(levels), func(i, _ int) Second { return levels[i] })
	}
	replica := func(utilization float64) Second {
		return Second{
			Utilization: utilization, Tensor: utilization * 0.3, SM: utilization * 0.7, Clock: 1, Watts: 118 + 350*utilization,
		}
	}
	stage := func(tensor, traffic float64) Second {
		return Second{Utilization: 0.99, Tensor: tensor, SM: 0.88, Clock: 0.96, Watts: 250 + 800*tensor, Traffic: traffic}
	}
	changing := members(5, func(i, minute int) Second {
		return replica(0.5 + 0.45*jitter("load balancer", minute/7*5+i))
	})
	return []Workload{
		{
			Name: "replicas-that-change", Why: "sessions stick to replicas: load moves each few minutes",
			Source: "reasoning", Kind: "Deployment", Members: changing,
		},
		{
			Name: "array-with-a-slow-card", Why: "nobody waits for the simulation on it", Source: "reasoning", Kind: "Job",
			Members: members(5, func(i, _ int) Second {
				s := replica(1)
				if i == 3 {
					s.Clock = 0.6
				}
				return s
			}),
		},
		{
			Name: "pipeline-with-bubbles", Why: "receives block outside of kernels: stages differ in utilization",
			Source: "reasoning", Kind: "JobSet",
			Members: members(4, func(i, _ int) Second {
				s := stage(0.4, 1.2e9)
				s.Utilization = []float64{0.94, 0.9, 0.86, 0.6}[i]
				return s
			}),
		},
		{
			Name: "hot-experts", Why: "two of eight experts get most tokens from the start", Source: "reasoning",
			Kind: "PyTorchJob",
			Members: each(stage(0.4, 5e9), stage(0.4, 5e9), stage(0.63, 5e9), stage(0.4, 5e9), stage(0.4, 5e9), stage(0.6,
				5e9), stage(0.4, 5e9),
				stage(0.4, 5e9)),
		},
	}
}

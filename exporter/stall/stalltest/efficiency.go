package stalltest

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
				"reasoning", loop(0, work("steps", 24*second, busy(0.8, 1)), wait("batch", 36*second, OthersHost, pause))),
			0.32, 0.161,
		},
		{
			job("flops-capped", "a cap of power lowers the clock while the tensor pipe works, and not while it pauses",
				"reasoning", loop(0, work("steps", 30*second, busy(0.8, 0.708)), wait("batch", 30*second, OthersHost, open(20)))),
			0.283, 0.341,
		},
		{job("flops-throttled-later", "after half of the time heat takes half of the clock", "reasoning",
			work("cool", 2*hour, busy(0.6, 1)), work("hot", 2*hour, busy(0.6, 0.5))), 0.45, 0.45},
		{job("flops-of-bursts", "short bursts between long pauses at the lowest clock", "reasoning",
			loop(0, work("burst", 4*second, busy(0.8, 1)), idle("pause", 36*second, pause))), 0.08, 0.0205},
		{job("flops-none", "no tensors", "recording mc_fp32", work("simulate", 0, mcFP32())), 0, 0},
	}
}

package stalltest

import "time"

// Healthy returns the kinds of jobs that never hang.
func Healthy() []Kind {
	return []Kind{
		{
			Name:   "fp32-monte-carlo",
			Why:    "kernels of seconds with sinf and expf, all data in registers",
			Source: "recording mc_fp32",
			Model:  H100(), Sees: FullGPM, Pod: Pod{WorkloadKind: "Job", Members: 1},
			Phases: []Phase{{Name: "simulate", Load: mcFP32()}},
		},
		{
			Name:   "rank0-tokenizes",
			Why:    "rank 0 on another node tokenizes for 35 minutes; this rank waits in the barrier of main_process_first",
			Source: "github.com/NVIDIA/nccl/issues/865",
			Model:  H100(), Sees: FullGPM, Pod: Pod{WorkloadKind: "PyTorchJob", Members: 2},
			Phases: []Phase{
				{Name: "import", For: time.Minute, Load: rest()},
				{Name: "barrier", For: 35 * time.Minute, Truth: Waits, Others: OthersHost, Load: spinNCCL(2)},
				{Name: "train", Load: trainBF16(70)},
			},
		},
	}
}

// Hung returns the kinds of jobs that hang for ever after a while.
func Hung() []Kind {
	return []Kind{
		{
			Name: "nccl-spin", Why: "a collective whose peer died waits on its flags for ever",
			Source: "recording hang_spin_device",
			Model:  H100(), Sees: FullGPM, Pod: Pod{WorkloadKind: "Pod", Members: 1},
			Phases: []Phase{
				{Name: "train", For: 40 * time.Minute, Load: trainBF16(70)},
				{Name: "hang", Truth: Hangs, Others: OthersGone, Load: spinNCCL(70)},
			},
		},
	}
}

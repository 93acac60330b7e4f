package stalltest

import (
	"iter"
	"time"
)

// Truth is what a job really does.
type Truth uint8

// The truths.
const (
	Works Truth = iota // on the device or on the host
	Waits              // for a part of the job elsewhere that works
	Idle               // for requests, for a user, for work that has not come
	Hangs              // nothing will ever come of it
)

// String returns the truth in a word.
func (t Truth) String() string { return [...]string{"works", "waits", "idle", "hangs"}[t] }

// Others is what the other members of the job do during a phase: those with the other devices of
// the pod, and those elsewhere.
type Others uint8

// What the others do.
const (
	InStep        Others = iota // the same
	OthersWork                  // on their devices
	OthersHost                  // on their CPUs, disks or networks, with idle devices
	OthersSpin                  // wait in a collective with busy devices
	OthersIdle                  // nothing
	OthersGone                  // they have ended
	OthersUnknown               // nobody can know
)

// Phase is a part of a job: a load for a time, or a loop of phases.
type Phase struct {
	Name string
	// For is the length; 0 means until the end of the job. A loop begins its last round before For has
	// passed.
	For time.Duration
	// Spread is the standard deviation of For from one round to the next, as a share of it.
	Spread float64
	Truth  Truth
	Others Others
	Load   Load

	// Loop are the phases of a loop. It ends after Rounds rounds, if that is not 0, or after For.
	Loop   []Phase
	Rounds int
}

// Pod is what the API server and the kubelet know of the claim's pod.
type Pod struct {
	WorkloadKind string            // of the owner, such as Job; Pod for a pod without an owner
	Labels       map[string]string // of the pod
	Annotations  map[string]string
	// Completions and Parallelism of a Job; 0 if it has none.
	Completions, Parallelism int
	Members                  int // the true number of members of the job, with this one
}

// Kind is a kind of job.
type Kind struct {
	Name   string
	Why    string // why its traces look as they do
	Source string // a recording, a public report, or reasoning
	Model  Model
	Sees   Telemetry
	// Devices is the number of devices of the pod, 0 for one. The trace shows one of them, and the
	// host side of the whole pod.
	Devices int
	Pod     Pod
	Phases  []Phase
}

// Sample is one second of a trace.
type Sample struct {
	At     time.Time
	Values Values
	Truth  Truth // of most of the second
	Others Others
	Phase  string
}

// Trace is a claim's device and its pods as they are measured.
type Trace struct {
	Name, Why, Source string
	Model             Model
	Sees              Telemetry
	Devices           int
	Pod               Pod
	// Samples are the seconds in order. A sample is valid until the next one.
	Samples iter.Seq[*Sample]
}

// Start is the time of the first sample of generated traces.
func Start() time.Time { return time.Date(2026, time.March, 2, 0, 0, 0, 0, time.UTC) }

// Trace plays the job for a length of time from its start. The same seed gives the same values.
func (k Kind) Trace(seed uint64, length time.Duration) Trace {
	return Trace{
		Name: k.Name, Why: k.Why, Source: k.Source, Model: k.Model, Sees: k.Sees, Devices: max(k.Devices, 1), Pod: k.Pod,
		Samples: func(yield func(*Sample) bool) { newPlayer(&k, seed).play(length, yield) },
	}
}

// job returns a kind on an H100 with full telemetry, in a pod of a Job without other members.
func job(name, why, source string, phases ...Phase) Kind {
	return Kind{Name: name, Why: why, Source: source, Model: H100(), Pod: oneJob(), Devices: 1, Phases: phases}
}

func (k Kind) on(m Model, t Telemetry) Kind {
	k.Model, k.Sees = m, t
	return k
}

func (k Kind) in(p Pod) Kind {
	k.Pod = p
	return k
}

func (k Kind) devices(n int) Kind {
	k.Devices = n
	return k
}

// work is a phase in which this part of the job works.
func work(name string, length time.Duration, l Load) Phase {
	return Phase{Name: name, For: length, Load: l}
}

// wait is a phase in which this part of the job waits for one that works.
func wait(name string, length time.Duration, others Others, l Load) Phase {
	return Phase{Name: name, For: length, Truth: Waits, Others: others, Load: l}
}

// idle is a phase in which there is nothing to do.
func idle(name string, length time.Duration, l Load) Phase {
	return Phase{Name: name, For: length, Truth: Idle, Load: l}
}

// hang is the last phase of a job that hangs, of which the others do something.
func hang(others Others, l Load) Phase {
	return Phase{Name: "hang", Truth: Hangs, Others: others, Load: l}
}

// loop repeats phases for ever.
func loop(phases ...Phase) Phase {
	return Phase{Name: "loop", Loop: phases}
}

// spread returns the phase with a length that varies.
func (p Phase) spread(share float64) Phase {
	p.Spread = share
	return p
}

func oneJob() Pod { return Pod{WorkloadKind: "Job", Completions: 1, Parallelism: 1, Members: 1} }

func onePod() Pod { return Pod{WorkloadKind: "Pod", Members: 1} }

func deployment() Pod { return Pod{WorkloadKind: "Deployment", Members: 1} }

func notebook() Pod {
	return Pod{WorkloadKind: "StatefulSet", Members: 1, Labels: map[string]string{"notebook-name": "alice"}}
}

func indexedJob(members int) Pod {
	return Pod{
		WorkloadKind: "Job", Completions: members, Parallelism: members, Members: members,
		Labels:      map[string]string{"batch.kubernetes.io/job-completion-index": "3"},
		Annotations: map[string]string{"batch.kubernetes.io/job-completion-index": "3"},
	}
}

func pyTorchJob(members int) Pod {
	return Pod{WorkloadKind: "PyTorchJob", Members: members, Labels: map[string]string{
		"training.kubeflow.org/job-name": "llm", "training.kubeflow.org/replica-type": "worker",
		"training.kubeflow.org/replica-index": "1",
	}}
}

func mpiJob(members int) Pod {
	return Pod{WorkloadKind: "MPIJob", Members: members, Labels: map[string]string{
		"training.kubeflow.org/job-name": "solver", "training.kubeflow.org/job-role": "worker",
	}}
}

func jobSet(members int) Pod {
	return Pod{WorkloadKind: "JobSet", Members: members, Labels: map[string]string{
		"jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/job-index": "1",
	}}
}

func leaderWorkerSet(members int) Pod {
	return Pod{
		WorkloadKind: "LeaderWorkerSet", Members: members,
		Labels: map[string]string{
			"leaderworkerset.sigs.k8s.io/name":         "llm",
			"leaderworkerset.sigs.k8s.io/worker-index": "1",
		},
		Annotations: map[string]string{"leaderworkerset.sigs.k8s.io/size": "2"},
	}
}

func rayCluster(members int) Pod {
	return Pod{WorkloadKind: "RayCluster", Members: members, Labels: map[string]string{
		"ray.io/cluster": "rl", "ray.io/node-type": "worker",
	}}
}

// Model is a model of a device: its size, its levels of power and its clocks.
type Model struct {
	Name   string
	SMs    int     // or compute units
	Memory float64 // bytes

	// IdleWatts is drawn without a context, ContextWatts with an idle one. Hopper and older keep
	// high clocks while a context is open.
	IdleWatts, ContextWatts, LimitWatts float64
	// Watts above ContextWatts at a full share of each activity.
	SMWatts, TensorWatts, FP64Watts, FP32Watts, IntWatts, DRAMWatts, L2Watts float64

	ClockIdle, ClockMax float64 // hertz
	// ReadingReceived and ReadingTransmitted are the bytes per second over PCIe that reading the
	// device's counters causes from the first context on.
	ReadingReceived, ReadingTransmitted float64
}

// The levels of the H100 and the H200 come from recordings: 70 to 73 W without a context, 115 to
// 123 W with one, 294 W at fp32 .30 and int .12, 415 to 483 W at int 1, 263 W for dependent loads
// in L2, 4 to 8 W for a spin on 16 of 132 SMs; 549 W at fp64 .77 and int .29, 626 W at dram .61 and
// int .36, 695 W at tensor .47 and dram .36. The other models are scaled to their limit of power;
// their idle levels are those that users report from nvidia-smi and rocm-smi.

// H100 is an NVIDIA H100 SXM.
func H100() Model {
	return Model{
		Name: "NVIDIA H100 80GB HBM3", SMs: 132, Memory: 80 * gib,
		IdleWatts: 71.5, ContextWatts: 118, LimitWatts: 700,
		SMWatts: 33, TensorWatts: 640, FP64Watts: 395, FP32Watts: 390, IntWatts: 300, DRAMWatts: 600, L2Watts: 110,
		ClockIdle: 345e6, ClockMax: 1980e6, ReadingReceived: 0.21e6, ReadingTransmitted: 0.48e6,
	}
}

// scaled returns a model with the power of activities of the H100, scaled to another range of
// power.
func scaled(name string, sms int, memoryGiB, idle, context, limit, clock float64) Model {
	m := H100()
	by := (limit - context) / (m.LimitWatts - m.ContextWatts)
	m.Name, m.SMs, m.Memory = name, sms, memoryGiB*gib
	m.IdleWatts, m.ContextWatts, m.LimitWatts = idle, context, limit
	for _, watts := range []*float64{
		&m.SMWatts, &m.TensorWatts, &m.FP64Watts, &m.FP32Watts, &m.IntWatts, &m.DRAMWatts, &m.L2Watts,
	} {
		*watts *= by
	}
	m.ClockMax = clock
	return m
}

// A100 is an NVIDIA A100 SXM.
func A100() Model { return scaled("NVIDIA A100-SXM4-80GB", 108, 80, 52, 72, 400, 1410e6) }

// H200 is an NVIDIA H200 SXM (recorded).
func H200() Model {
	m := scaled("NVIDIA H200", 132, 141, 80, 124, 700, 1980e6)
	m.ReadingReceived, m.ReadingTransmitted = 0.39e6, 0.67e6
	return m
}

// L4 is an NVIDIA L4: without a context 12 W, with one 28 W.
func L4() Model { return scaled("NVIDIA L4", 58, 23, 12, 28, 72, 2040e6) }

// V100 is an NVIDIA V100 SXM: 53 W with a context, 65 to 78 W in a collective that waits
// (github.com/pytorch/pytorch/issues/22671, github.com/zai-org/GLM-130B/issues/32), so that a spin
// draws more of its range than on an H100.
func V100() Model {
	m := scaled("Tesla V100-SXM2-32GB", 80, 32, 40, 53, 300, 1530e6)
	m.SMWatts = 100
	return m
}

// R9700 is an AMD Radeon AI PRO R9700.
func R9700() Model { return scaled("AMD Radeon AI PRO R9700", 64, 32, 17, 44, 300, 2920e6) }

const (
	gib = 1 << 30
)

// Telemetry is what can be measured of a device.
type Telemetry uint8

// The kinds of telemetry.
const (
	// FullGPM is everything: NVML with GPM (Hopper and newer), or DCGM with all profiling fields.
	FullGPM Telemetry = iota
	// DCGMDefault is what dcgm-exporter serves without configuration: utilization, memory copy or
	// DRAM activity, tensor, decoder and encoder, PCIe and NVLink, power, clock, memory.
	DCGMDefault
	// NVMLOnly is NVML without GPM (Ampere and older): utilization, and that of the memory, which
	// stands for DRAM; decoder and encoder, PCIe, power, clock, memory.
	NVMLOnly
	// AMDSysfs is gpu_busy_percent and mem_busy_percent, power, clock, memory and XGMI.
	AMDSysfs
)

// Measures reports whether the telemetry has the field. All have those of the host: whether cgroups
// can be read does not depend on the device.
func (t Telemetry) Measures(f Field) bool {
	if f.Host() || f == Busy || f == MemoryUsed {
		return true
	}
	switch f {
	case SM, Occupancy, FP64, FP32, FP16, Int, JPEG, OFA:
		return t == FullGPM
	case Copy:
		return t == AMDSysfs
	case Tensor:
		return t == FullGPM || t == DCGMDefault
	case Decoder, Encoder, PCIeReceived, PCIeTransmitted:
		return t <= NVMLOnly
	default:
		return true
	}
}

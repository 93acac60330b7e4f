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

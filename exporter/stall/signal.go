package stall

import (
	"fmt"
	"math"
	"time"
)

// Signal is a kind of measurement of a device.
type Signal uint8

// The signals of a device.
const (
	Busy   Signal = iota // share of time in which any kernel ran
	Power                // watts
	Clock                // frequency of the SMs as a share of the highest one
	Tensor               // share of time in which a pipe was busy: tensor cores, FP64, FP32, FP16 and integers
	FP64
	FP32
	FP16
	Int
	SM      // share of SMs that had a warp
	Memory  // share of time, or of the bandwidth, of the device's memory
	Copy    // share of time of the copy engines
	Media   // share of time of the busiest of decoder, encoder, JPEG and optical flow
	PCIe    // bytes so far over PCIe
	Fabric  // bytes so far over NVLink or XGMI
	Receive // bytes so far that a network or RDMA device received
	Send    // bytes so far that a network or RDMA device transmitted
	NumSignals
)

// byteSignals is the number of the signals that are bytes counted so far, which are the last ones.
const byteSignals = NumSignals - PCIe

// String returns the signal's name, as in the label reason of dra_claim_stalled.
func (s Signal) String() string {
	return [...]string{
		"utilization", "power", "clock", "tensor", "fp64", "fp32", "fp16", "int", "sm", "memory_traffic", "copies", "media",
		"pcie", "fabric", "network_receive", "network_send",
	}[s]
}

// MarshalText implements [encoding.TextMarshaler].
func (s Signal) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Signal) UnmarshalText(text []byte) error {
	for of := range NumSignals {
		if of.String() == string(text) {
			*s = of
			return nil
		}
	}
	return fmt.Errorf("there is no signal %q", text)
}

// isBytes reports whether the signal's values are bytes counted so far.
func (s Signal) isBytes() bool { return s >= PCIe && s < NumSignals }

// Values has a value for each signal, NaN if it is not measured.
type Values [NumSignals]float64

// NoValues returns values without measurements.
func NoValues() Values {
	var v Values
	for s := range v {
		v[s] = math.NaN()
	}
	return v
}

// Measured reports whether a signal is measured.
func (v *Values) Measured(s Signal) bool { return !math.IsNaN(v[s]) }

// AtLeast raises a signal to a value.
func (v *Values) AtLeast(s Signal, value float64) {
	if !v.Measured(s) || value > v[s] {
		v[s] = value
	}
}

// Add adds a value to a signal.
func (v *Values) Add(s Signal, value float64) {
	if !v.Measured(s) {
		v[s] = 0
	}
	v[s] += value
}

// HostSignal is a kind of measurement of a pod on its host.
type HostSignal uint8

// The signals of a pod.
const (
	CPU        HostSignal = iota // seconds so far
	Storage                      // bytes so far that were read and written
	Faults                       // page faults so far
	HostMemory                   // bytes of anonymous memory and page cache now
	PodNetwork                   // bytes so far through the interfaces of its own network namespace
	NumHostSignals
)

// String returns the signal's name.
func (s HostSignal) String() string {
	return [...]string{"cpu", "storage", "page_faults", "host_memory", "pod_network"}[s]
}

// MarshalText implements [encoding.TextMarshaler].
func (s HostSignal) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *HostSignal) UnmarshalText(text []byte) error {
	for of := range NumHostSignals {
		if of.String() == string(text) {
			*s = of
			return nil
		}
	}
	return fmt.Errorf("there is no signal %q of a host", text)
}

// silent is the rate per second up to which a signal shows no work: logs, heartbeats and probes of
// a process that hangs are below it. See README.md.
func (s HostSignal) silent() float64 {
	switch s {
	case Storage, PodNetwork:
		return 2e5
	case Faults:
		return 200
	case HostMemory:
		return 5e5
	default: // CPU is compared with the threads that wait for devices
		return math.Inf(1)
	}
}

const (
	// spinningThread is the CPU time per second of the thread that waits for a busy device, with that
	// of its helpers, spinningThreads that with the thread that polls the network for it
	// (github.com/NVIDIA/nccl/issues/374), and otherThreads that of all others of a job that does
	// nothing.
	spinningThread, spinningThreads, otherThreads = 1.05, 2.1, 0.25
	// sleepingThread is the CPU time per second and busy device up to which no thread runs without a
	// pause.
	sleepingThread = 0.2
	// hostWindows is the number of windows for which a measurement of a pod is valid.
	hostWindows = 3
)

// HostValues has a value for each signal of a pod, NaN if it can't be read.
type HostValues [NumHostSignals]float64

// NoHostValues returns values without measurements.
func NoHostValues() HostValues {
	var v HostValues
	for s := range v {
		v[s] = math.NaN()
	}
	return v
}

// pod is what one pod does on the host.
type pod struct {
	last     HostValues
	at       time.Time // of last
	rate     HostValues
	measured time.Time // when rate was measured; zero: never
}

// ObserveHost adds readings of pods at one time, by their UIDs. Other pods are forgotten.
func (j *Judge) ObserveHost(at time.Time, pods map[string]HostValues) {
	next := make(map[string]pod, len(pods))
	for uid, values := range pods {
		p := j.pods[uid]
		span := at.Sub(p.at).Seconds()
		if p.at.IsZero() || span <= 0 {
			next[uid] = pod{last: values, at: at}
			continue
		}
		for s := range values {
			p.rate[s] = (values[s] - p.last[s]) / span
		}
		p.rate[HostMemory] = math.Abs(p.rate[HostMemory])
		p.last, p.at, p.measured = values, at, at
		next[uid] = p
	}
	j.pods = next
}

// hostClass is what the pods of a group do on the host.
type hostClass uint8

const (
	hostUnknown hostClass = iota
	hostWorks             // more than threads that wait
	hostSpins             // not more than one thread for each busy device, which may wait or compute
	hostSilent
)

// host is what the pods of a group do on the host.
type host struct {
	class hostClass
	more  bool         // more than a thread for each device, idle or busy, which may only poll
	shows []HostSignal // signals that show work
	read  []HostSignal // signals that were read of all pods
}

// hostOf returns what the pods of a group do on the host. Each busy device has a thread that may
// wait.
func (j *Judge) hostOf(g *group, now time.Time) host {
	sum := HostValues{}
	if len(g.pods) == 0 {
		return host{}
	}
	waiting := spinningThread * float64(g.busy)
	if g.exchanged {
		waiting = spinningThreads * float64(g.busy)
	}
	for uid := range g.pods {
		p := j.pods[uid]
		if p.measured.IsZero() || now.Sub(p.measured) > hostWindows*j.window {
			return host{}
		}
		for s := range sum {
			sum[s] += max(0, p.rate[s])
		}
	}
	h := host{class: hostSilent}
	for s := range NumHostSignals {
		limit := s.silent()
		if s == CPU {
			limit = waiting + otherThreads
		}
		if !math.IsNaN(sum[s]) {
			h.read = append(h.read, s)
		}
		if sum[s] > limit {
			h.shows = append(h.shows, s)
		}
	}
	h.more = len(h.shows) > 1 || len(h.shows) == 1 && h.shows[0] != CPU ||
		sum[CPU] > spinningThread*float64(g.ranks)+otherThreads
	switch {
	case len(h.shows) > 0:
		h.class = hostWorks
	case math.IsNaN(sum[CPU]) || math.IsNaN(sum[Faults]) || math.IsNaN(sum[HostMemory]):
		h.class = hostUnknown
	case sum[CPU] > sleepingThread*float64(max(1, g.busy)):
		h.class = hostSpins
	}
	return h
}

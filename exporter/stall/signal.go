package stall

import "math"

// Signal is a kind of measurement that can show life.
type Signal uint8

// The signals of a device.
const (
	Busy    Signal = iota // share of time in which any kernel ran
	Power                 // watts
	Compute               // share of time of the busiest pipe that computes: tensor, FP64, FP32 or FP16
	Memory                // share of time, or of the bandwidth, of the device's memory
	Copy                  // share of time of the copy engines
	Media                 // share of time of the busiest of decoder, encoder, JPEG and optical flow
	Host                  // bytes so far over PCIe
	Fabric                // bytes so far over NVLink or XGMI
	Network               // bytes so far over a network or RDMA device
	NumSignals
)

// String returns the signal's name in the label reason of dra_claim_stalled.
func (s Signal) String() string {
	return [...]string{
		"utilization", "power", "engines", "memory_traffic", "copies", "media", "pcie", "fabric", "network",
	}[s]
}

// band has the levels of a signal: up to quiet it shows no life, from life on it does. Between them
// it is unclear.
type band struct{ quiet, life float64 }

// band returns the band of a signal, in shares of time or in bytes per second. A kernel that polls
// a flag reads about 1 % of the memory's bandwidth, and its process sends some kB/s over links, as
// does reading of counters. Even the smallest repeated work exceeds these by far, since each launch
// of a kernel crosses PCIe.
func (s Signal) band() band {
	switch s {
	case Compute:
		return band{0.003, 0.008}
	case Memory:
		return band{0.015, 0.025}
	case Copy, Media:
		return band{0.005, 0.015}
	default:
		return band{2e5, 1e6}
	}
}

// isBytes reports whether the signal's values are bytes counted so far.
func (s Signal) isBytes() bool { return s >= Host && s < NumSignals }

// vital are the signals that show life by themselves; power needs a reference.
func vital() []Signal { return []Signal{Compute, Memory, Copy, Media, Host, Fabric, Network} }

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

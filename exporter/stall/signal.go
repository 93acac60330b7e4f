package stall

import "math"

// Signal is something that shows life, or that none is there.
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

// band separates what nothing moves from what shows life. Between the two a signal says nothing.
type band struct{ quiet, life float64 }

// bandOf returns the band of a signal, in shares of time and in bytes per second. A kernel that
// polls a flag reads about 1 % of the memory's bandwidth, and its process sends some KB/s over
// links, as does what reads the device's counters. The smallest work that a program launches again
// and again exceeds these by far: each launch of a kernel crosses PCIe.
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

// isBytes reports whether the signal's values are bytes so far.
func (s Signal) isBytes() bool { return s >= Host && s < NumSignals }

// vital are the signals that show life by themselves; power does with respect to a reference.
func vital() []Signal { return []Signal{Compute, Memory, Copy, Media, Host, Fabric, Network} }

// Values are the values of the signals; those that are not measured are NaN.
type Values [NumSignals]float64

// NoValues returns values of which none is measured.
func NoValues() Values {
	var v Values
	for s := range v {
		v[s] = math.NaN()
	}
	return v
}

// Measured reports whether a signal is.
func (v *Values) Measured(s Signal) bool { return !math.IsNaN(v[s]) }

// AtLeast sets a signal to the highest of its values.
func (v *Values) AtLeast(s Signal, value float64) {
	if !v.Measured(s) || value > v[s] {
		v[s] = value
	}
}

// Add adds to a signal.
func (v *Values) Add(s Signal, value float64) {
	if !v.Measured(s) {
		v[s] = 0
	}
	v[s] += value
}

package stall

import (
	"fmt"
	"math"
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

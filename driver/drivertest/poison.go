package drivertest

import (
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// clone copies samples so deeply that they share no memory.
func clone(samples []driver.Sample) []driver.Sample {
	out := slices.Clone(samples)
	for i := range out {
		s := &out[i]
		s.Hardware.CPUs = slices.Clone(s.Hardware.CPUs)
		s.Hardware.DeviceNodes = slices.Clone(s.Hardware.DeviceNodes)
		s.Readings = slices.Clone(s.Readings)
		s.Processes = slices.Clone(s.Processes)
		for j := range s.Processes {
			s.Processes[j].Readings = slices.Clone(s.Processes[j].Readings)
		}
	}
	return out
}

// poison writes to everything that a caller can reach from a sample, as far as its slices' capacity
// goes.
func poison(s *driver.Sample) {
	bad := driver.Reading{
		Quantity: driver.NumQuantities, Labels: driver.Labels{"poison", "poison"}, Value: math.Inf(-1),
		At: time.Unix(1, 0),
	}
	fill(s.Hardware.CPUs, -1)
	fill(s.Hardware.DeviceNodes, "poison")
	for _, p := range s.Processes {
		fill(p.Readings, bad)
	}
	fill(s.Readings, bad)
	fill(s.Processes, driver.Process{PID: -1})
}

func fill[T any](list []T, v T) {
	list = list[:cap(list)]
	for i := range list {
		list[i] = v
	}
}

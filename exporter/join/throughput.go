package join

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// deriveThroughput adds the throughput of the tensor cores to the readings of a device of which
// both their busy share and the clock of its SMs, with its maximum, are known. A mean of each over
// minutes does not give the mean of their product, so it is computed at each tick.
func (j *joiner) deriveThroughput(d *Device) {
	if !j.catalogue.Has(driver.TensorThroughput) || len(d.Readings) >= MaxReadings {
		return
	}
	var busy, clock *Reading
	highest := 0.0
	for i := range d.Readings {
		switch r := &d.Readings[i]; {
		case r.Quantity == driver.EngineUtilization && r.Labels[0] == "tensor":
			busy = r
		case r.Quantity == driver.Clock && isSM(r.Labels[0]) && (clock == nil || r.Labels[0] == "sm"):
			clock = r
		case r.Quantity == driver.ClockMax && isSM(r.Labels[0]):
			highest = max(highest, r.Value)
		}
	}
	if busy == nil || clock == nil || highest == 0 {
		return
	}
	r := Reading{Origin: busy.Origin, Reading: driver.Reading{
		Quantity: driver.TensorThroughput, Value: busy.Value * min(1, clock.Value/highest), At: busy.At,
	}}
	at, _ := slices.BinarySearchFunc(d.Readings, r, func(a, b Reading) int { return compareReadings(&a, &b) })
	d.Readings = slices.Insert(d.Readings, at, r)
}

// isSM reports whether a clock domain is that of the SMs.
func isSM(domain string) bool { return domain == "sm" || domain == "graphics" }

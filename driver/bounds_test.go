package driver_test

import (
	"math"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Impossible values are out of range. 0 is not a value where a sensor can't mean it.
func TestBounds(t *testing.T) {
	for _, tc := range []struct {
		quantity driver.Quantity
		value    float64
		want     driver.Reason
		absent   bool
	}{
		{driver.Power, 1200, "", false},
		{driver.Power, 0, "", true},
		{driver.Power, 4795000, driver.ReasonOutOfRange, false}, // Furiosa's, in a unit that is not settled
		{driver.Power, -1, driver.ReasonNegative, false},
		{driver.Temperature, 95, "", false},
		{driver.Temperature, -20, "", false},
		{driver.Temperature, -273.15, driver.ReasonOutOfRange, false},
		{driver.Temperature, 45000, driver.ReasonOutOfRange, false},
		{driver.Temperature, 0, "", true},
		{driver.Voltage, 0, "", true},
		{driver.Voltage, -12, "", false},
		{driver.Clock, 2.5e9, "", false},
		{driver.Clock, 0, "", true},
		{driver.Clock, 2.5e15, driver.ReasonOutOfRange, false},
		{driver.Utilization, 50, driver.ReasonOutOfRange, false},
		{driver.MemoryCapacity, 0, "", true},
		{driver.MemoryUsed, 0, "", false},
		{driver.MemoryCapacity, 288 << 50, driver.ReasonOutOfRange, false},
		{driver.LinkWidth, 0, "", true},
		{driver.FanRotation, 0, "", false},
		{driver.Energy, 1e13, "", false},
		{driver.Power, math.NaN(), driver.ReasonNotFinite, false},
	} {
		spec := tc.quantity.Spec()
		if got, absent := spec.Check(tc.value), spec.IsAbsent(tc.value, driver.KindDevice); got != tc.want || absent != tc.absent {
			t.Errorf("%v %v: %q, absent %v; want %q, %v", tc.quantity, tc.value, got, absent, tc.want, tc.absent)
		}
	}
}

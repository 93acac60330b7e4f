package driver_test

import (
	"io/fs"
	"math"
	"strconv"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
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
		{driver.Energy, 9.2e18, driver.ReasonOutOfRange, false},
		{driver.Energy, 0, "", false}, // the ledger decides
		{driver.LifetimeErrors, 9.2e18, driver.ReasonOutOfRange, false},
		{driver.PowerLimit, 0, "", true},
		{driver.ClockMax, 0, "", true},
		{driver.Power, math.NaN(), driver.ReasonNotFinite, false},
	} {
		spec := tc.quantity.Spec()
		got, absent := spec.Check(tc.value), spec.IsAbsent(tc.value, driver.KindDevice)
		expect.That(t, got == tc.want && absent == tc.absent,
			"%v %v: %q, absent %v; want %q, %v", tc.quantity, tc.value, got, absent, tc.want, tc.absent)
	}
}

// A partition may draw nothing, and a whole device may not.
func TestZeroOfPartition(t *testing.T) {
	for q, absent := range map[driver.Quantity]bool{
		driver.Power: false, driver.Clock: false, driver.Temperature: true, driver.MemoryUsed: false,
	} {
		spec := q.Spec()
		expect.That(t, spec.IsAbsent(0, driver.KindPartition) == absent,
			"0 of %v of a partition: absent %v, want %v", q, !absent, absent)
	}
}

// Codes for "no value" are none. Their neighbours are values.
func TestCodes(t *testing.T) {
	spec := driver.IOBytes.Spec()
	for name, code := range drivertest.HostileCodes() {
		expect.Is(t, spec.Check(code), driver.ReasonNoValue, "%s", name)
		expect.That(t, spec.Check(code*0.999) != driver.ReasonNoValue, "%s × 0.999 is a code", name)
		got, ok := driver.NumberOf(code, nil)
		expect.That(t, ok && driver.IsMalformed(got), "%s of a source is %v, %v", name, got, ok)
	}
}

// What is no number is rejected as malformed, also after a conversion of its unit. Files that do
// not exist have no reading.
func TestMalformed(t *testing.T) {
	spec := driver.Power.Spec()
	parsed := func(text string) (float64, bool) { return driver.NumberOf(strconv.ParseUint(text, 10, 64)) }
	for text, want := range map[string]driver.Reason{"7": "", "-7": driver.ReasonMalformed, "x": driver.ReasonMalformed} {
		watts, ok := parsed(text)
		got := spec.Check(watts * 1e-6)
		expect.That(t, ok && got == want, "%s: %v, %q; want %q", text, ok, got, want)
	}
	if _, ok := driver.NumberOf(uint64(7), fs.ErrNotExist); ok {
		t.Error("a file that does not exist has a number")
	}
	expect.Is(t, spec.Check(math.NaN()), driver.ReasonNotFinite, "NaN")
}

package driver_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
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

// TestReasons: the constants are all there are, each once, and valid as labels.
func TestReasons(t *testing.T) {
	text := string(must.Get(os.ReadFile("reason.go"))(t))
	seen := map[string]bool{}
	for _, found := range regexp.MustCompile(`Reason = "([^"]*)"`).FindAllStringSubmatch(text, -1) {
		expect.That(t, !seen[found[1]], "%q is there twice", found[1])
		snake := regexp.MustCompile(`^[a-z0-9]+(_[a-z0-9]+)*$`).MatchString(found[1])
		expect.That(t, snake, "%q is not in snake case", found[1])
		seen[found[1]] = true
	}
	expect.That(t, len(seen) > 50, "%d reasons", len(seen))
	other := regexp.MustCompile(`driver\.Reason\("\w|WithReason\("`)
	must.Do(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && path != "reason_test.go" {
			made := other.Find(must.Get(os.ReadFile(path))(t))
			expect.That(t, made == nil, "%s makes a reason: %s", path, made)
		}
		return err
	}))
}

func TestReasonOf(t *testing.T) {
	lost := driver.WithReason(driver.ReasonGPULost, errors.New("lost"))
	for _, tc := range []struct {
		err  error
		want driver.Reason
	}{
		{nil, ""},
		{errors.New("x"), driver.ReasonOther},
		{lost, driver.ReasonGPULost},
		{fmt.Errorf("read: %w", lost), driver.ReasonGPULost},
		{errors.Join(errors.New("x"), lost), driver.ReasonGPULost},
		{driver.WithReason(driver.ReasonHostEngine, lost), driver.ReasonHostEngine}, // the outer one
		{driver.WithReason(driver.ReasonGPULost, context.Canceled), driver.ReasonGPULost},
		{driver.WithReason(driver.ReasonGPULost, nil), ""},
		{driver.Hung("call NVML"), driver.ReasonHung},
		{fmt.Errorf("read: %w", context.DeadlineExceeded), driver.ReasonTimeout},
		{&fs.PathError{Op: "read", Path: "x", Err: os.ErrDeadlineExceeded}, driver.ReasonTimeout},
		{context.Canceled, driver.ReasonCanceled},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, driver.ReasonForbidden},
	} {
		expect.Is(t, driver.ReasonOf(tc.err), tc.want, "ReasonOf(%v) =", tc.err)
	}
	expect.Is(t, driver.Hung("call NVML").Error(), "call NVML: no answer in time", "hung")
}

func TestRejections(t *testing.T) {
	counts := driver.Rejections{}
	counts.Add(driver.ReasonTooMany, 2)
	counts.Add(driver.ReasonDuplicate, 1)
	counts.Add(driver.ReasonTooMany, 1)
	counts.Add(driver.ReasonStale, 0)
	counts.Add(driver.ReasonStale, -1)
	want := []driver.Rejection{
		{Input: "slices", Reason: driver.ReasonDuplicate, Count: 1},
		{Input: "slices", Reason: driver.ReasonTooMany, Count: 3},
	}
	expect.Equal(t, "rejections", want, counts.Of("slices"))
}

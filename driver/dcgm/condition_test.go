//go:build cgo

package dcgm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/dcgm/dcgmtest"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Each condition that needs an action appears alone, with its action. An earlier engine does not
// know all of them, and reads the others.
func TestNeedsAttention(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(*dcgmtest.Condition)
		early  bool // an earlier engine knows it
	}{
		{"none ok", func(*dcgmtest.Condition) {}, true},
		{"reset row_remap_pending", func(c *dcgmtest.Condition) { c.RemapPending = 1 }, true},
		{"rma row_remap_failed", func(c *dcgmtest.Condition) { c.RemapFailed = 1 }, true},
		{"reset page_retirement_pending", func(c *dcgmtest.Condition) { c.RetirementPending = 1 }, true},
		{"rma sram_ecc_threshold", func(c *dcgmtest.Condition) { c.SRAMThreshold = 1 }, true},
		{"rma unrepairable_memory", func(c *dcgmtest.Condition) { c.Unrepairable = 1 }, false},
		{"reset recovery_action", func(c *dcgmtest.Condition) { c.RecoveryAction = 4 }, false},
		{"reboot recovery_action", func(c *dcgmtest.Condition) { c.RecoveryAction = 2 }, false},
	} {
		for _, vocabulary := range []int64{dcgmtest.Vocabulary46, dcgmtest.Vocabulary45, dcgmtest.VocabularyEarly} {
			t.Run(fmt.Sprintf("%s, vocabulary %d", tc.want, vocabulary), func(t *testing.T) {
				want := tc.want
				if vocabulary == dcgmtest.VocabularyEarly && !tc.early {
					want = "none ok"
				}
				c := newClock(1)
				machine.Vocabulary = vocabulary
				s := newSource(t, c, nil)
				nvidiatest.Sample(t, s)
				tc.change(&machine.GPUs[0].Condition)
				c.Advance(newer.interval().Seconds())
				if got := nvidiatest.Attention(nvidiatest.Sample(t, s)[0]); !slices.Equal(got, []string{want}) {
					t.Errorf("%q, want %q", got, want)
				}
			})
		}
	}
}

// readingsOf returns the readings of a quantity by their labels, after a time in which the engine
// reads everything.
func readingsOf(t *testing.T, change func(*dcgmtest.Condition), q driver.Quantity) map[string]float64 {
	t.Helper()
	c := newClock(1)
	change(&machine.GPUs[0].Condition)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(slow.interval().Seconds())
	return nvidiatest.Readings(nvidiatest.Sample(t, s)[0], q)
}

// The state of a GPU in its fabric: dcgmFabricManagerStatus_t, and NVML's summary of its health.
func TestFabricState(t *testing.T) {
	for in, want := range map[[2]float64]string{
		{0, 0}: "", {1, 0}: "not_started", {2, 0}: "in_progress", {3, 1}: "healthy", {3, nan()}: "healthy",
		{4, 1}: "failed", {3, 2}: "unhealthy", {3, 3}: "limited", {5, 0}: "", {6, 0}: "", {nan(), 1}: "",
	} {
		t.Run(fmt.Sprint(in), func(t *testing.T) {
			states := map[string]float64{}
			if want != "" {
				states[want] = 1
			}
			got := readingsOf(t, func(c *dcgmtest.Condition) { c.FabricStatus, c.FabricSummary = in[0], in[1] },
				driver.FabricState)
			expect.Equal(t, "", states, got)
		})
	}
}

func TestThrottleActive(t *testing.T) {
	got := readingsOf(t, func(c *dcgmtest.Condition) { c.Throttling = 0x40 },
		driver.ThrottleActive)
	want := map[string]float64{"power": 0, "thermal": 0, "hw_thermal": 1, "hw_power_brake": 0, "other": 0}
	expect.Equal(t, "", want, got)
}

// NVLink 5 counts recoveries in a field of its own, and none of the older errors.
func TestNVLink5(t *testing.T) {
	got := readingsOf(t, func(c *dcgmtest.Condition) {
		c.NVLinkCRC, c.NVLinkReplay, c.NVLinkRecovery, c.NVLink5Recovery = nan(), nan(), nan(), 7
	}, driver.Errors)
	maps.DeleteFunc(got, func(labels string, _ float64) bool { return !strings.HasPrefix(labels, "nvlink") })
	expect.Equal(t, "", map[string]float64{"nvlink recovery": 7}, got)
}

// The speed of the fan is a ratio or a percentage, depending on the engine.
func TestFanSpeed(t *testing.T) {
	for _, vocabulary := range []int64{
		dcgmtest.Vocabulary46, dcgmtest.Vocabulary45, dcgmtest.VocabularyRenewed, dcgmtest.VocabularyEarly,
	} {
		t.Run(fmt.Sprintf("vocabulary %d", vocabulary), func(t *testing.T) {
			got := readingsOf(t, func(*dcgmtest.Condition) { machine.Vocabulary = vocabulary }, driver.FanSpeed)
			expect.Equal(t, "", map[string]float64{"": 0.35}, got, nvidiatest.Approximately())
		})
	}
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../nvidia/README.md", "DCGM", Fills()) }

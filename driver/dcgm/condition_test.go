//go:build cgo

package dcgm

import (
	"fmt"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/dcgm/dcgmtest"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// library is the source on a machine of one GPU. An earlier engine does not know all conditions.
func library() nvidiatest.Library {
	early := map[string]int64{"early": 1}
	return nvidiatest.Library{
		Versions: map[string][]string{"4.6": nil, "early": {"unrepairable_memory", "recovery_action"}},
		Start: func(t *testing.T, version string) (*nvidiatest.Clock, driver.Source) {
			c := newClock(1)
			machine.Early = early[version]
			return c, newSource(t, c, nil)
		},
		GPU: &machine.GPUs[0], Wait: slow.interval(),
	}
}

func TestNeedsAttention(t *testing.T) { library().NeedsAttention(t) }

func TestThrottleActive(t *testing.T) { library().ThrottleActive(t) }

func TestNVLink5(t *testing.T) { library().NVLink5(t, "4.6") }

// readingsOf returns the readings of a quantity by their labels, after a time in which the engine
// reads everything.
func readingsOf(t *testing.T, change func(*dcgmtest.Condition), q driver.Quantity) map[string]float64 {
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

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../nvidia/README.md", "DCGM", Fills()) }

//go:build cgo

package nvml

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// library is the source on a machine of one GPU.
func library() nvidiatest.Library {
	return nvidiatest.Library{
		Versions: map[string][]string{"570.86.15": nil, "580.65.06": nil, "590.44.01": nil},
		Start: func(t *testing.T, version string) (*nvidiatest.Clock, driver.Source) {
			c := newClock()
			machine.Reset(1)
			machine.SetDriver(version)
			return c, newSource(t, c, nil)
		},
		GPU: &machine.GPUs[0], Wait: rareInterval,
	}
}

func TestNeedsAttention(t *testing.T) { library().NeedsAttention(t) }

// A GPU without any of these values is not reported as fine.
func TestNeedsAttentionUnknown(t *testing.T) {
	machine.Reset(1)
	machine.GPUs[0].Condition = nvmltest.Condition{
		RemapPending: nan(), RemapFailed: nan(), RetirementPending: nan(), ChannelRepair: nan(), SRAMThreshold: nan(),
		Unrepairable: nan(), RecoveryAction: nan(), LifetimeCorrected: nan(), LifetimeUncorrected: nan(),
	}
	got := nvidiatest.Values(nvidiatest.Sample(t, newSource(t, newClock(), nil))[0])
	maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "needs_attention") })
	expect.Equal(t, "readings", map[string]float64{}, got)
}

// Values that rarely change are read once a minute.
func TestRareQueries(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	s := newSource(t, c, nil)
	for range 60 {
		nvidiatest.Sample(t, s)
		c.Advance(1)
	}
	for _, q := range conditionQueries() {
		want := map[time.Duration]int{rareInterval: 1, slowInterval: 6, 0: 60}[q.every]
		if q.function == "nvmlDeviceGetMaxClockInfo" {
			want *= 2 // a call for each domain
		}
		if strings.HasPrefix(q.function, "nvml") && machine.Calls(q.function) != want {
			t.Errorf("%s was called %d times in a minute, want %d", q.function, machine.Calls(q.function), want)
		}
	}
}

func TestThrottleActive(t *testing.T) { library().ThrottleActive(t) }

func TestNVLink5(t *testing.T) { library().NVLink5(t, "580.65.06") }

// The state of a GPU in its fabric.
func TestFabricState(t *testing.T) {
	type info struct{ state, status, summary float64 }
	for in, want := range map[info]string{
		{0, 0, 0}: "", {1, 0, 0}: "not_started", {2, 0, 0}: "in_progress", {3, 0, 1}: "healthy", {3, 0, 0}: "healthy",
		{3, 999, 1}: "failed", {3, 0, 2}: "unhealthy", {3, 0, 3}: "limited",
	} {
		machine.Reset(1)
		c := &machine.GPUs[0].Condition
		c.FabricState, c.FabricStatus, c.FabricSummary = in.state, in.status, in.summary
		states := map[string]float64{}
		if want != "" {
			states[want] = 1
		}
		got := nvidiatest.Readings(nvidiatest.Sample(t, newSource(t, newClock(), nil))[0], driver.FabricState)
		expect.Equal(t, fmt.Sprint(in), states, got)
	}
}

// An unknown performance state is none.
func TestPerformanceState(t *testing.T) {
	machine.Reset(1)
	machine.GPUs[0].Condition.PerformanceState = 32
	v, ok := nvidiatest.Value(nvidiatest.Sample(t, newSource(t, newClock(), nil))[0], driver.PerformanceState)
	expect.That(t, !ok, "NVML_PSTATE_UNKNOWN is read as %v", v)
}

// A number or scope that a driver refuses is not supported, and no failure.
func TestRefusedField(t *testing.T) {
	machine.Reset(1)
	c := &machine.GPUs[0].Condition
	c.NVLinkRecovery, c.NVLink5Recovery = nan(), -1
	got := nvidiatest.Sample(t, newSource(t, newClock(), nil))[0]
	v, ok := nvidiatest.Value(got, driver.Errors, "nvlink", "recovery")
	expect.That(t, !ok, "nvlink recovery is %v", v)
}

// Errors of the PCIe link are the kernel's counts.
func TestAER(t *testing.T) {
	machine.Reset(1)
	s := newSource(t, newClock(), func(config *Config) {
		const folder = "bus/pci/devices/0000:1b:00.0/"
		drivertest.WriteTree(t, config.Sysfs, folder+"aer_dev_correctable: TOTAL_ERR_COR 5\n"+
			folder+"aer_dev_nonfatal: TOTAL_ERR_NONFATAL 2\n"+folder+"aer_dev_fatal: TOTAL_ERR_FATAL 1")
	})
	got := nvidiatest.Readings(nvidiatest.Sample(t, s)[0], driver.Errors)
	maps.DeleteFunc(got, func(labels string, _ float64) bool { return !strings.HasPrefix(labels, "pcie_aer") })
	expect.Equal(t, "errors", map[string]float64{"pcie_aer correctable": 5, "pcie_aer uncorrectable": 3}, got)
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../nvidia/README.md", "NVML", Fills()) }

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

func TestXIDs(t *testing.T) {
	c := newClock()
	machine.Reset(2)
	machine.Partition(1, 2)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	before := c.Time
	c.Advance(1)
	machine.XID(0, 31, -1, -1)
	machine.XID(0, 31, -1, -1)
	machine.XID(1, 13, 8, 0)
	machine.XID(1, 48, 99, 0) // of an instance that is not there
	for range 2 {
		samples := nvidiatest.Sample(t, s)
		for _, tc := range []struct {
			uuid, code string
			want       float64
		}{
			{machine.GPUs[0].UUID(), "31", 2},
			{machine.GPUs[1].Instances[1].UUID(), "13", 1},
			{machine.GPUs[1].UUID(), "48", 1},
		} {
			got, ok := nvidiatest.Value(of(t, samples, tc.uuid), driver.Errors, "xid", tc.code)
			expect.That(t, ok && got == tc.want, "%s: XID %s counted %v times, want %v", tc.uuid, tc.code, got, tc.want)
		}
		for _, r := range of(t, samples, machine.GPUs[0].UUID()).Readings {
			if r.Labels[0] == "xid" && !r.Since.Equal(before) {
				t.Errorf("XID %s counts since %v, want the sample before, %v", r.Labels[1], r.Since, before)
			}
		}
		c.Advance(1)
	}
}

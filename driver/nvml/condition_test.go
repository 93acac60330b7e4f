//go:build cgo

package nvml

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Each condition that needs an action appears alone, with its action, and disappears.
func TestNeedsAttention(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(*nvmltest.Condition)
		since  int // the first branch of drivers that reports it
	}{
		{"none ok", func(*nvmltest.Condition) {}, 535},
		{"reset row_remap_pending", func(c *nvmltest.Condition) { c.RemapPending = 1 }, 535},
		{"rma row_remap_failed", func(c *nvmltest.Condition) { c.RemapFailed = 1 }, 535},
		{"reset page_retirement_pending", func(c *nvmltest.Condition) { c.RetirementPending = 1 }, 535},
		{"reset channel_repair_pending", func(c *nvmltest.Condition) { c.ChannelRepair = 1 }, 535},
		{"reset tpc_repair_pending", func(c *nvmltest.Condition) { c.TPCRepair = 1 }, 535},
		{"rma sram_ecc_threshold", func(c *nvmltest.Condition) { c.SRAMThreshold = 1 }, 535},
		{"rma unrepairable_memory", func(c *nvmltest.Condition) { c.Unrepairable = 1 }, 535},
		{"reset recovery_action", func(c *nvmltest.Condition) { c.RecoveryAction = 1 }, 570},
		{"reboot recovery_action", func(c *nvmltest.Condition) { c.RecoveryAction = 2 }, 570},
		{"drain recovery_action", func(c *nvmltest.Condition) { c.RecoveryAction = 3 }, 570},
	} {
		t.Run(tc.want, func(t *testing.T) {
			for _, version := range []string{"535.183.01", "550.163.01", "570.86.15", "580.65.06", "590.44.01"} {
				want := tc.want
				if branch(version) < tc.since {
					want = "none ok"
				}
				c := newClock()
				machine.Reset(1)
				machine.SetDriver(version)
				s := newSource(t, c, nil)
				nvidiatest.Sample(t, s)
				tc.change(&machine.GPUs[0].Condition)
				c.Advance(rareInterval.Seconds())
				if got := nvidiatest.Attention(nvidiatest.Sample(t, s)[0]); !slices.Equal(got, []string{want}) {
					t.Errorf("%s: %q, want %q", version, got, want)
				}
				machine.GPUs[0].Condition = nvmltest.Condition{}
				c.Advance(rareInterval.Seconds())
				if got := nvidiatest.Attention(nvidiatest.Sample(t, s)[0]); !slices.Equal(got, []string{"none ok"}) {
					t.Errorf("%s, when it is over: %q", version, got)
				}
			}
		})
	}
}

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
		switch q.function {
		case "nvmlDeviceGetCurrentClocksThrottleReasons":
			want = 0 // the new name answers
		case "nvmlDeviceGetMaxClockInfo":
			want *= 2 // a call for each domain
		}
		if strings.HasPrefix(q.function, "nvml") && machine.Calls(q.function) != want {
			t.Errorf("%s was called %d times in a minute, want %d", q.function, machine.Calls(q.function), want)
		}
	}
}

// Why a GPU is throttled now, by the bits of nvml.h. An idle GPU and chosen clocks are no
// throttling.
func TestThrottleActive(t *testing.T) {
	for mask, active := range map[float64][]string{
		0x0: nil, 0x1: nil, 0x2: nil, 0x3: nil, 0x4: {"power"}, 0x20: {"thermal"}, 0x48: {"hw_thermal"},
		0x88: {"hw_power_brake"}, 0x8: {"other"}, 0x10: {"other"}, 0x400: {"other"}, 0x24: {"power", "thermal"},
	} {
		for _, library := range []string{machine.Library, machine.OldLibrary} {
			machine.Reset(1)
			machine.GPUs[0].Condition.Throttling = mask
			want := map[string]float64{"power": 0, "thermal": 0, "hw_thermal": 0, "hw_power_brake": 0, "other": 0}
			for _, reason := range active {
				want[reason] = 1
			}
			s := newSource(t, newClock(), func(c *Config) { c.Library = library })
			if diff := cmp.Diff(want, nvidiatest.Readings(nvidiatest.Sample(t, s)[0], driver.ThrottleActive)); diff != "" {
				t.Errorf("%#x (-want +got):\n%s", int(mask), diff)
			}
		}
	}
}

// The state of a GPU in its fabric. Drivers before 570 do not report its health.
func TestFabricState(t *testing.T) {
	type info struct{ state, status, summary float64 }
	for in, want := range map[info]map[string]string{
		{0, 0, 0}:   {"535": "", "580": ""},
		{1, 0, 0}:   {"535": "not_started", "580": "not_started"},
		{2, 0, 0}:   {"535": "in_progress", "580": "in_progress"},
		{3, 0, 1}:   {"535": "healthy", "580": "healthy"},
		{3, 0, 0}:   {"535": "healthy", "580": "healthy"},
		{3, 999, 1}: {"535": "failed", "580": "failed"},
		{3, 0, 2}:   {"535": "healthy", "580": "unhealthy"},
		{3, 0, 3}:   {"535": "healthy", "580": "limited"},
	} {
		for version, state := range want {
			machine.Reset(1)
			machine.SetDriver(version + ".1")
			c := &machine.GPUs[0].Condition
			c.FabricState, c.FabricStatus, c.FabricSummary = in.state, in.status, in.summary
			states := map[string]float64{}
			if state != "" {
				states[state] = 1
			}
			got := nvidiatest.Readings(nvidiatest.Sample(t, newSource(t, newClock(), nil))[0], driver.FabricState)
			expect.Equal(t, fmt.Sprintf("%v, driver %s", in, version), states, got)
		}
	}
}

// An unknown performance state is none.
func TestPerformanceState(t *testing.T) {
	machine.Reset(1)
	machine.GPUs[0].Condition.PerformanceState = 32
	v, ok := nvidiatest.Value(nvidiatest.Sample(t, newSource(t, newClock(), nil))[0], driver.PerformanceState)
	expect.That(t, !ok, "NVML_PSTATE_UNKNOWN is read as %v", v)
}

// NVLink 5 counts recoveries in a field of its own, and none of the older errors.
func TestNVLink5(t *testing.T) {
	machine.Reset(1)
	c := &machine.GPUs[0].Condition
	c.NVLinkCRC, c.NVLinkReplay, c.NVLinkRecovery, c.NVLink5Recovery = nan(), nan(), nan(), 7
	got := nvidiatest.Readings(nvidiatest.Sample(t, newSource(t, newClock(), nil))[0], driver.Errors)
	maps.DeleteFunc(got, func(labels string, _ float64) bool { return !strings.HasPrefix(labels, "nvlink") })
	expect.Equal(t, "errors", map[string]float64{"nvlink recovery": 7}, got)
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

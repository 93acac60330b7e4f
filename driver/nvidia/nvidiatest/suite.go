package nvidiatest

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Library is a source that reads a fake library.
type Library struct {
	// Versions are versions of the driver or of the engine, each with the reasons for an action that
	// it does not report.
	Versions map[string][]string
	// Start makes the machine one of a GPU and a version, and returns its clock and a source.
	Start func(t *testing.T, version string) (*Clock, driver.Source)
	GPU   any           // a pointer to the GPU's state in the fake
	Wait  time.Duration // until all is read again
}

// lookup returns a field of the GPU's state, or of its Condition or Work, invalid if it has none.
func lookup(gpu any, name string) reflect.Value {
	state := reflect.ValueOf(gpu).Elem()
	field := state.FieldByName(name)
	for _, part := range []string{"Condition", "Work"} {
		if of := state.FieldByName(part); !field.IsValid() && of.IsValid() {
			field = of.FieldByName(name)
		}
	}
	return field
}

// Quantities are what both libraries read of a GPU, by quantity and labels, in base units.
func Quantities(gpu any) map[string]float64 {
	out := map[string]float64{
		"throttle_active power": 1, "throttle_active thermal": 0, "throttle_active hw_thermal": 0,
		"throttle_active hw_power_brake": 0, "throttle_active other": 0, "fabric_state healthy": 1,
		"needs_attention none ok": 1,
	}
	for name, field := range map[string]string{
		"memory_used": "Memory", "memory_capacity": "MemoryTotal", "memory_reserved": "MemoryReserved",
		"power": "Power", "energy": "Energy", "temperature gpu": "Temperature", "temperature memory": "MemoryTemperature",
		"clock sm": "ClockSM", "clock memory": "ClockMemory", "clock video": "ClockVideo",
		"engine_utilization encoder": "Encoder", "engine_utilization decoder": "Decoder",
		"errors pcie_replay": "PCIeReplays", "errors ecc_corrected": "Corrected", "errors ecc_uncorrected": "Uncorrected",
		"errors row_remap correctable": "RemappedCorrected", "errors row_remap uncorrectable": "RemappedUncorrected",
		"errors page_retirement sbe": "RetiredSBE", "errors page_retirement dbe": "RetiredDBE",
		"power_limit enforced": "LimitEnforced", "power_limit default": "LimitDefault",
		"power_limit min": "LimitMin", "power_limit max": "LimitMax", "performance_state": "PerformanceState",
		"clock_max sm": "ClockSMMax", "clock_max memory": "ClockMemoryMax",
		"link_width pcie": "LinkWidth", "link_width_max pcie": "LinkWidthMax",
		"link_generation pcie": "LinkGeneration", "link_generation_max pcie": "LinkGenerationMax",
		"errors nvlink crc": "NVLinkCRC", "errors nvlink replay": "NVLinkReplay", "errors nvlink recovery": "NVLinkRecovery",
		"temperature_margin": "Margin", "fan_speed": "Fan",
		"lifetime_errors ecc_corrected": "LifetimeCorrected", "lifetime_errors ecc_uncorrected": "LifetimeUncorrected",
		"lifetime_errors row_remap correctable":   "RemappedCorrected",
		"lifetime_errors row_remap uncorrectable": "RemappedUncorrected",
		"lifetime_errors page_retirement sbe":     "RetiredSBE", "lifetime_errors page_retirement dbe": "RetiredDBE",
	} {
		out[name] = lookup(gpu, field).Float()
	}
	return out
}

// NeedsAttention checks that each condition that needs an action appears alone, with its action,
// and disappears. A version that does not report it reports the others.
func (l Library) NeedsAttention(t *testing.T) {
	for _, condition := range []struct {
		want, field string
		value       float64
	}{
		{"reset row_remap_pending", "RemapPending", 1},
		{"rma row_remap_failed", "RemapFailed", 1},
		{"reset page_retirement_pending", "RetirementPending", 1},
		{"reset channel_repair_pending", "ChannelRepair", 1}, // of NVML alone
		{"reset tpc_repair_pending", "TPCRepair", 1},         // of NVML alone
		{"rma sram_ecc_threshold", "SRAMThreshold", 1},
		{"rma unrepairable_memory", "Unrepairable", 1},
		{"reset recovery_action", "RecoveryAction", 1},
		{"reboot recovery_action", "RecoveryAction", 2},
		{"drain recovery_action", "RecoveryAction", 3},
		{"reset recovery_action", "RecoveryAction", 4},
	} {
		if lookup(l.GPU, condition.field).IsValid() {
			for version, lacks := range l.Versions {
				t.Run(fmt.Sprintf("%s, %s %v", version, condition.field, condition.value), func(t *testing.T) {
					want := condition.want
					if _, reason, _ := strings.Cut(want, " "); slices.Contains(lacks, reason) {
						want = "none ok"
					}
					clock, source := l.Start(t, version)
					got := Attention(Sample(t, source)[0])
					for _, value := range []float64{condition.value, 0} {
						lookup(l.GPU, condition.field).SetFloat(value)
						clock.Advance(l.Wait.Seconds())
						got = append(got, Attention(Sample(t, source)[0])...)
					}
					expect.Equal(t, "before, during and after", []string{"none ok", want, "none ok"}, got)
				})
			}
		}
	}
}

// ThrottleActive checks why a GPU is throttled now, by the bits of nvml.h. An idle GPU and chosen
// clocks are no throttling.
func (l Library) ThrottleActive(t *testing.T) {
	for mask, active := range map[float64][]string{
		0x0: nil, 0x1: nil, 0x2: nil, 0x3: nil, 0x4: {"power"}, 0x20: {"thermal"}, 0x48: {"hw_thermal"},
		0x88: {"hw_power_brake"}, 0x8: {"other"}, 0x10: {"other"}, 0x400: {"other"}, 0x24: {"power", "thermal"},
	} {
		want := map[string]float64{"power": 0, "thermal": 0, "hw_thermal": 0, "hw_power_brake": 0, "other": 0}
		for _, reason := range active {
			want[reason] = 1
		}
		for version := range l.Versions {
			t.Run(fmt.Sprintf("%s, %#x", version, int(mask)), func(t *testing.T) {
				got := l.with(t, version, map[string]float64{"Throttling": mask}, driver.ThrottleActive)
				expect.Equal(t, "", want, got)
			})
		}
	}
}

// NVLink5 checks that NVLink 5 counts recoveries in a field of its own, and none of the older
// errors.
func (l Library) NVLink5(t *testing.T, version string) {
	nan := math.NaN()
	got := l.with(t, version, map[string]float64{
		"NVLinkCRC": nan, "NVLinkReplay": nan, "NVLinkRecovery": nan, "NVLink5Recovery": 7,
	}, driver.Errors)
	maps.DeleteFunc(got, func(labels string, _ float64) bool { return !strings.HasPrefix(labels, "nvlink") })
	expect.Equal(t, "errors", map[string]float64{"nvlink recovery": 7}, got)
}

// with returns the readings of a quantity by their labels, in a state of the GPU.
func (l Library) with(t *testing.T, version string, state map[string]float64, q driver.Quantity) map[string]float64 {
	clock, source := l.Start(t, version)
	for field, value := range state {
		must.That(t, lookup(l.GPU, field).IsValid(), "the fake has no %s", field)
		lookup(l.GPU, field).SetFloat(value)
	}
	Sample(t, source)
	clock.Advance(l.Wait.Seconds())
	return Readings(Sample(t, source)[0], q)
}

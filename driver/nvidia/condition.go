package nvidia

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// RecoveryAction returns the reading of driver.NeedsAttention for a recovery action that the driver
// requests (nvmlDeviceGpuRecoveryAction_t). Its value is 0 for NVML_GPU_RECOVERY_ACTION_NONE.
func RecoveryAction(code float64, at time.Time) driver.Reading {
	action, value := "investigate", 1.
	switch code {
	case 0: // NONE
		action, value = "reset", 0
	case 1, 4, 6: // GPU_RESET, DRAIN_AND_RESET, BUS_RESET
		action = "reset"
	case 2, 7: // NODE_REBOOT, SYSTEM_REBOOT
		action = "reboot"
	case 3: // DRAIN_P2P
		action = "drain"
	case 5: // RECOVER_IMEX_DOMAIN
		action = "recover_fabric"
	}
	return driver.Reading{
		Quantity: driver.NeedsAttention, Labels: driver.Labels{action, "recovery_action"}, Value: value, At: at,
	}
}

// ThrottleActive returns the readings of driver.ThrottleActive for a bitmask of reasons
// (nvmlClocksEventReason*, equal to DCGM_CLOCKS_EVENT_REASON_*). The labels are those of
// driver.ThrottledSeconds, and other for all other reasons except an idle GPU and configured
// clocks. A hardware slowdown whose cause has its own bit counts only for that cause.
func ThrottleActive(mask uint64, at time.Time) []driver.Reading {
	const (
		gpuIdle, chosenClocks, hardwareSlowdown = 0x1, 0x2, 0x8
		power, thermal, hwThermal, powerBrake   = 0x4, 0x20, 0x40, 0x80
	)
	other := mask &^ (gpuIdle | chosenClocks | power | thermal | hwThermal | powerBrake)
	if mask&(hwThermal|powerBrake) != 0 {
		other &^= hardwareSlowdown
	}
	var out []driver.Reading
	for _, reason := range []struct {
		name string
		bits uint64
	}{
		{"power", mask & power},
		{"thermal", mask & thermal},
		{"hw_thermal", mask & hwThermal},
		{"hw_power_brake", mask & powerBrake},
		{"other", other},
	} {
		value := 0.
		if reason.bits != 0 {
			value = 1
		}
		out = append(out, driver.Reading{
			Quantity: driver.ThrottleActive, Labels: driver.Labels{reason.name}, Value: value, At: at,
		})
	}
	return out
}

// FabricProbe is the state of a GPU's registration with the fabric of its machine or rack
// (nvmlGpuFabricState_t).
type FabricProbe uint64

// The states of a probe: NVML_GPU_FABRIC_STATE_NOT_STARTED to _COMPLETED.
const (
	FabricNotStarted FabricProbe = iota + 1
	FabricInProgress
	FabricCompleted
)

// FabricState returns the reading of driver.FabricState, or false if the GPU is in no fabric.
// failed means that the probe completed with an error. summary is healthSummary of
// nvmlGpuFabricInfo_v3_t (NVML_GPU_FABRIC_HEALTH_SUMMARY_*), 0 if it is unknown.
func FabricState(probe FabricProbe, failed bool, summary uint64, at time.Time) (driver.Reading, bool) {
	const unhealthy, limited = 2, 3
	state := "healthy"
	switch {
	case probe == FabricNotStarted:
		state = "not_started"
	case probe == FabricInProgress:
		state = "in_progress"
	case probe != FabricCompleted:
		return driver.Reading{}, false
	case failed:
		state = "failed"
	case summary == unhealthy:
		state = "unhealthy"
	case summary == limited:
		state = "limited"
	}
	return driver.Reading{Quantity: driver.FabricState, Labels: driver.Labels{state}, Value: 1, At: at}, true
}

// Attention removes the readings of driver.NeedsAttention whose value is 0. If that removes all of
// them, it adds the reading with action none and reason ok.
func Attention(readings []driver.Reading) []driver.Reading {
	none := driver.Reading{Quantity: driver.NeedsAttention, Labels: driver.Labels{"none", "ok"}, Value: 1}
	known, asked := false, false
	readings = slices.DeleteFunc(readings, func(r driver.Reading) bool {
		if r.Quantity != driver.NeedsAttention {
			return false
		}
		known, asked = true, asked || r.Value != 0
		if r.At.After(none.At) {
			none.At = r.At
		}
		return r.Value == 0
	})
	if known && !asked {
		readings = append(readings, none)
	}
	return readings
}

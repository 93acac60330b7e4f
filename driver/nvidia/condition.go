package nvidia

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// RecoveryAction returns the reading of driver.NeedsAttention for a recovery action
// (nvmlDeviceGpuRecoveryAction_t), which the driver asks for when it can't use a GPU as it is. Its
// value is 0 for NVML_GPU_RECOVERY_ACTION_NONE.
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
// (nvmlClocksEventReason*; DCGM's DCGM_CLOCKS_EVENT_REASON_* are the same bits). Their names are
// those of driver.ThrottledSeconds; other is any reason but these, an idle GPU and a chosen clock.
// A hardware slowdown whose cause has a bit of its own has that name.
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

// FabricProbe is how far a GPU has come in joining the fabric of its machine, or rack
// (nvmlGpuFabricState_t).
type FabricProbe uint64

// The states of a probe: NVML_GPU_FABRIC_STATE_NOT_STARTED to _COMPLETED.
const (
	FabricNotStarted FabricProbe = iota + 1
	FabricInProgress
	FabricCompleted
)

// FabricState returns the reading of driver.FabricState, false where the GPU is in no fabric.
// failed says that the probe completed with an error; summary is nvmlGpuFabricInfo_v3_t's
// healthSummary (NVML_GPU_FABRIC_HEALTH_SUMMARY_*), 0 where it is unknown.
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

// Attention leaves of the readings of driver.NeedsAttention those of conditions that hold. Where
// none holds there is one that says so, if anything was known.
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

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

// Attention leaves of the readings of driver.NeedsAttention those of conditions that hold. Where
// none holds there is one that says so, if anything was known.
func Attention(readings []driver.Reading) []driver.Reading {
	none := driver.Reading{Quantity: driver.NeedsAttention, Labels: driver.Labels{"none", "none"}, Value: 1}
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

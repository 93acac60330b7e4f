package inventory

import (
	"strings"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// healthOfAttributes returns the health that the attributes of a device state: the boolean healthy
// (gaudi.intel.com, qat.intel.com) or the string health (gpu.intel.com). If a device has both, the
// worse one counts.
func healthOfAttributes(a attributes) driver.HealthStatus {
	status := driver.HealthNone
	if is := a["healthy"].BoolValue; is != nil {
		status = driver.HealthBad
		if *is {
			status = driver.HealthGood
		}
	}
	switch strings.ToLower(a.text("health")) {
	case "":
		return status
	case "healthy", "ok":
		return max(status, driver.HealthGood)
	case "unhealthy", "critical":
		return driver.HealthBad
	default:
		return max(status, driver.HealthUnknown)
	}
}

// newTaint returns a taint of a slice or, if rule is not empty, of the DeviceTaintRule of that
// name.
func newTaint(t resourcev1.DeviceTaint, rule string) driver.Taint {
	return driver.Taint{
		Key: t.Key, Value: t.Value, Effect: string(t.Effect), Rule: rule, Health: healthOfTaint(t),
	}
}

// healthOfTaint returns the health that a taint states. Only taints with which drivers report
// health state one; others are set on healthy devices too, for maintenance.
//
// gpu.nvidia.com sets taints in its slices (cmd/gpu-kubelet-plugin/device_health.go of
// dra-driver-nvidia-gpu); the effect of xid is None if the application caused the error.
// gpu.intel.com creates DeviceTaintRules (cmd/kubelet-gpu-plugin/health.go of its repository), with
// a key for each hardware component and its status as the value; Warning does not make the device
// unhealthy. The name unhealthy is the example of KEP-5055.
func healthOfTaint(t resourcev1.DeviceTaint) driver.HealthStatus {
	domain, name, _ := strings.Cut(t.Key, "/")
	switch {
	case name == "unhealthy":
		return driver.HealthBad
	case domain == "gpu.nvidia.com" && (name == "xid" || name == "gpu-lost"):
		if t.Effect != resourcev1.DeviceTaintEffectNone {
			return driver.HealthBad
		}
	case domain == "gpu.nvidia.com" && name == "unmonitored":
		return driver.HealthUnknown
	case domain == "gpu.intel.com" && t.Value == "Critical":
		return driver.HealthBad
	}
	return driver.HealthNone
}

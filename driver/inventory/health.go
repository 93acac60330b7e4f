package inventory

import (
	"strings"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// healthOfAttributes returns what the attributes of a device say of its health: healthy, which is
// true or false (gaudi.intel.com, qat.intel.com), or health, which is a word (gpu.intel.com). The
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

// newTaint returns a taint of a slice, or of the DeviceTaintRule of that name.
func newTaint(t resourcev1.DeviceTaint, rule string) driver.Taint {
	return driver.Taint{
		Key: t.Key, Value: t.Value, Effect: string(t.Effect), Rule: rule, Health: healthOfTaint(t),
	}
}

// healthOfTaint returns what a taint says of the health of its device. Only taints by which drivers
// report health do that; others are set on healthy devices too, for maintenance.
//
// gpu.nvidia.com taints its slices (cmd/gpu-kubelet-plugin/device_health.go of
// dra-driver-nvidia-gpu): xid has the effect None where the error is the application's own.
// gpu.intel.com makes DeviceTaintRules (cmd/kubelet-gpu-plugin/health.go of its repository), with a
// key for each part of the hardware and its status as the value: at Warning the device still counts
// as healthy. The word unhealthy is KEP-5055's example.
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

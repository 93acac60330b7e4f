package podresources

import (
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// DeviceHealth is one resource of a container's allocatedResourcesStatus.
type DeviceHealth struct {
	// Resource is claim:NAME or claim:NAME/REQUEST of a claim, by the pod's own name, or the name
	// of a device plugin's resource.
	Resource string
	// ID is the first CDI name of a claim's device, or DRIVER/POOL/DEVICE where it has none
	// (k8s.io/kubernetes pkg/kubelet/cm/dra/manager.go, buildResourceHealth), or a device plugin's
	// ID.
	ID     string
	Health driver.HealthStatus
	// Message is the reason, in the driver's words; empty if it gives none.
	Message string
}

// worse reports whether the health is worse than another one.
func (h *DeviceHealth) worse(than *DeviceHealth) bool { return h.Health > than.Health }

// podHealth returns the health of the devices in the containers' statuses.
func podHealth(statuses []corev1.ContainerStatus) (out []DeviceHealth) {
	for i := range statuses {
		for _, resource := range statuses[i].AllocatedResourcesStatus {
			for _, r := range resource.Resources {
				of := DeviceHealth{Resource: string(resource.Name), ID: string(r.ResourceID), Health: healthOf(r.Health)}
				if r.Message != nil && of.Health != driver.HealthGood {
					of.Message = driver.OneLine(*r.Message)
				}
				if checkName(of.ID, maxCDIName, "missing") == "" {
					out = append(out, of)
				}
			}
		}
	}
	return out
}

func healthOf(status corev1.ResourceHealthStatus) driver.HealthStatus {
	switch status {
	case corev1.ResourceHealthStatusHealthy:
		return driver.HealthGood
	case corev1.ResourceHealthStatusUnhealthy:
		return driver.HealthBad
	default:
		return driver.HealthUnknown
	}
}

// healthKey is the kubelet's name of a device in the status of a pod. The resource is empty for a
// claim's device.
type healthKey struct{ resource, id string }

func (h *DeviceHealth) key() healthKey {
	if strings.HasPrefix(h.Resource, "claim:") {
		return healthKey{id: h.ID}
	}
	return healthKey{resource: h.Resource, id: h.ID}
}

func (a Allocation) healthKey() healthKey {
	switch {
	case a.ByPlugin():
		return healthKey{resource: a.Device.Driver, id: a.Device.Device}
	case len(a.CDI) > 0:
		return healthKey{id: a.CDI[0]}
	default:
		return healthKey{id: a.Device.String()}
	}
}

// Health returns the health of the devices of these allocations by the statuses of pods; of
// several, the worst. An entry whose name fits several devices is ignored, since the kubelet
// reports only the first of them.
func Health(reported iter.Seq[DeviceHealth], allocations []Allocation) map[driver.ID]DeviceHealth {
	said := map[healthKey]DeviceHealth{}
	for h := range reported {
		if before := said[h.key()]; h.worse(&before) {
			said[h.key()] = h
		}
	}
	if len(said) == 0 {
		return nil
	}
	named, out := map[healthKey]driver.ID{}, map[driver.ID]DeviceHealth{}
	for i := range allocations {
		key := allocations[i].healthKey()
		if id, known := named[key]; known && id != allocations[i].Device {
			delete(said, key)
		}
		named[key] = allocations[i].Device
	}
	for key, id := range named {
		if before, h := out[id], said[key]; h.worse(&before) {
			out[id] = h
		}
	}
	return out
}

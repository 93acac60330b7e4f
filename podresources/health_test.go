package podresources

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A status that only a later kubelet may report does not count as healthy.
func TestHealthOfStatus(t *testing.T) {
	var pod corev1.Pod
	for _, status := range []corev1.ResourceHealthStatus{"Healthy", "Unhealthy", "Unknown", "Sleepy", ""} {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses,
			corev1.ContainerStatus{AllocatedResourcesStatus: []corev1.ResourceStatus{
				{Name: "claim:c", Resources: []corev1.ResourceHealth{{ResourceID: "x", Health: status}, {ResourceID: ""}}},
			}})
	}
	var got []driver.HealthStatus
	for _, h := range podHealth(pod.Status.ContainerStatuses) {
		got = append(got, h.Health)
	}
	want := []driver.HealthStatus{
		driver.HealthGood, driver.HealthBad, driver.HealthUnknown, driver.HealthUnknown, driver.HealthUnknown,
	}
	expect.Equal(t, "", want, got)
}

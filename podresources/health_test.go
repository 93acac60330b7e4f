package podresources

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// The recorded pods tell the health of what the recorded answer lists, by the CDI names that are
// each device's own.
func TestRecordedHealth(t *testing.T) {
	allocations, _ := Parse(recordedList(t))
	multi := podNamed(recordedPods(t), "team-a", "multi")
	multi.Health = append([]DeviceHealth(nil), multi.Health...)
	multi.Health[2].Health = driver.HealthBad // gpu-3
	pods := byUID(multi)
	got := map[string]string{}
	for _, a := range (Facts{Pods: pods}).Resolve(allocations).Allocations {
		if a.Health != driver.HealthNone {
			got[a.Device.Device] = a.Health.String()
		}
	}
	want := map[string]string{"gpu-1": "healthy", "gpu-2": "healthy", "gpu-3": "unhealthy"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestHealth(t *testing.T) {
	claimed := func(device string, cdi ...string) Allocation {
		return Allocation{Claim: Claim{"ns", "c"}, Device: driver.ID{Driver: "d", Pool: "p", Device: device}, CDI: cdi}
	}
	given := func(resource, id string) Allocation {
		return Allocation{Claim: Claim{Namespace: "ns"}, Device: driver.ID{Driver: resource, Device: id}}
	}
	said := func(resource, id string, h driver.HealthStatus) DeviceHealth { return DeviceHealth{resource, id, h} }
	pod := func(health ...DeviceHealth) PodFacts { return PodFacts{Health: health} }
	for name, tc := range map[string]struct {
		allocation Allocation
		other      Allocation
		pods       []PodFacts
		want       driver.HealthStatus
	}{
		"nothing is said": {allocation: claimed("a", "x"), pods: []PodFacts{pod()}},
		"by CDI name": {
			allocation: claimed("a", "x", "y"),
			pods:       []PodFacts{pod(said("claim:c", "x", driver.HealthGood))}, want: driver.HealthGood,
		},
		"by the first name only": {
			allocation: claimed("a", "x", "y"),
			pods:       []PodFacts{pod(said("claim:c", "y", driver.HealthGood))},
		},
		"of a request": {
			allocation: claimed("a", "x"), pods: []PodFacts{pod(said("claim:c/r", "x", driver.HealthBad))},
			want: driver.HealthBad,
		},
		"without a CDI name": {
			allocation: claimed("a"), pods: []PodFacts{pod(said("claim:c", "d/p/a", driver.HealthGood))},
			want: driver.HealthGood,
		},
		"the worst of two pods": {
			allocation: claimed("a", "x"),
			pods:       []PodFacts{pod(said("claim:c", "x", driver.HealthBad)), pod(said("claim:c", "x", driver.HealthUnknown))},
			want:       driver.HealthBad,
		},
		"unknown, and healthy": {
			allocation: claimed("a", "x"),
			pods:       []PodFacts{pod(said("claim:c", "x", driver.HealthGood), said("claim:d", "x", driver.HealthUnknown))},
			want:       driver.HealthUnknown,
		},
		"of a pod that has ended": {
			allocation: claimed("a", "x"),
			pods:       []PodFacts{{Ended: true, Health: []DeviceHealth{said("claim:c", "x", driver.HealthBad)}}},
		},
		"of a pod that is gone": {
			allocation: claimed("a", "x"),
			pods:       []PodFacts{{Gone: true, Health: []DeviceHealth{said("claim:c", "x", driver.HealthBad)}}},
		},
		"a name of two devices": {
			allocation: claimed("a", "x"), other: claimed("b", "x"),
			pods: []PodFacts{pod(said("claim:c", "x", driver.HealthGood))},
		},
		"two claims on a device": {
			allocation: claimed("a", "x"), other: claimed("a", "y"),
			pods: []PodFacts{pod(said("claim:c", "y", driver.HealthBad))}, want: driver.HealthBad,
		},
		"of a device plugin": {
			allocation: given("nvidia.com/gpu", "GPU-1"),
			pods:       []PodFacts{pod(said("nvidia.com/gpu", "GPU-1", driver.HealthBad))}, want: driver.HealthBad,
		},
		"of another resource": {
			allocation: given("nvidia.com/gpu", "GPU-1"),
			pods:       []PodFacts{pod(said("amd.com/gpu", "GPU-1", driver.HealthBad))},
		},
		"a plugin's, not a CDI": {
			allocation: claimed("a", "x"),
			pods:       []PodFacts{pod(said("nvidia.com/gpu", "x", driver.HealthBad))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			facts := Facts{Pods: map[string]PodFacts{}}
			for i, p := range tc.pods {
				facts.Pods[string(rune('a'+i))] = p
			}
			tc.allocation.Holders = []Holder{{Pod: Pod{"ns", "holder"}}}
			tc.other.Holders = tc.allocation.Holders
			for _, a := range facts.Resolve([]Allocation{tc.allocation, tc.other}).Allocations {
				if a.Device == tc.allocation.Device && a.Health != tc.want {
					t.Errorf("got %q, want %q", a.Health, tc.want)
				}
			}
		})
	}
}

// What a later kubelet might say is not taken for good.
func TestHealthOfStatus(t *testing.T) {
	var pod corev1.Pod
	for _, status := range []corev1.ResourceHealthStatus{"Healthy", "Unhealthy", "Unknown", "Sleepy", ""} {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses,
			corev1.ContainerStatus{AllocatedResourcesStatus: []corev1.ResourceStatus{
				{Name: "claim:c", Resources: []corev1.ResourceHealth{{ResourceID: "x", Health: status}, {ResourceID: ""}}},
			}})
	}
	var got []driver.HealthStatus
	for _, h := range podHealth(&pod.Status) {
		got = append(got, h.Health)
	}
	want := []driver.HealthStatus{
		driver.HealthGood, driver.HealthBad, driver.HealthUnknown, driver.HealthUnknown, driver.HealthUnknown,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

package holders

import (
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The recorded pods have the health of the devices in the recorded answer, by the CDI names that
// belong to one device.
func TestRecordedHealth(t *testing.T) {
	node := recordedNode(t)
	multi := slices.IndexFunc(node.pods, func(p PodFacts) bool { return p.Pod == Pod{Namespace: "team-a", Name: "multi"} })
	node.pods = node.pods[multi : multi+1]
	node.pods[0].Health[2].Health = driver.HealthBad // gpu-3
	got := map[string]string{}
	for _, a := range node.holdings().Allocations {
		if a.Health != driver.HealthNone {
			got[a.Device.Device] = a.Health.String()
		}
	}
	want := map[string]string{"gpu-1": "healthy", "gpu-2": "healthy", "gpu-3": "unhealthy"}
	expect.Equal(t, "", want, got)
}

func TestHealth(t *testing.T) {
	claimed := func(device string, cdi ...string) Allocation {
		return Allocation{Claim: Claim{Namespace: "ns", Name: "c"}, Device: deviceNamed(device), CDI: cdi}
	}
	given := func(resource, id string) Allocation {
		return Allocation{Claim: Claim{Namespace: "ns"}, Device: driver.ID{Driver: resource, Device: id}}
	}
	said := func(resource, id string, h driver.HealthStatus) DeviceHealth {
		return DeviceHealth{Resource: resource, ID: id, Health: h}
	}
	pod := func(health ...DeviceHealth) PodFacts { return PodFacts{Health: health} }
	for name, tc := range map[string]struct {
		allocation Allocation
		other      Allocation
		pods       []PodFacts
		deleted    string // a pod's UID
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
			pods:       []PodFacts{{Final: true, Health: []DeviceHealth{said("claim:c", "x", driver.HealthBad)}}},
		},
		"of a pod that is gone": {
			allocation: claimed("a", "x"), deleted: "a",
			pods: []PodFacts{pod(said("claim:c", "x", driver.HealthBad))},
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
			var node world
			for i, p := range tc.pods {
				p.UID = string(rune('a' + i))
				p.Pod = Pod{Namespace: "ns", Name: p.UID}
				node.pods = append(node.pods, p)
			}
			if tc.deleted != "" {
				node = node.then(func(b *Book) { b.PodDeleted(tc.deleted, second(20)) })
			}
			tc.allocation.Holders = []Holder{{Pod: Pod{Namespace: "ns", Name: "holder"}}}
			tc.other.Holders = tc.allocation.Holders
			node.listed = []Allocation{tc.allocation, tc.other}
			for _, a := range node.holdings().Allocations {
				if a.Device == tc.allocation.Device && a.Health != tc.want {
					t.Errorf("got %q, want %q", a.Health, tc.want)
				}
			}
		})
	}
}

package holders

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestHealth(t *testing.T) {
	claimed := func(device string, cdi ...string) Allocation {
		return Allocation{Claim: Claim{Namespace: "ns", Name: "c"}, Device: deviceNamed(device), CDI: cdi}
	}
	plugin := Allocation{Claim: Claim{Namespace: "ns"}, Device: driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-1"}}
	good, bad, unknown := driver.HealthGood, driver.HealthBad, driver.HealthUnknown
	says := func(resource, id string, h driver.HealthStatus) DeviceHealth {
		return DeviceHealth{Resource: resource, ID: id, Health: h}
	}
	for name, tc := range map[string]struct {
		of, other Allocation
		says      []DeviceHealth // each in the status of another pod
		final     bool           // these pods have ended
		deleted   string         // one of them: a, b, ...
		want      driver.HealthStatus
	}{
		"nothing is said":         {of: claimed("a", "x")},
		"by CDI name":             {of: claimed("a", "x", "y"), says: []DeviceHealth{says("claim:c", "x", good)}, want: good},
		"by the first name only":  {of: claimed("a", "x", "y"), says: []DeviceHealth{says("claim:c", "y", good)}},
		"of a request":            {of: claimed("a", "x"), says: []DeviceHealth{says("claim:c/r", "x", bad)}, want: bad},
		"without a CDI name":      {of: claimed("a"), says: []DeviceHealth{says("claim:c", "d/p/a", good)}, want: good},
		"of a pod that has ended": {of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", bad)}, final: true},
		"of a pod that is gone":   {of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", bad)}, deleted: "a"},
		"the worst of two pods": {
			of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", bad), says("claim:c", "x", unknown)}, want: bad,
		},
		"unknown, and healthy": {
			of: claimed("a", "x"), says: []DeviceHealth{says("claim:c", "x", good), says("claim:d", "x", unknown)},
			want: unknown,
		},
		"a name of two devices": {
			of: claimed("a", "x"), other: claimed("b", "x"), says: []DeviceHealth{says("claim:c", "x", good)},
		},
		"two claims on a device": {
			of: claimed("a", "x"), other: claimed("a", "y"), says: []DeviceHealth{says("claim:c", "y", bad)}, want: bad,
		},
		"of a device plugin":    {of: plugin, says: []DeviceHealth{says("nvidia.com/gpu", "GPU-1", bad)}, want: bad},
		"of another resource":   {of: plugin, says: []DeviceHealth{says("amd.com/gpu", "GPU-1", bad)}},
		"a plugin's, not a CDI": {of: claimed("a", "x"), says: []DeviceHealth{says("nvidia.com/gpu", "x", bad)}},
	} {
		t.Run(name, func(t *testing.T) {
			var node world
			for i, h := range tc.says {
				pod := PodFacts{UID: string(rune('a' + i)), Final: tc.final, Health: []DeviceHealth{h}}
				pod.Pod = podNamed(pod.UID)
				node.pods = append(node.pods, pod)
			}
			if tc.deleted != "" {
				node = node.then(func(b *Book) { b.PodDeleted(tc.deleted, second(20)) })
			}
			tc.of.Holders = []Holder{{Pod: podNamed("holder")}}
			tc.other.Holders = tc.of.Holders
			node.listed = []Allocation{tc.of, tc.other}
			for _, a := range node.holdings().Allocations {
				expect.That(t, a.Device != tc.of.Device || a.Health == tc.want, "got %q, want %q", a.Health, tc.want)
			}
		})
	}
}

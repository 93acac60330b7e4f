package holders

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A pod whose containers have not started is requested immediately if the kubelet will never list
// one of its claims, and otherwise after a while.
func TestWhenPodsAreLookedUp(t *testing.T) {
	template := []PodClaim{{Name: "a"}, {Name: "b"}}
	container := func(name string, listed bool, claims ...string) PodContainer {
		c := PodContainer{Name: name, Listed: listed}
		for _, claim := range claims {
			c.Uses = append(c.Uses, ClaimUse{Name: claim})
		}
		return c
	}
	for name, tc := range map[string]struct {
		pod  PodFacts
		want time.Time
	}{
		"a container names both": {
			PodFacts{Claims: template, Containers: []PodContainer{container("main", true, "a", "b")}},
			second(15),
		},
		"it has started": {
			PodFacts{
				Claims: template, Started: true,
				Containers: []PodContainer{container("main", true, "a", "b")},
			},
			time.Time{},
		},
		"an init container names one": {PodFacts{Claims: template, Containers: []PodContainer{
			container("init", false, "b"), container("main", true, "a"),
		}}, time.Time{}},
		"no container names one": {
			PodFacts{Claims: template, Containers: []PodContainer{container("main", true, "a")}},
			time.Time{},
		},
		"one has a name": {
			PodFacts{
				Claims:     []PodClaim{{Name: "a"}, {Name: "b", Claim: "c"}},
				Containers: []PodContainer{container("main", true, "a")},
			},
			second(15),
		},
	} {
		got := world{}.pod("p", tc.pod).holdings().Wanted.Pods
		expect.That(t, len(got) == 1 && got[0].NotBefore.Equal(tc.want), "%s: %v, want one not before %v", name, got, tc.want)
	}
}

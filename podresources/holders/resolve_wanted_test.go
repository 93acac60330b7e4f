package holders

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A pod whose containers have not started is requested immediately if the kubelet will never list
// one of its claims, and otherwise after a while.
func TestWhenPodsAreLookedUp(t *testing.T) {
	names := func(claims ...string) (uses []ClaimUse) {
		for _, claim := range claims {
			uses = append(uses, ClaimUse{Name: claim})
		}
		return uses
	}
	both, later := named("a=", "b="), second(15)
	for name, tc := range map[string]struct {
		claims     []PodClaim
		main, init []ClaimUse
		started    bool
		want       time.Time
	}{
		"a container names both":      {claims: both, main: names("a", "b"), want: later},
		"it has started":              {claims: both, main: names("a", "b"), started: true},
		"an init container names one": {claims: both, main: names("a"), init: names("b")},
		"no container names one":      {claims: both, main: names("a")},
		"one has a name":              {claims: named("a=", "b=c"), main: names("a"), want: later},
	} {
		got := world{}.pod("p", PodFacts{Claims: tc.claims, Started: tc.started, Containers: []PodContainer{
			{Name: "init", Uses: tc.init}, {Name: "main", Uses: tc.main, Listed: true},
		}}).holdings().Wanted.Pods
		expect.That(t, len(got) == 1 && got[0].NotBefore.Equal(tc.want), "%s: %v, want one not before %v", name, got, tc.want)
	}
}

package holders

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// A classic device is described by its claim. If the slice has a single device, it is that device.
func TestApplyClassic(t *testing.T) {
	claim := Claim{Namespace: "ns", Name: "c"}
	listed := func(name string) Allocation {
		return Allocation{
			Claim: claim, Device: driver.ID{Driver: "intel.com", Device: name},
			CDI: []string{"intel.com/gpu=" + name}, Holders: []Holder{{Pod: Pod{Namespace: "ns", Name: "p"}}},
		}
	}
	instance := driver.ID{Driver: "gpu.intel.com", Pool: "node", Device: "0000:03:00.0"}
	for name, tc := range map[string]struct {
		claim       ClaimFacts
		allocations []Allocation
		want        []driver.ID
		class       string
	}{
		"nothing known": {
			ClaimFacts{},
			[]Allocation{listed("card0")},
			[]driver.ID{{Driver: "intel.com", Device: "card0"}},
			"",
		},
		"class and driver": {
			ClaimFacts{Classic: &podresources.Classic{Class: "gpus", Driver: "gpu.intel.com"}},
			[]Allocation{listed("card0")},
			[]driver.ID{{Driver: "gpu.intel.com", Device: "card0"}},
			"gpus",
		},
		"no driver": {
			ClaimFacts{Classic: &podresources.Classic{Class: "gpus", Driver: ""}},
			[]Allocation{listed("card0")},
			[]driver.ID{{Driver: "intel.com", Device: "card0"}},
			"gpus",
		},
		"of a slice": {
			ClaimFacts{
				Classic: &podresources.Classic{Class: "gpus", Driver: "gpu.intel.com"},
				Results: []ClaimResult{{Device: instance, DeviceClass: "gpus"}},
			},
			[]Allocation{listed("card0")},
			[]driver.ID{instance},
			"gpus",
		},
		"two, which is which": {
			ClaimFacts{
				Classic: &podresources.Classic{Class: "gpus", Driver: "gpu.intel.com"},
				Results: []ClaimResult{{Device: instance, DeviceClass: "gpus"}},
			},
			[]Allocation{listed("card0"), listed("card1")},
			[]driver.ID{{Driver: "gpu.intel.com", Device: "card0"}, {Driver: "gpu.intel.com", Device: "card1"}},
			"gpus",
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := world{listed: tc.allocations, claims: map[Claim]ClaimFacts{claim: tc.claim}}
			var got []driver.ID
			for _, a := range node.holdings().Allocations {
				got = append(got, a.Device)
				if a.DeviceClass != tc.class {
					t.Errorf("class %q, want %q", a.DeviceClass, tc.class)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if covered := tc.claim.Covers(&tc.allocations[0]); covered != (tc.claim.Classic != nil) {
				t.Errorf("the claim covers it: %v", covered)
			}
		})
	}
}

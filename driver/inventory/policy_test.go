package inventory

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The amounts are those of the API's own description of CapacityRequestPolicy.
func TestPolicies(t *testing.T) {
	const device = `{"name":"g","allowMultipleAllocations":true,"capacity":` +
		`{"memory":{"value":"80","requestPolicy":POLICY},"cores":{"value":"100"}}}`
	type request struct{ amount, consumes float64 } // below 0: it can't be allocated
	none := []request{{0, -1}, {30, -1}}
	for name, tc := range map[string]struct {
		policy   string
		want     []driver.RequestPolicy
		requests []request
		rejected int
	}{
		"none": {policy: `null`},
		"values": {
			policy: `{"default":"10","validValues":["40","10","20"]}`,
			want:   []driver.RequestPolicy{{Resource: "memory", Values: []float64{10, 20, 40}}},
			requests: []request{
				{0, 10}, {10, 10}, {11, 20}, {40, 40}, {41, -1},
			},
		},
		"range": {
			policy:   `{"default":"10","validRange":{"min":"10","max":"60"}}`,
			want:     []driver.RequestPolicy{{Resource: "memory", Min: 10, Max: 60}},
			requests: []request{{3, 10}, {10.5, 10.5}, {60, 60}, {61, -1}},
		},
		"steps": {
			policy:   `{"default":"10","validRange":{"min":"5","max":"60","step":"10"}}`,
			want:     []driver.RequestPolicy{{Resource: "memory", Min: 5, Max: 60, Step: 10}},
			requests: []request{{0, 5}, {5, 5}, {6, 15}, {15, 15}, {50, 55}, {56, -1}},
		},
		"a default alone": {
			policy: `{"default":"10"}`, want: []driver.RequestPolicy{{Resource: "memory"}}, requests: []request{{7, 7}},
		},
		"negative amount": {
			policy: `{"validRange":{"min":"-1"}}`, rejected: 1, requests: none,
			want: []driver.RequestPolicy{{Resource: "memory", Values: []float64{}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, rejected, err := ParseSlices([]byte(sliceOf(1, here, strings.Replace(device, "POLICY", tc.policy, 1))), "n1")
			must.Do(t, err)
			got := in[driver.ID{Driver: "d.test", Pool: "p", Device: "g"}].Policies
			expect.Equal(t, "policies,", tc.want, got)
			expect.That(t, rejected[driver.ReasonMalformedCapacity] == tc.rejected,
				"rejected %v, want %d", rejected, tc.rejected)
			for _, r := range tc.requests {
				if consumes, ok := got[0].Consumed(r.amount); ok != (r.consumes >= 0) || ok && consumes != r.consumes {
					t.Errorf("a request for %v consumes %v, %v; want %v", r.amount, consumes, ok, r.consumes)
				}
			}
		})
	}
	alone := sliceOf(1, here,
		`{"name":"g","capacity":{"memory":{"value":"80","requestPolicy":{"validRange":{"min":"1"}}}}}`)
	for id, entry := range parse(t, []byte(alone), "n1") {
		expect.That(t, entry.Policies == nil, "%v has %v, though it is allocated once", id, entry.Policies)
	}
}

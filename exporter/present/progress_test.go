package present

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

// The sentences about a claim's progress have all that the verdict stands on, and the presenter's
// durations and times.
func TestProgressOf(t *testing.T) {
	since := time.Date(2026, 11, 28, 6, 14, 41, 0, time.FixedZone("there", 3600))
	for _, tt := range []struct {
		name    string
		verdict stall.Verdict
		want    string
	}{
		{
			name: "stalled",
			verdict: stall.Verdict{
				Stalled: []stall.Signal{stall.Tensor, stall.Memory}, For: 506 * time.Second,
				Host: []stall.HostSignal{stall.CPU}, Since: since, Before: "not stalled", Ranks: 3, Still: 1,
				Peers: []stall.Peer{{Claim: "team/rank-1", Device: driver.ID{Device: "gpu-1"}, Does: "idle"}},
			},
			want: "For 8 min, none of these has shown progress: tensor, memory traffic. The pods show no work on the host by " +
				"cpu. Of 3 ranks on this node, 0 work and 1 do nothing: team/rank-1 on gpu-1 is idle. " +
				"Since 2026-11-28 05:14:41 UTC; before: not stalled.",
		},
		{
			name: "works", verdict: stall.Verdict{Progress: []stall.Signal{stall.Tensor}},
			want: "Progress: tensor.",
		},
		{
			name: "unknown",
			verdict: stall.Verdict{
				Unknown: stall.NoEngines, Missing: []stall.Signal{stall.Tensor}, HostShows: []stall.HostSignal{stall.CPU},
			},
			want: "Unknown: " + stall.NoEngines.Meaning() + ". Not measured: tensor. The pods' cpu show work on the host.",
		},
	} {
		if got := progressOf(&tt.verdict); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}

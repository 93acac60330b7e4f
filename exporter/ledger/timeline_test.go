package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// A change between two answers is put where a sign of it was seen, else in the middle; where the
// answers are far apart, at the answer.
func TestChangeTimes(t *testing.T) {
	at := func(ms int) time.Time { return jointest.Start().Add(time.Duration(ms) * time.Millisecond) }
	pod := func(ms int, gone bool) podresources.Change {
		return podresources.Change{At: at(ms), Gone: gone, PodUID: "uid-p0"}
	}
	for name, tc := range map[string]struct {
		changes []podresources.Change
		gap     time.Duration // between the answers around each change
		want    float64       // seconds
	}{
		"middles":  {nil, time.Second, 3},
		"pod":      {[]podresources.Change{pod(1200, false), pod(4900, true)}, time.Second, 3.7},
		"pod came": {[]podresources.Change{pod(1200, false)}, time.Second, 3.3},
		"pod went": {[]podresources.Change{pod(4900, true)}, time.Second, 3.4},
		"CDI": {
			[]podresources.Change{{At: at(1100), CDI: []string{"example.com/gpu=c0"}}}, time.Second, 3.4,
		},
		"the last sign of a coming": {[]podresources.Change{pod(1100, false), pod(1800, false)}, time.Second, 2.7},
		"the first sign of a going": {[]podresources.Change{pod(4200, true), pod(4800, true)}, time.Second, 2.7},
		"signs of others": {[]podresources.Change{
			{At: at(1100), PodUID: "uid-p1"}, {At: at(1200), CDI: []string{"example.com/gpu=c1"}},
		}, time.Second, 3},
		"signs of other times": {
			[]podresources.Change{pod(-1100, false), pod(2100, false), pod(3500, true)}, time.Second, 3,
		},
		"a sign before an answer":       {[]podresources.Change{pod(-900, false)}, time.Second, 3.5},
		"a sign at the earlier answer":  {[]podresources.Change{pod(1000, false)}, time.Second, 3.5},
		"a sign before and one between": {[]podresources.Change{pod(900, false), pod(1200, false)}, time.Second, 3.3},
		"a sign at the later answer":    {[]podresources.Change{pod(2000, false)}, time.Second, 2.5},
		"far apart: with the answers":   {nil, 4 * time.Second, 12},
		"far apart: with the signs":     {[]podresources.Change{pod(5500, false), pod(18500, true)}, 4 * time.Second, 13},
		"just not too far: the middles": {nil, 3 * time.Second, 9},
		"not prepared":                  {nil, time.Second, 2.5},
		"not prepared, with a sign":     {[]podresources.Change{pod(1200, false)}, time.Second, 3.3},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.In.View.Changes = tc.changes
			notPrepared := strings.HasPrefix(name, "not prepared")
			var x exportertest.Scraped
			for i := range 7 {
				switch i {
				case 2:
					h.Hold("c0", "p0")
					if notPrepared {
						h.In.View.Allocations[0].State = podresources.StateAllocated
					}
				case 5:
					h.Free("c0")
				}
				h.Energy(10 * h.Now.Sub(jointest.Start()).Seconds())
				x = h.Tick(tc.gap)
			}
			h.Expect(x, map[[2]string]float64{
				{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 10 * tc.want,
				{"dra_pod_energy_joules_total", "pod=p0"}:                  10 * tc.want,
				{"dra_claim_allocated_seconds_total", "device=gpu-0"}:      tc.want,
				{"dra_pod_allocated_share_seconds_total", "device=gpu-0"}:  tc.want,
				{"dra_device_allocated_seconds_total", "device=gpu-0"}:     tc.want,
				{"dra_device_energy_joules_total", "device=gpu-0"}:         10 * 6 * tc.gap.Seconds(),
			})
		})
	}
}

// Where the pods are watched, an end that was not seen before the answer without the pod was just
// before that.
func TestChangeTimesOfWatchedPods(t *testing.T) {
	for name, tc := range map[string]struct {
		changes []podresources.Change
		want    float64 // seconds from the middle between the answers of seconds 1 and 2
	}{
		"not seen yet": {nil, 3.5},
		"seen": {
			[]podresources.Change{{At: jointest.Start().Add(4200 * time.Millisecond), Gone: true, PodUID: "uid-p0"}}, 2.7,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.In.View.Watched, h.In.View.Changes = true, tc.changes
			var x exportertest.Scraped
			for second := range 7 {
				switch second {
				case 2:
					h.Hold("c0", "p0")
				case 5:
					h.Free("c0")
				}
				x = energyAt(h, second)
			}
			h.Expect(x, map[[2]string]float64{
				{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 10 * tc.want,
				{"dra_claim_allocated_seconds_total", "device=gpu-0"}:      tc.want,
			})
		})
	}
}

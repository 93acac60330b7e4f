package exposition_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// unclaimedFamilies are those of pods that have a device by a device plugin, without a claim.
func unclaimedFamilies() []string {
	return []string{
		"dra_pod_unclaimed_allocated_seconds_total", "dra_pod_unclaimed_used_seconds_total",
		"dra_pod_unclaimed_last_active_timestamp_seconds",
	}
}

// plug gives gpu-0 to a pod by a device plugin.
func plug(h *exportertest.History, pod string) {
	a := jointest.Allocation("gpu-0", "", pod)
	h.In.View.Allocations = append(h.In.View.Allocations, a)
}

// Only pods that have a device by a device plugin, and not also by a claim, have families of their
// own: how long they held it, and how long they used it. The counters stay for the retention.
func TestUnclaimed(t *testing.T) {
	h := exportertest.NewHistory(t)
	pods := func(x exportertest.Scraped, family string) []string {
		var out []string
		for _, pod := range []string{"plugged", "claims", "both"} {
			if len(x.Matching(family, "pod="+pod)) > 0 {
				out = append(out, pod)
			}
		}
		return out
	}
	ticks := func(utilization float64, n int) exportertest.Scraped {
		var x exportertest.Scraped
		for range n {
			h.Read(driver.Reading{Quantity: driver.Utilization, Value: utilization})
			x = h.Tick(time.Second)
		}
		return x
	}
	plug(h, "plugged")
	ticks(0.5, 5)
	busyUntil := exportertest.Unix(h.Now)
	x := ticks(0, 6)
	h.Expect(x, map[[2]string]float64{{unclaimedFamilies()[0], "pod=plugged"}: 10})
	used := x.One(t, unclaimedFamilies()[1], "pod=plugged")
	expect.That(t, used >= 3.5 && used <= 5.5, "the pod used its device for %v s, want 4 to 5", used)
	if last := x.One(t, unclaimedFamilies()[2], "pod=plugged"); last < busyUntil-1.5 || last > busyUntil {
		t.Errorf("the pod was last active at %v, the device until %v", last, busyUntil)
	}
	if got := pods(x, "dra_claim_used_seconds_total"); got != nil {
		t.Errorf("it has families of claims: %v", got)
	}

	h.Hold("c", "claims", "both")
	plug(h, "both")
	x = ticks(0.5, 3)
	for _, family := range unclaimedFamilies()[:1] { // three holders divide it equally: whose use is unknown
		expect.Equal(t, family, []string{"plugged"}, pods(x, family))
	}

	h.In.View.Allocations = nil
	x = ticks(0, 2)
	if got := pods(x, unclaimedFamilies()[0]); !slices.Equal(got, []string{"plugged"}) {
		t.Errorf("of the pods that ended, %v have their counter", got)
	}
	if got := x.Matching("dra_pod_claim_info"); len(got) > 0 {
		t.Errorf("pods that ended hold %v", slices.Collect(maps.Keys(got)))
	}
}

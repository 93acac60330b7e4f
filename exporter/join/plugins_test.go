package join_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Allocations by device plugins are divided among pods, each with its part, and belong to no claim.
// A claim on the same device counts as one of them.
func TestAttributionOfPlugins(t *testing.T) {
	h := exportertest.NewHistory(t)
	slice := func(share, pod string) podresources.Allocation {
		a := jointest.Allocation("gpu-0", "", pod)
		a.ShareID = share
		return a
	}
	h.In.View.Allocations = []podresources.Allocation{
		slice("0", "a"), slice("1", "b"), slice("2", "b"), jointest.Allocation("gpu-0", "claim", "c"),
	}
	for i := range 3 {
		h.Energy(float64(400 * i))
		h.Pass(time.Second)
	}
	x := exportertest.Scrape(t, h.Last)
	h.Expect(x, map[[2]string]float64{
		{"dra_pod_energy_joules_total", "pod=a"}:                        200,
		{"dra_pod_energy_joules_total", "pod=b"}:                        400,
		{"dra_pod_energy_joules_total", "pod=c"}:                        200,
		{"dra_claim_energy_joules_total", "resourceclaim_name=claim"}:   200,
		{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}: 0,
		{"dra_device_allocations", "device=gpu-0"}:                      4,
	})
	expect.Is(t, len(x.Matching("dra_pod_claim_info", "resourceclaim_name=", "claim_name=", "attribution=equal")), 3,
		"rows of device plugins in %v", x["dra_pod_claim_info"])
	for name := range x {
		expect.That(t, len(x.Matching(name, "resourceclaim_name=")) == 0 || name == "dra_pod_claim_info",
			"%s has a claim without a name: %v", name, x[name])
	}
	h.In.View.Allocations = []podresources.Allocation{slice("0", "a")}
	if d := joinedAfter(h); d.Attribution != join.AttributionExclusive {
		t.Errorf("of one pod it is divided by %q", d.Attribution)
	}
	h.In.View.Allocations = []podresources.Allocation{slice("1", "b"), slice("2", "b")}
	if d := joinedAfter(h); d.Attribution != join.AttributionExclusive {
		t.Errorf("two slices of one pod are divided by %q", d.Attribution)
	}
	h.In.View.Allocations = []podresources.Allocation{slice("1", "a"), slice("2", "b")}
	if d := joinedAfter(h); d.Attribution != join.AttributionEqual {
		t.Errorf("slices of two pods are divided by %q", d.Attribution)
	}
}

func joinedAfter(h *exportertest.History) *join.Device {
	h.Pass(time.Second)
	return &h.Joined.Devices[0]
}

package e2e

import (
	"fmt"
	"testing"
)

// Two programs observe a pod on a GPU of 100 W. One shows pods after an hour, the other after a
// second. The first has the use of the pod in the row of its workload, the second in the pod's own
// row. Both equal the use of the claim.
func TestShortPods(t *testing.T) {
	t.Parallel()
	const (
		energy, power = "dra_pod_energy_joules_total", "dra_pod_power_watts"
		young         = "aggregated/" // of no workload that is known
	)
	n := newNode(t)
	n.setPods(pod("team", "old", "claim-old", gpu(0)))
	config := n.scrapeConfig(endpoint("vendor", vendor(t, fixed(fmt.Sprintf(
		"power{uuid=%q} 50\npower{uuid=%q} 100\n", uuid(0), uuid(1),
	)))))
	f := n.flags(flags{
		"inventory.file": n.inventory(gpus(2)), "source.scrape.config": config, "counter.zero-hold": "0s",
	})
	hour := start(t, f.with(flags{"pod.min-lifetime": "1h"}))
	second := start(t, f.with(flags{"pod.min-lifetime": "1s"}))
	for _, p := range []*program{hour, second} {
		p.eventually("a pod of the first answer", func() bool { return p.scrape().is(50, power, "pod", "old") })
	}
	n.setPods(pod("team", "old", "claim-old", gpu(0)), pod("team", "short", "claim-short", gpu(1)))
	charged := func(p *program, name string) func() bool {
		return func() bool {
			m := p.scrape()
			claim, _ := m.value("dra_claim_energy_joules_total", "resourceclaim_name", "claim-short")
			holder, _ := m.value(energy, "pod", name, "device", "gpu-1")
			return claim > 0 && near(claim, holder)
		}
	}
	second.eventually("old enough, and with all of its energy", charged(second, "short"))
	second.scrape().wantNone(power, "pod", young)
	hour.eventually("young", func() bool {
		m := hour.scrape()
		return m.is(100, power, "pod", young) && m.is(0, energy, "pod", young) &&
			m.positive("dra_claim_energy_joules_total", "resourceclaim_name", "claim-short")
	})
	if r := hour.report(); len(r.YoungPods) != 1 || r.YoungPods[0].Name != "short" {
		t.Errorf("the young pods are %+v", r.YoungPods)
	}
	n.setPods(pod("team", "old", "claim-old", gpu(0)))
	hour.eventually("its energy is its workload's", charged(hour, young))
	m := hour.scrape()
	m.want(1, "dra_pod_info", "pod", young)
	for _, family := range []string{"dra_pod_info", "dra_pod_claim_info", energy, power} {
		m.wantNone(family, "pod", "short")
	}
}

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A node in migration from device plugins to DRA, as the kubelet lists it: a GPU of a claim and one
// of the plugin, one with time slicing, a MIG instance that is in no slice, and a virtual function.
// Each piece of hardware is one device.
func TestGoldenPlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	list := must.Get(podresourcestest.ParseList([]byte(recorded(t, filepath.Join("..", "plugins", "list.json")))))(t)
	must.Do(t, n.kubelet.Set(list))
	const mig = "MIG-bbbbbbbb-0000-0000-0000-000000000001"
	var exposition strings.Builder
	for i, id := range []string{uuid(0), uuid(1), uuid(2), uuid(3), mig} {
		fmt.Fprintf(&exposition,
			"utilization{uuid=%q} 0.%d\npower{uuid=%[1]q} %d00\nmemory{uuid=%[1]q} 1e9\ntemperature{uuid=%[1]q} 40\n", id, i+1,
			i+1)
	}
	nic := slice("sriovnetwork.k8snetworkplumbingwg.io",
		[2]string{"vf-0", "{vfID: {int: 0}, pciAddress: {string: \"0000:3b:02.0\"}}"})
	p := start(t, goldenSources(t, n.flags(flags{
		"inventory.file":       n.inventory(gpus(4), nic),
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor(t, fixed(exposition.String())))),
	})))
	p.eventually("charged", func() bool { return p.scrape().positive("dra_pod_energy_joules_total", "pod", "sliced-b") })
	m := p.scrape()
	m.want(1, "dra_pod_claim_info", "pod", "plugin", "driver", gpuDriver, "device", "gpu-1")
	m.want(2, "dra_device_allocations", "device", "gpu-2")
	m.want(150, "dra_pod_power_watts", "pod", "sliced-a", "device", "gpu-2")
	m.want(500, "dra_pod_power_watts", "pod", "plugin", "driver", "nvidia.com/mig-1g.10gb", "pool", "", "device", mig)
	checkGolden(t, "plugins.prom", p.page("/metrics").Body)
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")

	// Pods with devices of plugins end like others, and their counters stay.
	must.Do(t, n.kubelet.Set(&v1.ListPodResourcesResponse{PodResources: list.PodResources[:1]}))
	p.eventually("ended", func() bool {
		m := p.scrape()
		_, held := m.value("dra_pod_claim_info", "pod", "sliced-a")
		return !held && m.positive("dra_pod_energy_joules_total", "pod", "sliced-a") &&
			m.is(0, "dra_device_allocations", "device", "gpu-2")
	})
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")
}

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/dcgm/dcgmtest"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The program reads the same GPUs through NVML and DCGM. Each quantity comes from one source. The
// MIG device that DCGM identifies by a number is the one that the slice identifies by its
// placement. Quantities that NVML can no longer read come from DCGM. A host engine that hangs
// delays neither scrapes nor NVML.
func TestDCGM(t *testing.T) {
	t.Parallel()
	nvidia := must.Get(nvmltest.New(t.Context(), t.TempDir()))(t)
	engine := must.Get(dcgmtest.New(t.Context(), t.TempDir()))(t)
	nvidia.Reset(2)
	nvidia.Partition(1, 2)
	engine.Reset(2, float64(time.Now().UnixMicro())/1e6)
	engine.Partition(1, 2)
	engine.GPUs[1].Health = 20 // DCGM_HEALTH_RESULT_FAIL
	engine.GPUs[0].Power, engine.GPUs[1].Power = 111, 222

	n := newNode(t)
	const instance = "gpu-1-mig-1g10gb-19-1"
	n.setPods(pod("team", "one", "part", podresourcestest.Device(nvidiaDriver, nodeName, instance)))
	uuid := func(gpu int) string { return "{type: {string: gpu}, uuid: {string: " + nvidia.GPUs[gpu].UUID() + "}}" }
	p := start(t, n.flags(flags{
		"sample.interval": "500ms", "source.dcgm": "embedded",
		"inventory.file": n.inventory(slice(nvidiaDriver, [2]string{"gpu-0", uuid(0)}, [2]string{"gpu-1", uuid(1)},
			[2]string{instance, "{type: {string: mig}, parentUUID: {string: " + nvidia.GPUs[1].UUID() + "}}"})),
	}), "LD_LIBRARY_PATH="+filepath.Dir(nvidia.Library)+":"+filepath.Dir(engine.Library),
		"DRA_EXPORTER_SOURCE_DCGM_PROFILING=true")
	defer work(nvidia)()
	defer work(engine)()

	p.eventually("both sources up", func() bool {
		m := p.scrape()
		return m.is(1, "dra_device_health", "device", "gpu-1", "status", "unhealthy") &&
			m.positive("dra_device_utilization_ratio", "device", instance)
	})
	m := p.scrape()
	m.want(nvidia.GPUs[0].Power, "dra_device_power_watts", "device", "gpu-0")
	m.want(1, "dra_device_quantity_source_info", "device", "gpu-0", "quantity", "power", "source", "nvml")
	m.want(1, "dra_device_quantity_source_info", "device", "gpu-0", "quantity", "health", "source", "dcgm")
	m.wantNone("dra_device_quantity_source_info", "device", "gpu-0", "quantity", "power", "source", "dcgm")
	m.want(1, "dra_device_health", "device", "gpu-0", "status", "healthy")

	nvidia.GPUs[1].Lost = 1
	p.eventually("reading from DCGM", func() bool {
		m := p.scrape()
		return m.is(222, "dra_device_power_watts", "device", "gpu-1") &&
			m.is(engine.GPUs[1].Instances[1].Work.Graphics, "dra_claim_utilization_ratio", "resourceclaim_name", "part")
	})
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")

	engine.Hang("dcgmGetValuesSince_v2", true)
	defer engine.Hang("dcgmGetValuesSince_v2", false)
	p.eventually("hanging", func() bool { return p.scrape().is(0, "dra_exporter_source_up", "source", "dcgm") })
	for range 5 {
		m := p.scrape()
		m.want(1, "dra_device_up", "device", "gpu-0")
	}
}

package e2e

import (
	"strings"
	"testing"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-exporter/dra-exporter/driver/health/healthtest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The stream of the DRA driver determines the health of its devices, also of free ones and without
// an API server. check names the driver.
func TestDriversHealth(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	root := healthtest.Root(t)
	d := &healthtest.Driver{Name: gpuDriver}
	d.Start(t, root)
	report := func(status healthv1.HealthStatus) {
		d.Set(healthtest.DeviceOf(nodeName, "gpu-0", healthv1.HealthStatus_HEALTHY, ""),
			healthtest.DeviceOf(nodeName, "gpu-1", status, "fell off the bus"))
	}
	report(healthv1.HealthStatus_UNHEALTHY)
	f := n.flags(flags{
		"kubelet.root":   root,
		"inventory.file": n.inventory(slice(gpuDriver, [2]string{"gpu-0", "{}"}, [2]string{"gpu-1", "{}"})),
	})
	p := start(t, f)
	becomes := func(status string) {
		t.Helper()
		p.eventually(status, func() bool {
			x := p.scrape()
			return x.is(1, "dra_device_health", "device", "gpu-0", "status", "healthy") &&
				x.is(1, "dra_device_health", "device", "gpu-1", "status", status)
		})
	}
	becomes("unhealthy")
	p.scrape().want(1, "dra_device_quantity_source_info", "device", "gpu-1", "quantity", "health", "source", "health")
	_, stdout, _ := run(t, append(f.Args(), "check"))
	const want = gpuDriver + ": streams health (v1.DRAResourceHealth): 1 healthy, 1 unhealthy, 0 unknown: " +
		"gpu-1 is unhealthy (fell off the bus)"
	expect.That(t, strings.Contains(stdout, want), "output of check without %q:\n%s", want, stdout)
	report(healthv1.HealthStatus_HEALTHY)
	becomes("healthy")
	d.Break()
	p.eventually("the source fails", func() bool {
		return p.scrape().is(0, "dra_exporter_source_up", "source", "health")
	})
	p.scrape().want(1, "dra_device_health", "device", "gpu-1", "status", "unknown")
}

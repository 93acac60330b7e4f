package e2e

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
)

// The slice replaces the GPU of a device that is held by another one. The value of the new GPU's
// counter before that time is not attributed.
func TestReplacedHardware(t *testing.T) {
	t.Parallel()
	var scrapes atomic.Int64
	url := vendor(t, func(w http.ResponseWriter, r *http.Request) {
		n := scrapes.Add(1)
		fixed(fmt.Sprintf("traffic_total{uuid=%q} %d\ntraffic_total{uuid=%q} %d\n",
			uuid(0), 1000+n, uuid(1), 50_000_000+n))(w, r)
	})
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	device := func(uuid string) string {
		attributes := fmt.Sprintf("{uuid: {string: %q}}", uuid)
		return n.inventory(slice(gpuDriver, [2]string{"gpu-0", attributes}))
	}
	p := start(t, n.flags(flags{
		"inventory.file":       device(uuid(0)),
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", url)),
	}))
	charged := func() float64 {
		bytes, _ := p.scrape().value("dra_claim_io_bytes_total", "resourceclaim_name", "claim-a")
		return bytes
	}
	p.eventually("the first GPU's traffic is charged", func() bool { return charged() > 0 })
	device(uuid(1))
	p.eventually("the other GPU is known", func() bool {
		return p.scrape().is(1, "dra_device_info", "device", "gpu-0", "uuid", uuid(1))
	})
	before := charged()
	p.eventually("the other GPU's traffic is charged", func() bool { return charged() > before+1 })
	if got, most := charged(), float64(scrapes.Load()); got > most {
		t.Errorf("the claim is charged %v bytes, and each counter grew by %v at most", got, most)
	}
	conserved(t, p.report())
}

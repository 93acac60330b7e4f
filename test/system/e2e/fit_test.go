package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// fitSlices lists a GPU of 80 GiB, and the partitions that can be made of it, each with counters.
const fitSlices = `apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus}
spec:
  driver: gpu.example.com
  nodeName: %[1]s
  pool: {name: %[1]s, generation: 1, resourceSliceCount: 2}
  devices:
  - name: gpu-0
    attributes: {uuid: {string: %[2]s}, productName: {string: H100}}
    capacity: {memory: {value: 80Gi}}
  - name: gpu-0-half
    attributes: {uuid: {string: %[2]s}, partition: {int: 0}, profile: {string: half}, productName: {string: H100}}
    capacity: {memory: {value: 40Gi}}
    consumesCounters: [{counterSet: gpu-0, counters: {memory: {value: 40Gi}, multiprocessors: {value: "60"}}}]
  - name: gpu-0-quarter
    attributes: {uuid: {string: %[2]s}, partition: {int: 1}, profile: {string: quarter}, productName: {string: H100}}
    capacity: {memory: {value: 20Gi}}
    consumesCounters: [{counterSet: gpu-0, counters: {memory: {value: 20Gi}, multiprocessors: {value: "30"}}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: counters}
spec:
  driver: gpu.example.com
  nodeName: %[1]s
  pool: {name: %[1]s, generation: 1, resourceSliceCount: 2}
  sharedCounters: [{name: gpu-0, counters: {memory: {value: 80Gi}, multiprocessors: {value: "120"}}}]
`

// A claim uses 11 GiB and 18 % of a GPU. A quarter suffices: 11 GiB are 55 % of its 20, and the
// work of 21.6 of 120 multiprocessors is 72 % of its 30.
func TestFit(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	config := n.scrapeConfig(endpoint("vendor", vendor(t, fixed(fmt.Sprintf(
		"utilization{uuid=%q} 0.18\nmemory{uuid=%[1]q} %d\n", uuid(0), 11<<30,
	)))))
	f := n.flags(flags{
		"inventory.file":       n.inventory(fmt.Sprintf(fitSlices, nodeName, uuid(0))),
		"source.scrape.config": config, "fit.after": "3s",
	})
	p, off := start(t, f), start(t, f.With(flags{"metrics.fit": "off"}))
	for _, one := range []*program{p, off} { // of a claim that began before them there is no advice
		one.eventually("reading", func() bool { return len(one.scrape().rows("dra_device_up")) > 0 })
	}
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	p.eventually("advised", func() bool { return len(p.scrape().rows("dra_claim_fit_unused_ratio")) > 0 })
	m := p.scrape()
	m.want(0.75, "dra_claim_fit_unused_ratio", "resourceclaim_name", "claim-a", "alternative", "quarter")
	m.want(11.0/80/0.95, "dra_claim_fit_ratio", "device", "gpu-0", "resource", "memory")
	m.want(0.18/0.95, "dra_claim_fit_ratio", "device", "gpu-0", "resource", "activity")

	const text = "gpu-0, 80 GiB: peak 11 GiB and p99.9 activity 18 % of "
	const would = ": quarter fits; 75 % unused"
	var report present.FitReport
	must.Do(t, json.Unmarshal(p.page("/api/v1/fit").body, &report))
	if len(report.Claims) != 1 || !strings.HasPrefix(report.Claims[0].Text, text) ||
		!strings.HasSuffix(report.Claims[0].Text, would) {
		t.Errorf("/api/v1/fit: %+v, want %q", report.Claims, text+"…"+would)
	}
	if body := string(p.page("/page/detail?claim=team/claim-a").body); !strings.Contains(body, text) {
		t.Errorf("the details of the claim do not have %q: %s", text, body)
	}
	off.eventually("reading", func() bool { return len(off.scrape().rows("dra_claim_memory_used_bytes")) > 0 })
	off.scrape().wantNone("dra_claim_fit_ratio")
}

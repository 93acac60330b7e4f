package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// A claim that stays busy while its power and its traffic fall is stalled, until they rise again:
// in the metrics, as an incident of its pod, and in its details on the page. One that works all the
// time is not.
func TestStalled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "hangs", "claim-hangs", gpu(0)), pod("team", "works", "claim-works", gpu(1)))
	var hangs atomic.Bool
	var bytes [2]atomic.Int64
	vendor := vendor(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range bytes {
			watts := 130
			if i == 1 || !hangs.Load() {
				watts = 640
				bytes[i].Add(5e9)
			}
			_, _ = fmt.Fprintf(w, "utilization{uuid=%q} 1\npower{uuid=%[1]q} %d\ntraffic_total{uuid=%[1]q} %[3]d\n",
				uuid(i), watts, bytes[i].Load())
		}
	})
	p := start(t, n.flags(flags{
		"inventory.file": n.inventory(gpus(2)), "source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor)),
		"stalled.after": "10s",
	}))
	is := func(value float64, claim string, reason ...string) func() bool {
		return func() bool {
			m := p.scrape()
			rows := m.rows("dra_claim_stalled", append([]string{"resourceclaim_name", claim}, reason...)...)
			all := m.rows("dra_claim_stalled", "resourceclaim_name", claim)
			return len(rows) == 1 && len(all) == 1 && rows[0].GetGauge().GetValue() == value
		}
	}
	const limit = 2 * time.Minute
	p.within(limit, "known to work", is(0, "claim-hangs"))
	p.within(limit, "known to work", is(0, "claim-works"))
	hangs.Store(true)
	p.within(limit, "stalled", is(1, "claim-hangs", "reason", "power,links"))
	if !is(0, "claim-works")() {
		t.Error("the claim that works is stalled too")
	}
	incidents := p.incidents()
	if len(incidents) != 1 || incidents[0].Kind != recorder.ClaimStalled || incidents[0].Code != "power,links" ||
		strings.Join(incidents[0].Pods(), " ") != "team/hangs" {
		t.Errorf("the incidents are %+v", incidents)
	}
	const text = "busy, and does nothing"
	if body := string(p.page("/page/detail?claim=team/claim-hangs").body); !strings.Contains(body, text) {
		t.Errorf("the details of the claim do not have %q: %s", text, body)
	}
	if body := string(p.page("/page/detail?claim=team/claim-works").body); strings.Contains(body, text) {
		t.Errorf("the details of the claim that works have %q", text)
	}
	hangs.Store(false)
	p.within(limit, "working again", is(0, "claim-hangs"))
}

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// receipts returns the response of /api/v1/receipts.
func (p *program) receipts() []*recorder.Receipt {
	p.t.Helper()
	var out present.ReceiptsReport
	if err := json.Unmarshal(p.page("/api/v1/receipts").body, &out); err != nil {
		p.t.Fatal(err)
	}
	return out.Receipts
}

// The receipt of a claim that ended is the same after kill -9, even if another file is damaged. The
// claim that continues has no receipt.
func TestReceiptOutlivesKill(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a, b := pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1))
	n.setPods(a, b)
	vendor := vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 100\npower{uuid=%q} 200\n", uuid(0), uuid(1))))
	folder := n.path("incidents")
	f := n.flags(flags{
		"inventory.file": n.inventory(gpus(2)), "source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor)),
		"incidents.dir": folder, "retention": "3s", // a receipt is made at the latest when the claim is forgotten
	})
	p := start(t, f)
	p.eventually("the claim is charged, and measured for more than an interval", func() bool {
		held, ok := p.scrape().value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
		return ok && held >= 3
	})
	n.setPods(b)
	p.eventually("the receipt", func() bool { return len(p.receipts()) == 1 })
	before := p.receipts()
	if r := before[0]; r.SubAccountName != "team" || r.ResourceName != "claim-a" || r.ChargeCategory != "Usage" ||
		len(r.Devices) != 1 || r.Devices[0].Device != "gpu-0" || r.Devices[0].Attribution != "exclusive" ||
		r.Figure(driver.Energy) == nil || r.Figure(driver.Energy).ErrorBound == nil ||
		r.Figure(driver.Energy).ConsumedUnit != "joules" || r.Figure(driver.Energy).MeasuredSeconds <= 0 {
		t.Errorf("the receipt is %+v", r)
	}
	p.eventually("a file", func() bool { return len(files(t, folder)) == 1 })
	p.Kill()
	if err := os.WriteFile(filepath.Join(folder, "receipts-0.json.gz"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = start(t, f)
	if diff := cmp.Diff(before, p.receipts()); diff != "" {
		t.Errorf("receipts after a restart (-before +after):\n%s", diff)
	}
	p.scrape().want(1, "dra_exporter_input_rejected_total", "input", "receipts", "reason", "malformed")
}

// A claim that is created again under the name of a deleted claim that is still known is another
// claim, and has its own receipt.
func TestReceiptOfEachUID(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	claim := func(uid string) string {
		return fmt.Sprintf("---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n"+
			"metadata: {namespace: team, name: claim-a, uid: %s}\nspec: {devices: {requests: [{name: gpu}]}}\n", uid)
	}
	other := pod("team", "b", "claim-b", gpu(1))
	vendor := vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 100\n", uuid(0))))
	p := start(t, n.flags(flags{
		"inventory.file": n.inventory(gpus(2), claim("first")), "retention": "8s",
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor)),
	}))
	held := func(seconds float64) func() bool {
		return func() bool {
			held, ok := p.scrape().value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
			return ok && held >= seconds
		}
	}
	n.setPods(pod("team", "a", "claim-a", gpu(0)), other)
	p.eventually("the first claim is charged", held(2))
	n.setPods(other)
	n.inventory(gpus(2), claim("second"))
	p.eventually("the first claim has ended", func() bool {
		_, holds := p.scrape().value("dra_claim_power_watts", "resourceclaim_name", "claim-a")
		return !holds
	})
	before, _ := p.scrape().value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
	n.setPods(pod("team", "a", "claim-a", gpu(0)), other)
	p.eventually("the second claim is charged, and the series of their name goes on", held(before+2))
	n.setPods(other)
	p.eventually("two receipts", func() bool { return len(p.receipts()) == 2 })
	second, first := p.receipts()[0], p.receipts()[1] // the newest first
	if first.ResourceID != "first" || second.ResourceID != "second" ||
		second.ChargePeriodStart.Before(first.ChargePeriodEnd) {
		t.Errorf("the receipts are %+v and %+v", first, second)
	}
}

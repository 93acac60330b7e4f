package ledger_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The example in exporter/ATTRIBUTION.md: a device uses 500 J in a second. Claim a (pod p0) holds
// it all the time, claim b (pod p1) from 0.4 s on.
func TestDocumentedExample(t *testing.T) {
	readme := must.Get(os.ReadFile("../ATTRIBUTION.md"))(t)
	memory := func(gib float64) []driver.Amount {
		return []driver.Amount{{Resource: "memory", Value: gib * (1 << 30)}}
	}
	for row, b := range map[string]func(h *exportertest.History, b *podresources.Allocation){
		"`equal`":               func(*exportertest.History, *podresources.Allocation) {},
		"B has admin access":    func(_ *exportertest.History, b *podresources.Allocation) { b.Admin = true },
		"`capacity`: A consume": func(_ *exportertest.History, b *podresources.Allocation) { b.Consumed = memory(20) },
		"`process`: GPU busy":   func(*exportertest.History, *podresources.Allocation) {},
	} {
		t.Run(row, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("a", "p0").Consumed = memory(60)
			h.Energy(10_000)
			h.Pass(time.Second)
			h.Changes = []podresources.Change{
				{At: jointest.Start().Add(400 * time.Millisecond), CDI: []string{"example.com/gpu=b"}},
			}
			b(h, h.Hold("b", "p1"))
			readings := []driver.Reading{{Quantity: driver.Energy, Value: 10_500}}
			if strings.HasPrefix(row, "`process`") {
				h.Read(append(readings, driver.Reading{Quantity: driver.Utilization, Value: 1})...)
				h.Run(exportertest.Process(1, 0.2, 0), exportertest.Process(2, 0.6, 0), exportertest.Process(4, 0.2, 0))
			} else {
				h.Read(readings...)
			}
			x := h.Tick(0)
			cells := []string{
				shownJoules(x, "dra_claim_energy_joules_total", "resourceclaim_name=a"),
				shownJoules(x, "dra_claim_energy_joules_total", "resourceclaim_name=b"),
				shownJoules(x, "dra_device_unattributed_energy_joules_total", "device=gpu-0"),
				shownJoules(x, "dra_device_energy_joules_total", "device=gpu-0"),
			}
			want := strings.Join(cells, " | ") + " |"
			for line := range strings.Lines(string(readme)) {
				if strings.HasPrefix(line, "| "+row) && strings.HasSuffix(strings.TrimSpace(line), " "+want) {
					return
				}
			}
			t.Errorf("exporter/ATTRIBUTION.md has no row %q that ends with %q", row, want)
		})
	}
}

// shownJoules returns the value of a series as the document shows it.
func shownJoules(x exportertest.Scraped, family, label string) string {
	for _, v := range x.Matching(family, label) {
		return fmt.Sprintf("%.0f J", v)
	}
	return "-"
}

package exporter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The cost in new series of a pod of 20 s with a claim, with and without --pod.min-lifetime, as in
// METRICS.md.
func TestSeriesOfShortPods(t *testing.T) {
	for minLifetime, pods := range map[time.Duration]int{
		0: exposition.SeriesOfShortPod, time.Minute: exposition.SeriesOfWorkload + 1, // its dra_pod_info
	} {
		h := exportertest.NewHistory(t)
		config := exportertest.LedgerConfig()
		config.MinLifetime = minLifetime
		h.Ledger = ledger.New(config)
		series := map[string]int{} // by the beginning of their families' names
		seen := map[string]bool{}
		for second := range 40 {
			switch second {
			case 5:
				h.Hold("c", "p").Holders[0].Meta = &podresources.PodMeta{WorkloadKind: "Job", WorkloadName: "train"}
			case 25:
				h.Free("c")
			}
			link := func(direction string) driver.Reading {
				return driver.Reading{
					Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", direction}, Value: float64(second),
				}
			}
			h.Read(append(exportertest.Gauges(0.5, 1e9, 100), link("receive"), link("transmit"))...)
			h.Pass(time.Second)
			for _, f := range exportertest.Decode(t, exportertest.Render(h.Last, exposition.Config{})) {
				for _, m := range f.Metric {
					// Others are of a driver.
					if name := f.GetName() + fmt.Sprint(m.Label); !seen[name] && strings.Contains(name, "namespace") {
						seen[name] = true
						series[strings.Join(strings.SplitN(name, "_", 3)[:2], "_")]++
					}
				}
			}
		}
		expect.Is(t, series["dra_claim"], exposition.SeriesOfShortClaim, "%v: series of claims", minLifetime)
		expect.Is(t, series["dra_pod"], pods, "%v: series of pods", minLifetime)
	}
}

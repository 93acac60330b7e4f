package exporter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The cost in new series of pods of 20 s with a claim each, 1000 an hour, with and without
// --pod.min-lifetime, as in METRICS.md. With it, no pod has series, and the workload's final values
// are the sum of the pods' use: each 20 s at 100 W.
func TestSeriesOfShortPods(t *testing.T) {
	t.Parallel()
	churnPods := 100
	if testing.Short() {
		churnPods = 20
	}
	for _, tt := range []struct {
		minLifetime time.Duration
		pods        int // series
	}{
		{minLifetime: 0, pods: churnPods * exposition.SeriesOfShortPod},
		{minLifetime: time.Minute, pods: churnDevices*exposition.SeriesOfWorkload + 1},
	} {
		t.Run(tt.minLifetime.String(), func(t *testing.T) {
			t.Parallel()
			claims, pods, last := churn(t, churnPods, tt.minLifetime)
			if claims != churnPods*exposition.SeriesOfShortClaim || pods != tt.pods {
				t.Errorf("%d series are of claims and %d of pods, want %d and %d",
					claims, pods, churnPods*exposition.SeriesOfShortClaim, tt.pods)
			}
			if tt.minLifetime == 0 {
				return
			}
			got := exportertest.SumOf(last.Matching("dra_pod_energy_joules_total", "pod=aggregated/Job/train"))
			if want := float64(churnPods) * 20 * 100; !exportertest.Close(got, want, 0) {
				t.Errorf("the workload has %v J, want %v", got, want)
			}
		})
	}
}

const churnDevices = 6 // at most so many pods at a time

// churn plays short pods, 1000 an hour, and returns how many series were ever scraped, and the last
// scrape.
func churn(t *testing.T, churnPods int, minLifetime time.Duration) (claims, pods int, last exportertest.Scraped) {
	t.Helper()
	const (
		every = time.Hour / 1000
		tick  = 400 * time.Millisecond
		life  = 20 * time.Second
	)
	h := exportertest.NewHistory(t)
	config := exportertest.LedgerConfig()
	config.MinLifetime = minLifetime
	h.Ledger = ledger.New(config)
	series := map[string]bool{}
	start := h.Now
	for device := range churnDevices {
		h.In.Inventory[jointest.ID(fmt.Sprint("gpu-", device))] = driver.Entry{
			Hardware: driver.Hardware{UUID: fmt.Sprint("gpu-", device)},
		}
	}
	for begun, n := 0, 0; h.Now.Before(start.Add(time.Duration(churnPods)*every + time.Minute)); n++ {
		at := h.Now.Sub(start)
		for ; begun < churnPods && at >= tick+time.Duration(begun)*every; begun++ {
			a := jointest.Allocation(fmt.Sprint("gpu-", begun%churnDevices), fmt.Sprint("c-", begun), fmt.Sprint("p-", begun))
			a.Holders[0].Meta = &podresources.PodMeta{WorkloadKind: "Job", WorkloadName: "train"}
			h.In.View.Allocations = append(h.In.View.Allocations, a)
		}
		for len(h.In.View.Allocations) > 0 {
			var first int
			must.Get(fmt.Sscanf(h.In.View.Allocations[0].Claim.Name, "c-%d", &first))(t)
			if at < tick+time.Duration(first)*every+life {
				break
			}
			h.In.View.Allocations = h.In.View.Allocations[1:]
		}
		for device := range churnDevices {
			h.ReadOf(
				fmt.Sprint("gpu-", device),
				append(exportertest.Gauges(0.5, 1e9, 100), driver.Reading{
					Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: 1e6 * at.Seconds(),
				}, driver.Reading{
					Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "transmit"}, Value: 1e6 * at.Seconds(),
				})...,
			)
		}
		h.In.View.At = h.Now
		h.Advance()
		h.Now = h.Now.Add(tick)
		if n%40 != 0 { // a scrape every 16 s
			continue
		}
		for _, f := range exportertest.Decode(t, exportertest.Render(h.Last, exposition.Config{})) {
			for _, m := range f.Metric {
				series[f.GetName()+fmt.Sprint(m.Label)] = true
			}
		}
	}
	for name := range series {
		switch {
		// Others are of a driver.
		case strings.HasPrefix(name, "dra_claim_") && strings.Contains(name, "resourceclaim_name"):
			claims++
		case strings.HasPrefix(name, "dra_pod_"):
			pods++
		}
	}
	return claims, pods, exportertest.Scrape(t, h.Last)
}

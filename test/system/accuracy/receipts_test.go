package accuracy

import (
	"math"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// withinBounds is the part of the pods whose true use is within the bounds of their claims'
// receipts.
const withinBounds = 0.99

// compareReceipts compares the receipt of each pod's claim with the truth. Nothing is read while
// the machine is stalled: the bounds are wider by the share of stalled time.
func compareReceipts(t *testing.T, exporter, address string, pods truth) {
	t.Helper()
	var report present.ReceiptsReport
	get(t, address, "/api/v1/receipts", &report)
	compared, within, missing := 0, 0, len(pods)
	var relative float64
	for _, r := range report.Receipts {
		if len(r.Pods) != 1 {
			t.Errorf("%s: a receipt of %d pods: %+v", exporter, len(r.Pods), r.Pods)
			continue
		}
		pod := pods[r.Pods[0].Name]
		if pod == nil {
			continue // of a partition
		}
		missing--
		for q, truth := range map[driver.Quantity]float64{driver.Energy: pod.joules, driver.ActiveSeconds: pod.active} {
			f := r.Figure(q)
			if f == nil || f.ErrorBound == nil {
				t.Errorf("%s: the receipt of %s has no %s with a bound", exporter, r.Pods[0].Name, q)
				continue
			}
			compared++
			relative += *f.ErrorBound / truth
			if math.Abs(f.ConsumedQuantity-truth) <= *f.ErrorBound+pod.still*truth {
				within++
			} else {
				t.Logf("%s: %s: %s is %.1f ± %.1f, the truth is %.1f", exporter, r.Pods[0].Name, q, f.ConsumedQuantity,
					*f.ErrorBound, truth)
			}
		}
	}
	t.Logf("%s: of %d figures of receipts %d are within their bounds, which are %.0f %% on average; %d are missing",
		exporter, compared, within, 100*relative/float64(compared), missing)
	expect.That(t, compared >= len(pods) && float64(within) >= withinBounds*float64(compared),
		"%s: of %d figures of receipts only %d are within their bounds", exporter, compared, within)
	expect.That(t, missing <= len(pods)/100, "%s: %d of %d receipts are missing", exporter, missing, len(pods))
}

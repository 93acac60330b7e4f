package web

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A share of 40 GiB peaks at 19 GiB: with a margin of 5 % it needs 20 GiB, a quarter of the device.
func TestFitReport(t *testing.T) {
	const gib = 1 << 30
	h := exportertest.NewHistory(t)
	h.In.Inventory[jointest.ID("gpu-0")] = driver.Entry{
		Hardware: driver.Hardware{UUID: "gpu-0"}, Shareable: true,
		Capacity: []driver.Amount{{Resource: "memory", Value: 80 * gib}},
	}
	h.Hold("a", "p0").Consumed = []driver.Amount{{Resource: "memory", Value: 40 * gib}}
	read := func(seconds int) []present.ClaimFitReport {
		for range seconds {
			h.Read(
				driver.Reading{Quantity: driver.Utilization, Value: 0},
				driver.Reading{Quantity: driver.MemoryUsed, Value: 19 * gib},
			)
			h.Pass(time.Second)
		}
		_, body := fetch(t, serving(t, h.Last, nil).URL+"/api/v1/fit")
		var report present.FitReport
		err := json.Unmarshal([]byte(body), &report)
		must.That(t, err == nil, "%v: %s", err, body)
		return report.Claims
	}
	who := present.ClaimFitReport{Namespace: "team", Name: "a", ID: jointest.ID("gpu-0")}
	since := time.Unix(1700000000, 0).UTC() // it was there before the kubelet's first answer
	who.MeasuredSince = &since
	early := who
	early.Reason, early.Text = "not_measured", "gpu-0: the activity or the memory of the device is not measured"
	expect.Equal(t, "at first,", []present.ClaimFitReport{early}, read(2))
	want := who
	want.Text = "gpu-0, 40 GiB: peak 19 GiB and p99.9 activity 0 % of 2 min since 2023-11-14 22:13:20 UTC " +
		"(it began before that): memory=20Gi fits; 50 % unused"
	want.MeasuredSeconds = 120
	want.Memory = &present.MemoryFitReport{HeldBytes: 40 * gib, PeakBytes: 19 * gib, NeededRatio: 0.5}
	want.Activity = &present.ActivityFitReport{}
	want.Alternative = &present.AlternativeReport{
		Kind: "share", Name: "memory=20Gi", Device: "gpu-0", Capacity: map[string]float64{"memory": 20 * gib},
		MemoryBytes: 20 * gib, UnusedRatio: 0.5,
	}
	expect.Equal(t, "after two minutes,", []present.ClaimFitReport{want}, read(120))
	if _, body := fetch(t, serving(t, h.Last, nil).URL+"/page/detail?claim=team/a"); !strings.Contains(body, want.Text) {
		t.Errorf("the details of the claim do not have %q:\n%s", want.Text, body)
	}
}

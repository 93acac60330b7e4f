package web

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A GPU that no slice lists, since its partitions are listed, is not free. The report has the
// source of the claims' parts of its power, and the known facts of both.
func TestReportOfPartition(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.In.Inventory = driver.Inventory{
		jointest.ID("gpu-0"): {Unlisted: true, Hardware: driver.Hardware{
			UUID: "gpu-0", Serial: "1650823456700", FirmwareVersion: "96.00.61.00.01", DriverVersion: "580.65.06",
			CUDAVersion: "13.0",
		}},
		jointest.ID("part"): {Hardware: driver.Hardware{
			UUID: "part", Kind: driver.KindPartition, Parent: "gpu-0", ParentShare: 1.0 / 7, Profile: "1g.10gb",
		}},
	}
	h.In.View.Allocations = []podresources.Allocation{jointest.Allocation("part", "c", "p")}
	h.Read(jointest.Watts(70), driver.Reading{Quantity: driver.Energy, Value: 1})
	h.ReadOf("part", driver.Reading{Quantity: driver.MemoryUsed, Value: 1})
	h.Pass(time.Second)
	url := serving(t, h.Last, nil).URL
	_, body := fetch(t, url+"/api/v1/snapshot")
	var report present.Report
	must.Do(t, json.Unmarshal([]byte(body), &report))
	parent, part := report.Devices[0], report.Devices[1]
	expect.That(t, parent.State == book.StatePartitioned && parent.Unlisted && !part.Unlisted, "the report says %s", body)
	divided := []present.DividedReport{
		{Quantity: "power", Source: "a (divided by share)"}, {Quantity: "energy", Source: "a (divided by share)"},
	}
	if diff := cmp.Diff(divided, part.Divided); diff != "" || parent.Divided != nil {
		t.Errorf("what is divided (-want +got):\n%s, of the parent %v", diff, parent.Divided)
	}
	facts := []string{part.Profile, parent.Serial, parent.FirmwareVersion, parent.DriverVersion, parent.CUDAVersion}
	expect.Equal(t, "facts", []string{"1g.10gb", "1650823456700", "96.00.61.00.01", "580.65.06", "13.0"}, facts)
	for device, wants := range map[string][]string{
		"gpu-0": {"in no ResourceSlice", "1650823456700", "96.00.61.00.01", "580.65.06", "13.0"},
		"part":  {"1g.10gb", "power, energy", "a (divided by share): its parent measures it"},
	} {
		_, body := fetch(t, url+"/page/detail?device="+device)
		for _, want := range wants {
			expect.That(t, strings.Contains(body, want), "the details of %s do not have %q:\n%s", device, want, body)
		}
		if n := strings.Count(body, "energy"); device == "part" && n != 1 {
			t.Errorf("why the energy is absent is said %d times:\n%s", n, body)
		}
	}
}

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

// A summary has the owners of devices and what needs attention. Its entity tag stays as long as
// these do, whatever is measured.
func TestSummary(t *testing.T) {
	h := exportertest.NewHistory(t)
	admin := jointest.Allocation("gpu-0", "watcher", "w")
	admin.Admin = true
	h.In.View.Allocations = []podresources.Allocation{
		jointest.Allocation("gpu-0", "c", "p2"), jointest.Allocation("gpu-0", "c", "p1"), admin,
	}
	h.Read(jointest.Watts(70))
	h.Pass(time.Second)
	down := driver.Reason("")
	handler := NewHandler(Config{
		Metrics: nil, Latest: func() *exposition.Snapshot { return h.Last }, Node: "node1", MetricsPath: "/metrics",
		Scrapes: &Scrapes{}, QuietAfter: time.Minute, Log: slog.New(slog.DiscardHandler),
		Sources: func() []present.Source { return []present.Source{{Name: "nvml", Down: down}, {Name: "cpu"}} },
	})
	get := func(tag string) (*httptest.ResponseRecorder, present.Summary) {
		r := httptest.NewRequest(http.MethodGet, "http://node1/api/v1/summary", http.NoBody)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		var out present.Summary
		if w.Code == http.StatusOK {
			must.Do(t, json.Unmarshal(w.Body.Bytes(), &out))
		}
		return w, out
	}
	first, got := get("")
	want := []present.ClaimSummary{{
		Namespace: got.Claims[0].Namespace, Name: "c", State: got.Claims[0].State, Devices: 1, Pods: []string{"p1", "p2"},
	}}
	expect.Equal(t, "claims", want, got.Claims)
	// Another document in between uses the compressor.
	other := httptest.NewRequest(http.MethodGet, "http://node1/api/v1/snapshot", http.NoBody)
	handler.ServeHTTP(httptest.NewRecorder(), other)
	h.Read(jointest.Watts(90))
	h.Pass(time.Second)
	second, _ := get(first.Header().Get("Etag"))
	expect.That(t, second.Code == http.StatusNotModified, "after another reading: status %d", second.Code)
	down = driver.ReasonTimeout
	h.Pass(time.Second)
	third, got := get(first.Header().Get("Etag"))
	expect.That(t, third.Code == http.StatusOK && len(got.Down) == 1 && got.Down["nvml"] == driver.ReasonTimeout,
		"a source is down: status %d, %+v", third.Code, got)
	h.In.View.Allocations = nil
	h.Pass(time.Second)
	if fourth, got := get(first.Header().Get("Etag")); fourth.Code != http.StatusOK || len(got.Claims) != 0 ||
		got.Devices[book.StateFree] == 0 {
		t.Errorf("after the claim: status %d, %+v", fourth.Code, got)
	}
}

package web

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

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

package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A second after the last request, an old snapshot is no longer referenced. A snapshot is as large
// as everything that a tick allocates.
func TestOldSnapshotsAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := exportertest.NewNode(t)
		exportertest.Play(h)
		latest := h.Last
		h.Last = nil
		get := func() *exposition.Snapshot { return latest }
		handler := NewHandler(Config{
			Metrics: exposition.New(prometheus.NewRegistry(), get, exposition.Config{}), Latest: get, Node: "node1",
			MetricsPath: "/metrics", Scrapes: &Scrapes{}, QuietAfter: time.Minute, Log: slog.New(slog.DiscardHandler),
		})
		for _, path := range []string{
			"/metrics", "/", "/page/rows", "/page/detail?device=gpu-4", "/api/v1/snapshot", "/api/v1/fit", "/api/v1/summary",
		} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+path, http.NoBody))
			must.That(t, w.Code == http.StatusOK, "%s: status %d", path, w.Code)
		}
		old := weak.Make(latest)
		latest = nil
		time.Sleep(freshFor + 1)
		synctest.Wait()
		runtime.GC()
		expect.That(t, old.Value() == nil, "the snapshot is kept")
		runtime.KeepAlive(handler)
	})
}

// A history, which is written piece by piece, has all fields of its type.
func TestWrittenHistoryIsWhole(t *testing.T) {
	_, read, err := receiptNode(t).history(url.Values{"device": {"gpu-0"}})
	must.Do(t, err)
	report := read().(present.HistoryReport)
	var written bytes.Buffer
	must.Do(t, report.Write(&written))
	whole := must.Get(json.Marshal(report))(t)
	var got, want any
	must.Do(t, errors.Join(json.Unmarshal(written.Bytes(), &got), json.Unmarshal(whole, &want)))
	expect.Equal(t, "", want, got)
}

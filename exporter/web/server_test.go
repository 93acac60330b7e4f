package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// hostile is a name that would end an attribute, a line or a string if it were not escaped.
const hostile = "a\"b\\c\n<script>alert(1)</script>"

func snapshotWithHostileNames() *exposition.Snapshot {
	l := ledger.New(ledger.Config{Retention: time.Minute})
	start := time.Unix(1000, 0)
	id := driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: hostile}
	in := join.Input{
		Inventory: driver.Inventory{id: {Hardware: driver.Hardware{UUID: "GPU-0", Model: hostile}}},
		View: podresources.View{At: start, Allocations: jointest.Held(podresources.Allocation{
			Claim: podresources.Claim{Namespace: hostile, Name: hostile}, Device: id,
			Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: hostile, Name: hostile}, Container: hostile}},
		})},
		Sources: []join.SourceSamples{{Name: "test", Samples: []driver.Sample{{
			Hardware: driver.Hardware{UUID: "GPU-0"},
			Readings: []driver.Reading{
				{Quantity: driver.Utilization, Value: 0.005, At: start}, {Quantity: driver.Power, Value: 70, At: start},
			},
		}}}},
	}
	l.Advance(join.Join(in), start)
	in.View.At = start.Add(time.Minute)
	return exposition.NewLimiter(0, nil).Apply(l, l.Advance(join.Join(in), in.View.At))
}

func serving(t *testing.T, latest *exposition.Snapshot, more func(*Config)) *httptest.Server {
	registry := prometheus.NewRegistry()
	exporter.NewSelfMetrics(registry, "node1", nil, slog.New(slog.DiscardHandler))
	get := func() *exposition.Snapshot { return latest }
	config := Config{
		Metrics: exposition.New(registry, get, exposition.Config{}), Latest: get, Node: "node1", MetricsPath: "/metrics",
		Scrapes: &Scrapes{}, QuietAfter: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
	}
	if more != nil {
		more(&config)
	}
	server := httptest.NewServer(NewHandler(config))
	t.Cleanup(server.Close)
	return server
}

func fetch(t *testing.T, address string) (status int, body string) {
	response, err := http.Get(address)
	must.Do(t, err)
	defer response.Body.Close()
	return response.StatusCode, string(must.Get(io.ReadAll(response.Body))(t))
}

func TestServerBeforeTheFirstSnapshot(t *testing.T) {
	server := serving(t, nil, nil)
	for path, want := range map[string]int{
		"/": 200, "/healthz": 200, "/readyz": 503, "/metrics": 200, "/api/v1/snapshot": 503, "/debug/pprof/": 404,
		"/none": 404,
	} {
		got, body := fetch(t, server.URL+path)
		expect.That(t, got == want, "%s: status %d, want %d: %s", path, got, want, body)
	}
}

// The probes fail with the reason while the snapshot is too old.
func TestProbesFail(t *testing.T) {
	var health error
	server := serving(t, snapshotWithHostileNames(), func(c *Config) { c.Health = func() error { return health } })
	for _, want := range []struct {
		err    error
		status int
		body   string
	}{{nil, 200, "ok\n"}, {errors.New("no snapshot for 1m0s"), 503, "no snapshot for 1m0s\n"}} {
		health = want.err
		for _, path := range []string{"/healthz", "/readyz"} {
			if got, body := fetch(t, server.URL+path); got != want.status || body != want.body {
				t.Errorf("%s with %v: status %d, %q", path, want.err, got, body)
			}
		}
	}
}

func TestServerEscapesNames(t *testing.T) {
	server := serving(t, snapshotWithHostileNames(), nil)
	_, page := fetch(t, server.URL+"/")
	expect.That(t, !strings.Contains(page, "<script>alert") && strings.Contains(page, "alert(1)"),
		"the page shows a name as markup, or not at all")
	_, metrics := fetch(t, server.URL+"/metrics")
	if want := `device="a\"b\\c\n<script>alert(1)</script>"`; !strings.Contains(metrics, want) {
		t.Errorf("the metrics do not have %s", want)
	}
	_, body := fetch(t, server.URL+"/api/v1/snapshot")
	var report present.Report
	must.Do(t, json.Unmarshal([]byte(body), &report))
	if len(report.Devices) != 1 || report.Devices[0].Device != hostile || len(report.Pods) != 1 ||
		report.Pods[0].Name != hostile {
		t.Errorf("the report has other names: %s", body)
	}
}

// Taints are shown on the page and in the report, with the slice or the rule that sets them.
func TestTaintsAreShown(t *testing.T) {
	id := driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-0"}
	at := time.Unix(1000, 0)
	in := join.Input{View: podresources.View{At: at}, Inventory: driver.Inventory{id: {Taints: []driver.Taint{
		{Key: "worn", Effect: "NoSchedule"},
		{Key: "maintenance", Value: "today", Effect: "NoExecute", Rule: "evacuate"},
		{Key: "preview", Effect: "None", Rule: "dry-run"},
	}}}}
	books := ledger.New(ledger.Config{Retention: time.Minute})
	s := exposition.NewLimiter(0, nil).Apply(books, books.Advance(join.Join(in), at))
	server := serving(t, s, nil)
	_, page := fetch(t, server.URL+"/")
	for _, want := range []string{
		`<span class="bad" title="maintenance=today:NoExecute (DeviceTaintRule evacuate)">NoExecute</span>`,
		`<span class="warn" title="worn:NoSchedule (ResourceSlice)">NoSchedule</span>`,
	} {
		expect.That(t, strings.Contains(page, want), "the page does not show %s", want)
	}
	expect.That(t, !strings.Contains(page, "preview"), "the page shows a taint without effect")
	want := []present.TaintReport{
		{Taint: "worn:NoSchedule", Source: "slice"},
		{Taint: "maintenance=today:NoExecute", Source: "rule", Rule: "evacuate"},
		{Taint: "preview:None", Source: "rule", Rule: "dry-run"},
	}
	expect.Equal(t, "", want, reportOf(t, s).Devices[0].Taints)
}

// Why each pod holds a device is in the report and in the details of the page, whatever the reason
// is; the details name the pods where it is not the same for all.
func TestReasonsAreShown(t *testing.T) {
	reasons := podresources.Reasons()
	at := time.Unix(1000, 0)
	a := podresources.Allocation{Claim: podresources.Claim{Namespace: "team", Name: "train"}, Device: jointest.ID("gpu-0")}
	var want []present.HoldReport
	for i, reason := range reasons {
		pod := podresources.Pod{Namespace: "team", Name: fmt.Sprintf("rank-%02d", i)}
		a.Holders = append(a.Holders, podresources.Holder{Pod: pod, Hold: &podresources.Hold{Reason: reason}})
		want = append(want, present.HoldReport{Pod: "team/" + pod.Name, Reason: reason})
	}
	both := a
	both.Device, both.Holders = jointest.ID("gpu-1"), slices.Clone(a.Holders[:2])
	both.Holders[1].Hold = both.Holders[0].Hold
	in := join.Input{View: podresources.View{At: at, Allocations: jointest.Held(a, both)}}
	books := ledger.New(ledger.Config{Retention: time.Minute})
	s := exposition.NewLimiter(0, nil).Apply(books, books.Advance(join.Join(in), at))
	expect.Equal(t, "the report", want, reportOf(t, s).Devices[0].Shares[0].Holds)
	server := serving(t, s, nil)
	_, page := fetch(t, server.URL+"/page/detail?device=gpu-0")
	for _, h := range want {
		if text := template.HTMLEscapeString(h.Pod + ": " + string(h.Reason)); !strings.Contains(page, text) {
			t.Errorf("the details of gpu-0 do not say %q", text)
		}
	}
	_, page = fetch(t, server.URL+"/page/detail?device=gpu-1")
	expect.That(t, strings.Contains(page, ">"+string(reasons[0])+"<"),
		"the details of gpu-1 do not say %q once", reasons[0])
}

// reportOf returns the report of a snapshot, as a program reads it.
func reportOf(t *testing.T, s *exposition.Snapshot) (report present.Report) {
	var written bytes.Buffer
	must.Do(t, errors.Join(present.WriteReport(&written, s, present.Config{Node: "node1", QuietAfter: time.Minute}),
		json.Unmarshal(written.Bytes(), &report)))
	return report
}

func TestPageShowsQuietClaims(t *testing.T) {
	_, page := fetch(t, serving(t, snapshotWithHostileNames(), nil).URL+"/")
	for _, want := range []string{">quiet<", "0.5 %", "70 W", "60 s"} {
		expect.That(t, strings.Contains(page, want), "the page does not show %q", want)
	}
}

// Answers of more than a packet are compressed for a client that asks for it, as Go's does.
func TestCompression(t *testing.T) {
	server := serving(t, snapshotWithHostileNames(), nil)
	for path, want := range map[string]bool{
		"/metrics": true, "/metrics?name[]=dra_device_info": false, "/healthz": false,
	} {
		response, err := http.Get(server.URL + path)
		must.Do(t, err)
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		expect.That(t, err == nil && len(body) != 0 && response.Uncompressed == want,
			"%s: %d bytes, error %v, compressed %v, want %v", path, len(body), err, response.Uncompressed, want)
	}
}

func TestPprofWhenAsked(t *testing.T) {
	server := serving(t, nil, func(c *Config) { c.Pprof = true })
	status, _ := fetch(t, server.URL+"/debug/pprof/")
	expect.That(t, status == http.StatusOK, "status %d", status)
}

func TestScrapes(t *testing.T) {
	scrapes := &Scrapes{}
	server := serving(t, nil, func(c *Config) { c.Scrapes = scrapes })
	expect.That(t, scrapes.Next(time.Hour) == nil, "a scrape is expected though there was none")
	fetch(t, server.URL+"/metrics")
	next := scrapes.Next(time.Hour)
	select {
	case <-next:
		t.Error("the scrape of before counts as the next one")
	default:
	}
	fetch(t, server.URL+"/metrics")
	select {
	case <-next:
	case <-time.After(5 * time.Second):
		t.Error("the next scrape went unnoticed")
	}
}

// A scrape is answered in the format and with the families that it asks for.
func TestScrape(t *testing.T) {
	server := serving(t, snapshotWithHostileNames(), nil)
	for _, tc := range []struct{ accept, query, format, want, not string }{
		{"", "", "text/plain; version=0.0.4; charset=utf-8", "# TYPE dra_claim_active_seconds_total counter\n", "# EOF"},
		{"text/html", "", "text/plain; version=0.0.4; charset=utf-8", "dra_exporter_", "# EOF"},
		{
			"application/openmetrics-text; version=1.0.0", "", "application/openmetrics-text; version=1.0.0; charset=utf-8",
			"# EOF\n", "_created",
		},
		{
			"application/openmetrics-text; version=0.0.1; escaping=dots", "?name[]=dra_claim_power_watts",
			"application/openmetrics-text; version=0.0.1; charset=utf-8; escaping=dots", "# EOF\n", "dra_device_",
		},
		{
			"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited", "",
			"application/vnd.google.protobuf", "dra_claim_power_watts", "# TYPE",
		},
		{
			"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=text", "", "text/plain",
			"dra_claim_power_watts", "metric {",
		},
		{"", "?name[]=dra_claim_power_watts&name[]=dra_exporter_info", "text/plain", "dra_claim_power_watts{", "dra_device_"},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics"+tc.query, http.NoBody)
		must.Do(t, err)
		request.Header.Set("Accept", tc.accept)
		response, err := http.DefaultClient.Do(request)
		must.Do(t, err)
		body, err := io.ReadAll(response.Body)
		must.Do(t, err)
		response.Body.Close()
		if got := response.Header.Get("Content-Type"); !strings.HasPrefix(got, tc.format) ||
			response.StatusCode != http.StatusOK || len(response.Header.Values("Vary")) != 2 {
			t.Errorf("%q%s: %s, Content-Type %s", tc.accept, tc.query, response.Status, got)
		}
		expect.That(t, strings.Contains(string(body), tc.want) && !strings.Contains(string(body), tc.not),
			"%q%s: want %q and no %q in %.300s", tc.accept, tc.query, tc.want, tc.not, body)
	}
}

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

func TestMain(m *testing.M) { testmain.Main(m) }

package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// routesOf returns the statuses of the examples of all routes, by kind.
func routesOf(c Config, change func(*http.Request)) map[Kind]map[int]int {
	handler := NewHandler(c)
	out := map[Kind]map[int]int{}
	for _, route := range Routes("/metrics") {
		if route.Kind == KindMetrics || route.Kind == KindProfile {
			continue
		}
		r := httptest.NewRequest(http.MethodGet, route.Example, http.NoBody)
		r.Host = "10.0.0.7:10985"
		change(r)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if out[route.Kind] == nil {
			out[route.Kind] = map[int]int{}
		}
		out[route.Kind][w.Code]++
	}
	return out
}

// Names that another site can own reach neither the page nor the JSON, whatever path it is; nor do
// scripts of other sites. Addresses, port-forwarding, services, links, and probes work.
func TestOtherSites(t *testing.T) {
	c := receiptNode(t)
	c.Node, c.Hosts = "Node1.example.com", []string{"gpu.example.org"}
	refused := 0
	c.Rejected = func(r driver.Rejection) {
		expect.That(t, r.Input == "requests" && r.Reason == driver.ReasonForbidden, "rejected %+v", r)
		refused += r.Count
	}
	const ok, misdirected, forbidden = http.StatusOK, http.StatusMisdirectedRequest, http.StatusForbidden
	for _, test := range []struct {
		host    string
		headers string // NAME=VALUE, separated by spaces
		want    int
	}{
		{host: "10.0.0.7:10985", want: ok},
		{host: "[fd00::7]:10985", want: ok},
		{host: "[fe80::7%25eth0]:10985", want: ok},
		{host: "fd00::7", want: ok},
		{host: "localhost:8001", want: ok},
		{host: "LOCALHOST", want: ok},
		{host: "node1", want: ok},
		{host: "node1.example.com:10985", want: ok},
		{host: "gpu.example.org", want: ok},
		{host: "dra-exporter.monitoring.svc:10985", want: ok},
		{host: "dra-exporter.monitoring.svc.cluster.local.", want: ok},
		{host: "evil.example.org:10985", want: misdirected},
		{host: "10.0.0.7.evil.example.org", want: misdirected},
		{host: "a.svc.evil.example.org", want: misdirected},
		{host: "10.0.0.7:10985", headers: "Origin=http://10.0.0.7:10985", want: ok},
		{host: "10.0.0.7:10985", headers: "Origin=http://10.0.0.7:80", want: forbidden},
		{host: "10.0.0.7:10985", headers: "Origin=https://evil.example.org", want: forbidden},
		{host: "10.0.0.7:10985", headers: "Origin=null", want: forbidden},
		{host: "10.0.0.7:10985", headers: "Sec-Fetch-Site=cross-site Sec-Fetch-Mode=no-cors", want: forbidden},
		{host: "10.0.0.7:10985", headers: "Sec-Fetch-Site=cross-site Sec-Fetch-Mode=navigate", want: ok},
		{host: "10.0.0.7:10985", headers: "Sec-Fetch-Site=same-origin Sec-Fetch-Mode=cors", want: ok},
	} {
		before := refused
		got := routesOf(c, func(r *http.Request) {
			r.Host = test.host
			for header := range strings.FieldsSeq(test.headers) {
				name, value, _ := strings.Cut(header, "=")
				r.Header.Set(name, value)
			}
		})
		for kind, n := range map[Kind]int{KindAPI: 6, KindPage: 5} {
			expect.That(t, got[kind][test.want] == n,
				"%s %s: statuses of %s are %v, want %d alone", test.host, test.headers, kind, got[kind], test.want)
		}
		expect.That(t, got[KindProbe][ok] == 2, "%s %s: probes have %v", test.host, test.headers, got[KindProbe])
		if counted := refused - before; counted > 0 != (test.want != ok) {
			t.Errorf("%s %s: %d are counted", test.host, test.headers, counted)
		}
	}
}

// The JSON and the page can be switched off, each with all of its paths.
func TestSwitchedOff(t *testing.T) {
	c := receiptNode(t)
	c.WithoutAPI = true
	got := routesOf(c, func(*http.Request) {})
	expect.That(t, got[KindAPI][http.StatusNotFound] == 6 && got[KindPage][http.StatusOK] == 5,
		"without the JSON: %v", got)
	c.WithoutAPI, c.WithoutPage = false, true
	got = routesOf(c, func(*http.Request) {})
	if got[KindAPI][http.StatusOK] != 6 || got[KindPage][http.StatusNotFound] != 5 || got[KindProbe][http.StatusOK] != 2 {
		t.Errorf("without the page: %v", got)
	}
}

// While something is made for readers, no other answer is made for them; metrics and probes do not
// wait.
func TestReadersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := receiptNode(t)
		c.Metrics = exposition.New(prometheus.NewRegistry(), c.Latest, exposition.Config{})
		held := make(chan struct{})
		c.Sources = func() []present.Source { // a part of the summary
			<-held
			return nil
		}
		handler := NewHandler(c)
		var asking sync.WaitGroup
		asking.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "http://10.0.0.7/api/v1/summary", http.NoBody)
			handler.ServeHTTP(httptest.NewRecorder(), r)
		})
		synctest.Wait()
		answered := map[string]int{}
		var mu sync.Mutex
		for _, route := range Routes(c.MetricsPath) {
			if route.Kind == KindProfile || strings.HasSuffix(route.Example, ".js") || strings.HasSuffix(route.Example, ".css") {
				continue // it is not made
			}
			asking.Go(func() {
				r := httptest.NewRequest(http.MethodGet, "http://10.0.0.7"+route.Example, http.NoBody)
				r.Header.Set("Accept-Encoding", "gzip") // what decompresses takes turns, too
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				mu.Lock()
				defer mu.Unlock()
				answered[route.Example] = w.Code
			})
		}
		synctest.Wait()
		mu.Lock()
		want := map[string]int{c.MetricsPath: http.StatusOK, "/healthz": http.StatusOK, "/readyz": http.StatusOK}
		expect.Equal(t, "answered meanwhile", want, answered)
		mu.Unlock()
		close(held)
		asking.Wait()
		for path, status := range answered {
			expect.That(t, status == http.StatusOK, "%s: status %d", path, status)
		}
		time.Sleep(2 * freshFor) // until the answers are dropped
	})
}

// Requests for the page and the JSON have a bound of their own: beyond it they are refused, and
// probes are answered.
func TestReadersInFlight(t *testing.T) {
	c := receiptNode(t)
	latest, refused := c.Latest, 0
	c.Rejected = func(r driver.Rejection) { refused += r.Count }
	synctest.Test(t, func(t *testing.T) {
		hold, waiting := make(chan struct{}), 0
		c.Latest = func() *exposition.Snapshot { waiting++; <-hold; return latest() }
		handler := NewHandler(c)
		ask := func(path string) int {
			r := httptest.NewRequest(http.MethodGet, "http://10.0.0.7"+path, http.NoBody)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code
		}
		var asking sync.WaitGroup
		for range maxReaders {
			asking.Go(func() {
				expect.Is(t, ask("/api/v1/incidents"), http.StatusOK, "status")
			})
			synctest.Wait()
		}
		expect.That(t, waiting == maxReaders, "%d requests are in flight, want %d", waiting, maxReaders)
		for path, want := range map[string]int{
			"/page/rows": http.StatusServiceUnavailable, "/api/v1/history?device=gpu-0": http.StatusServiceUnavailable,
			"/healthz": http.StatusOK,
		} {
			expect.Is(t, ask(path), want, "%s: status", path)
		}
		close(hold)
		asking.Wait()
		got := ask("/page/rows")
		expect.That(t, got == http.StatusOK && refused == 2, "afterwards status %d, %d refused", got, refused)
		time.Sleep(2 * freshFor) // until the answers are dropped
	})
}

package web

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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

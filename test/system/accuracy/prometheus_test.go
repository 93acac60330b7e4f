package accuracy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const prometheusConfig = `
global: {scrape_interval: %s, scrape_timeout: 10s}
scrape_configs:
- job_name: dra-exporter
  honor_labels: true
  static_configs:
%s`

// startPrometheus starts a Prometheus that scrapes the exporters, given as addresses by name, until
// the test ends.
func startPrometheus(t *testing.T, interval time.Duration, exporters map[string]string,
	flags ...string,
) live.Prometheus {
	var targets strings.Builder
	for name, address := range exporters {
		fmt.Fprintf(&targets, "  - {targets: [%q], labels: {exporter: %q}}\n", address, name)
	}
	return live.StartPrometheus(t,
		live.PrometheusOptions{Config: fmt.Sprintf(prometheusConfig, interval, &targets), Flags: flags})
}

// query evaluates an expression at a time. A range selector gives the raw samples.
func query(t *testing.T, p live.Prometheus, expression string, at time.Time) []live.Series {
	out := must.Get(p.Query(t.Context(), expression, at))(t)
	return out
}

package dashboards

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
)

// TestRecords evaluates records: the states of a partitioned and an unhealthy device, the kind of a
// device's last error long after it, as on the Fleet dashboard, the number of incidents, and how
// long readings take, from native histograms and from classic ones.
func TestRecords(t *testing.T) {
	t.Parallel()
	once := func(at int) course {
		return counting(func(m int) float64 {
			if m == at {
				return 1
			}
			return 0
		})
	}
	errors := func(kind, code string, at int) series {
		labels := deviceLabels("gpu-1") + fmt.Sprintf(", kind=%q, code=%q", kind, code)
		return series{"dra_device_errors_total", labels, once(at)}
	}
	health := series{"dra_device_health", deviceLabels("gpu-1") + `, status="unhealthy"`, always(1)}
	three := func(m int) float64 {
		if m == 30 || m == 31 || m == 50 {
			return 1
		}
		return 0
	}
	s := story{name: "records", alone: true, series: slices.Concat(
		changed("partitioned", "", freeDevice("gpu-0")), changed("unhealthy", "reported", freeDevice("gpu-1")),
		[]series{health, errors("ecc_corrected", "", 10), errors("xid", "79", 20), errors("pcie_replay", "", 15)},
		[]series{
			{"dra_exporter_incidents_total", target + `, kind="xid"`, counting(three)},
			{"dra_exporter_incidents_total", target + `, kind="unhealthy"`, counting(func(int) float64 { return 0 })},
		},
	)}
	var file strings.Builder
	write(&file, s)
	for expr, samples := range map[string]string{
		"count by (device, state) (device:dra_state:info)": `{labels: '{device="gpu-0", state="partitioned"}', value: 1}, ` +
			`{labels: '{device="gpu-1", state="unhealthy"}', value: 1}`,
		// The error is seen in minute 21, and in the window of rates until minute 24.
		"max by (device, kind, code) (" + sickKind(t) + ")": `{labels: '{device="gpu-1", kind="xid", code="79"}', ` +
			`value: 1440000}`,
		"sum by (kind) (round(sum_over_time(node:dra_incidents:increase[100m])))": `{labels: '{kind="xid"}', value: 3}`,
	} {
		fmt.Fprintf(&file, "  - {eval_time: 110m, expr: %q, exp_samples: [%s]}\n", expr, samples)
	}
	const duration = "dra_exporter_source_duration_seconds"
	file.WriteString("- interval: 1m\n  input_series:\n")
	for series, values := range map[string]string{
		duration + `{source="native"`: risingHistogram, duration + `_sum{source="classic"`: "0+30x60",
		duration + `_count{source="classic"`: "0+60x60", duration + `_sum{source="hangs"`: "30x60",
		duration + `_count{source="hangs"`: "60x60",
	} {
		fmt.Fprintf(&file, "  - {series: '%s, %s}', values: '%s'}\n", series, target, values)
	}
	file.WriteString("  promql_expr_test:\n  - {eval_time: 50m, expr: max by (source) " +
		"(node:dra_source_duration_seconds:mean), exp_samples: " +
		`[{labels: '{source="native"}', value: 4.5}, {labels: '{source="classic"}', value: 0.5}]}`)
	testRules(t, allGroups(t), file.String())
}

// sickKind returns the query of the Fleet dashboard for the kind of a sick device's last error.
func sickKind(t *testing.T) string {
	return queryOf(t, "dra-fleet", "Devices with problems", func(_ int, of grafana.Target) bool {
		return strings.Contains(of.Expr, "kind")
	})
}

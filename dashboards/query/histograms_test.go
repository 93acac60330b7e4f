package query

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// distributed is the distribution of each claim's power, whoever has it.
const distributed = `avg by (cluster, node, namespace, resourceclaim_name, driver) (` +
	`rate(dra_claim_power_distribution_watts[5m]))`

// TestHistograms checks the units of what expressions say of histograms.
func TestHistograms(t *testing.T) {
	const power, memory = "dra_claim_power_distribution_watts", "dra_claim_memory_used_distribution_bytes"
	const duration = "dra_exporter_source_duration_seconds"
	c := catalog(t)
	for expression, want := range map[string]string{ // a unit, or an error
		`histogram_quantile(0.9, rate(` + power + `[5m]))`:                        "watt",
		`histogram_quantile(0.9, increase(` + memory + `[5m]))`:                   "bytes",
		`histogram_fraction(0, 10, increase(` + power + `[5m]))`:                  "percentunit",
		`histogram_count(rate(` + power + `[5m]))`:                                "percentunit",
		`histogram_count(` + power + `)`:                                          "s",
		`histogram_sum(` + power + `)`:                                            "joule",
		`histogram_sum(rate(` + power + `[5m]))`:                                  "watt",
		`histogram_avg(increase(` + memory + `[5m]))`:                             "bytes",
		`histogram_quantile(0.9, sum(` + distributed + ` * 2))`:                   "watt",
		`histogram_quantile(0.9, ` + distributed + ` / 2)`:                        "watt",
		`count(max by (cluster, node) (histogram_avg(` + power + `)))`:            "short",
		`group by (cluster, node, namespace, resourceclaim_name) (` + power + `)`: "none",
		`count_over_time(` + power + `[5m])`:                                      "none",
		`timestamp(` + power + `) * 1000`:                                         "dateTimeFromNow",
		`histogram_quantile(0.9, rate(` + duration + `_bucket[5m]))`:              "s",
		`histogram_fraction(0, 1, rate(` + duration + `_bucket[5m]))`:             "percentunit",
		`rate(` + duration + `_sum[5m]) / rate(` + duration + `_count[5m])`:       "s",

		`histogram_quantile(0.9, dra_claim_power_watts)`:                                       "is of no histogram",
		`histogram_avg(dra_claim_power_watts)`:                                                 "is of no native histogram",
		`histogram_count(rate(` + duration + `_bucket[5m]))`:                                   "is of no native histogram",
		`histogram_quantile(0.9, count by (cluster, node) (` + power + `))`:                    "is of no histogram",
		`histogram_fraction(0, 1, max by (cluster, node) (rate(` + duration + `_bucket[5m])))`: "no buckets",
		power + `_bucket`: "there is no metric",
	} {
		answer, err := c.Check(expression)
		unit, notOne := GrafanaUnit(want)
		switch {
		case notOne != nil && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want an error with %q", expression, err, want)
		case notOne == nil && (err != nil || !answer.Unit.Fits(unit) || answer.Native):
			t.Errorf("%s is %v, want %s, error %v", expression, answer.Unit, want, err)
		}
	}
}

// TestDistribution checks what an answer says of native histograms.
func TestDistribution(t *testing.T) {
	watts, _ := GrafanaUnit("watt")
	for _, expression := range []string{
		distributed, `avg(` + distributed + `)`, distributed + ` and on (cluster) dra_device_up`,
		`1 * ` + distributed, distributed + ` or ` + distributed,
	} {
		answer, err := catalog(t).Check(expression)
		expect.That(t, err == nil && answer.Native && answer.Unit == share() && answer.Observed.Fits(watts),
			"%s: %+v, error %v", expression, answer, err)
	}
}

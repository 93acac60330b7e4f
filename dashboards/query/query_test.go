package query

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func catalog(t *testing.T) Catalog {
	t.Helper()
	c := must.Get(NewCatalog())(t)
	return c
}

// once is the value of each device, whoever has it.
func once(expr string) string { return "max by (cluster, node, driver, pool, device) (" + expr + ")" }

func TestUnits(t *testing.T) {
	c := catalog(t)
	c.Add(Family{Name: "price", Unit: Unit{Money: 1, Seconds: -1, Scale: 1.0 / 3600}})
	tests := []struct{ expression, unit string }{
		{`dra_device_utilization_ratio`, "percentunit"},
		{`avg by (driver) (` + once("dra_device_utilization_ratio") + `)`, "percentunit"},
		{`sum(` + once("dra_device_utilization_ratio") + `)`, "short"},
		{
			once("dra_device_utilization_ratio") + ` - on (cluster, node, driver, pool, device) ` +
				`sum by (cluster, node, driver, pool, device) (` + once("dra_device_occupancy_ratio") + `)`, "percentunit",
		},
		{
			`sum(` + once("dra_device_utilization_ratio") + `) / count(` + once("dra_device_utilization_ratio") + `)`,
			"percentunit",
		},
		{`rate(dra_claim_active_seconds_total[5m])`, "percentunit"},
		{`sum(` + once("rate(dra_claim_active_seconds_total[5m])") + `)`, "short"},
		{`increase(dra_claim_active_seconds_total[1h]) / 3600`, "h"},
		{`rate(dra_device_energy_joules_total[5m])`, "watt"},
		{`increase(dra_device_energy_joules_total[1d]) / 3.6e6`, "kwatth"},
		{`rate(dra_device_io_bytes_total[5m])`, "binBps"},
		{`rate(dra_device_network_packets_total[5m])`, "pps"},
		{`dra_device_memory_used_bytes / dra_device_memory_capacity_bytes`, "percentunit"},
		{`time() - dra_exporter_snapshot_timestamp_seconds`, "s"},
		{`dra_claim_last_active_timestamp_seconds * 1000`, "dateTimeFromNow"},
		{`dra_device_temperature_celsius > 80`, "celsius"},
		{`dra_device_clock_hertz`, "hertz"},
		{`dra_device_voltage_volts`, "volt"},
		{`count(` + once("dra_device_up") + ` == 1)`, "short"},
		{`histogram_quantile(0.99, sum by (le) (max by (cluster, node, source, le) (` +
			`rate(dra_exporter_source_duration_seconds_bucket[5m]))))`, "s"},
		{`sum(` + once("increase(dra_claim_allocated_share_seconds_total[1h])") + `) / 3600 * scalar(price)`, "currency:¤"},
		{
			`rate(dra_claim_active_seconds_total[5m])
				* on (cluster, node, driver, pool, device) group_left (model)
				  topk by (cluster, node, driver, pool, device) (1,
				    group by (cluster, node, driver, pool, device, model) (dra_device_info))`,
			"percentunit",
		},
		{`dra_device_power_watts < bool 3`, "none"},
	}
	for _, tt := range tests {
		answer, err := c.Check(tt.expression)
		if err != nil {
			t.Error(err)
			continue
		}
		want, err := GrafanaUnit(tt.unit)
		must.Do(t, err)
		expect.That(t, answer.Unit.Fits(want), "%s is %v, want %s, %v", tt.expression, answer.Unit, tt.unit, want)
		for _, other := range []string{"percentunit", "h", "watt", "kwatth", "binBps", "celsius", "dateTimeFromNow"} {
			if wrong, _ := GrafanaUnit(other); other != tt.unit && answer.Unit.Fits(wrong) {
				t.Errorf("%s, which is %s, fits %s", tt.expression, tt.unit, other)
			}
		}
	}
}

func TestMistakes(t *testing.T) {
	c := catalog(t)
	tests := []struct{ expression, want string }{
		{`dra_device_busy_ratio`, `there is no metric "dra_device_busy_ratio"`},
		{`dra_device_up{claim="a"}`, `no label "claim"`},
		{`dra_device_info{label_team="a"}`, `no label "label_team"`},
		{`sum by (namespace) (dra_device_up)`, `"namespace", which is not a label`},
		{`sum by (pod) (sum by (device) (dra_pod_power_watts))`, `"pod", which is not a label`},
		{`dra_device_up * on (namespace) dra_claim_power_watts`, `"namespace", which is not a label of both sides`},
		{`dra_device_up * on (device) group_left (pod) dra_device_info`, `no label "pod"`},
		{`dra_device_power_watts > dra_device_memory_used_bytes`, "compares"},
		{`dra_device_power_watts + dra_device_memory_used_bytes`, "adds"},
		{`dra_device_utilization_ratio - dra_device_up`, "adds a share and a count"},
		{`dra_device_power_watts or dra_device_memory_used_bytes`, "the units differ"},
		{`label_replace(dra_device_up, "x", "$1", "pod", "(.*)")`, `"pod", which does not exist`},
		{`histogram_quantile(0.9, sum by (source) (rate(dra_exporter_source_duration_seconds_bucket[5m])))`, "no buckets"},
		{`sum by (dra_device_up`, "parse"},
		{`max by (device) (dra_device_up)`, `keeps "device" without "node"`},
		{`max by (node, device) (dra_device_up)`, `keeps "node" without "cluster"`},
		{`max by (cluster, node, device) (dra_device_up)`, `keeps "device" without "driver"`},
		{`sum by (namespace) (dra_claim_power_watts)`, `keeps "namespace" without "cluster"`},
		{`sum by (cluster, resourceclaim_name) (dra_claim_power_watts)`, `"resourceclaim_name" without "namespace"`},
		{`sum by (cluster, pod) (dra_pod_power_watts)`, `keeps "pod" without "namespace"`},
		{`sum without (node) (dra_device_power_watts)`, `keeps "device" without "node"`},
		{`max by (source) (dra_exporter_source_up) and on (node) dra_exporter_node_info`, `"node", which is not a label`},
		{`dra_device_up and on (cluster, node, device) dra_device_allocations`, `keeps "device" without "driver"`},
		{`predict_linear(dra_device_power_watts[1h], 60)`, "is unknown"},
	}
	for _, tt := range tests {
		_, err := c.Check(tt.expression)
		expect.That(t, err != nil && strings.Contains(err.Error(), tt.want),
			"%s: got %v, want an error with %q", tt.expression, err, tt.want)
	}
}

// TestMerged checks which queries give one value for several devices.
func TestMerged(t *testing.T) {
	c := catalog(t)
	for expression, want := range map[string]bool{
		`dra_device_up`: false,
		`max by (cluster, node, driver, pool, device) (dra_device_up)`:                                          false,
		`sum(` + once("dra_device_power_watts") + `)`:                                                           true,
		`max by (driver) (dra_device_temperature_celsius)`:                                                      true,
		`sum by (cluster, node) (` + once("dra_device_power_watts") + `)`:                                       true,
		`rate(dra_exporter_source_errors_total[5m])`:                                                            false,
		`sum by (source) (max by (cluster, node, source, reason) (rate(dra_exporter_source_errors_total[5m])))`: false,
		`dra_device_up and on (cluster) (sum by (cluster) (` + once("dra_device_power_watts") + `) > 0)`:        false,
		`dra_device_up * on (cluster) group_left () sum by (cluster) (` + once("dra_device_power_watts") + `)`:  true,
	} {
		answer, err := c.Check(expression)
		expect.That(t, err == nil && answer.Merged == want,
			"%s: merged %v, want %v, error %v", expression, answer.Merged, want, err)
	}
}

// TestOpenLabels checks the labels that flags of the exporter copy.
func TestOpenLabels(t *testing.T) {
	c := catalog(t)
	for _, expression := range []string{`dra_claim_info{label_team="a"}`, `max by (annotation_x) (dra_pod_info)`} {
		_, err := c.Check(expression)
		expect.That(t, err == nil, "%v", err)
	}
}

// TestFamiliesHaveUnits checks that the unit of every family is known.
func TestFamiliesHaveUnits(t *testing.T) {
	for name, f := range catalog(t) {
		if f.Unit.Unknown && name != "dra_device_capacity" && name != "dra_claim_consumed_capacity" {
			t.Errorf("the unit of %s is unknown", name)
		}
	}
}

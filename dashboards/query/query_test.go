package query

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// once is the value of each device, whoever has it.
func once(expr string) string { return "max by (cluster, node, driver, pool, device) (" + expr + ")" }

func TestMistakes(t *testing.T) {
	c := NewCatalog()
	tests := []struct{ expression, want string }{
		{`dra_device_busy_ratio`, `there is no metric "dra_device_busy_ratio"`},
		{`dra_device_up{claim="a"}`, `no label "claim"`},
		{`dra_device_info{label_team="a"}`, `no label "label_team"`},
		{`sum by (namespace) (dra_device_up)`, `"namespace", which is not a label`},
		{`sum by (pod) (sum by (device) (dra_pod_power_watts))`, `"pod", which is not a label`},
		{`dra_device_up * on (namespace) dra_claim_power_watts`, `"namespace", which is not a label of both sides`},
		{`dra_device_up * on (device) group_left (pod) dra_device_info`, `no label "pod"`},
		{`label_replace(dra_device_up, "x", "$1", "pod", "(.*)")`, `"pod", which does not exist`},
		{`sum by (dra_device_up`, "parse"},
		{`max by (source) (dra_exporter_source_up) and on (node) dra_exporter_node_info`, `"node", which is not a label`},
	}
	for _, tt := range tests {
		_, err := c.Check(tt.expression)
		expect.That(t, err != nil && strings.Contains(err.Error(), tt.want),
			"%s: got %v, want an error with %q", tt.expression, err, tt.want)
	}
}

// TestMerged checks which queries give one value for several devices.
func TestMerged(t *testing.T) {
	c := NewCatalog()
	for expression, want := range map[string]bool{
		`dra_device_up`: false,
		`max by (cluster, node, driver, pool, device) (dra_device_up)`:                                          false,
		`sum(` + once("dra_device_power_watts") + `)`:                                                           true,
		`max by (driver) (dra_device_temperature_celsius)`:                                                      true,
		`max by (device) (dra_device_up)`:                                                                       true,
		`sum without (node) (dra_device_power_watts)`:                                                           true,
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
	c := NewCatalog()
	for _, expression := range []string{`dra_claim_info{label_team="a"}`, `max by (annotation_x) (dra_pod_info)`} {
		_, err := c.Check(expression)
		expect.That(t, err == nil, "%v", err)
	}
}

package dashboards

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// TestClusterDevices compares sums over nodes with arithmetic by hand, where claims of two nodes
// have devices that are offered to both: each device counts once, and its claims divide it.
func TestClusterDevices(t *testing.T) {
	t.Parallel()
	o := rules.Defaults()
	o.Prices, o.Idle.Interval = []rules.Price{{Models: "F", PerHour: 3}}, idleEvery
	all := groups(t, o)
	for i := range all {
		all[i].Rules = slices.DeleteFunc(all[i].Rules, func(r rules.Rule) bool { return r.Record == "" })
	}
	all = slices.DeleteFunc(all, func(g rules.Group) bool { return len(g.Rules) == 0 })
	var file strings.Builder
	for _, twice := range []bool{false, true} {
		fmt.Fprintf(&file, "- name: 'scraped twice: %v'\n  interval: 1m\n  input_series:\n", twice)
		for _, node := range []string{"n1", "n2"} {
			writeClusterDevices(&file, node, node)
			if twice {
				writeClusterDevices(&file, node, "10.0.0.1:10985")
			}
		}
		file.WriteString("  promql_expr_test:\n")
		for expr, want := range clusterDevicesByHand() {
			fmt.Fprintf(&file, "  - eval_time: 3h\n    expr: 'round(sum without (model) (%s), 0.001)'\n    exp_samples:\n", expr)
			for _, labels := range slices.Sorted(maps.Keys(want)) {
				fmt.Fprintf(&file, "    - {labels: '{cluster=\"c\", driver=\"fabric\", %s}', value: %v}\n", labels, want[labels])
			}
		}
	}
	testRules(t, all, file.String())
}

// writeClusterDevices writes the series of a node. fabric-0 has the claims a/a and b/b on n1, which
// share it, and b/c on n2. a/d has fabric-1 for pods on both nodes. b/e has fabric-2 on n2.
// fabric-3 has a/f on n1, and after two hours b/g on n2. Each node has a device of its own of the
// same name, own-0, of a/h.
func writeClusterDevices(file *strings.Builder, node, instance string) {
	scraped := fmt.Sprintf(`cluster="c", node=%q, instance=%q, job="dra-exporter"`, node, instance)
	series := func(name, labels, values string) {
		fmt.Fprintf(file, "  - {series: '%s{%s, %s}', values: '%s'}\n", name, labels, scraped, values)
	}
	device := func(name string) string {
		pool := "rack"
		if name == "own-0" {
			pool = node
		}
		return fmt.Sprintf(`driver="fabric", pool=%q, device=%q`, pool, name)
	}
	utilization := map[string]string{"n1": "0.35x180", "n2": "0.45x180"}[node]
	for _, name := range []string{"fabric-0", "fabric-1", "fabric-2", "fabric-3", "own-0"} {
		series("dra_device_info", device(name)+fmt.Sprintf(
			`, vendor="x", model="F", parent="", listed="true", node_local="%v"`, name == "own-0"), "1x180")
		series("dra_device_up", device(name), "1x180")
		allocations, state := "1x180", "held"
		if name == "fabric-2" && node == "n1" {
			allocations, state = "0x180", "free"
		}
		series("dra_device_state", device(name)+fmt.Sprintf(`, state=%q, reason=""`, state), "1x180")
		series("dra_device_allocations", device(name), allocations)
		series("dra_device_utilization_ratio", device(name), utilization)
		series("dra_device_power_watts", device(name), "60x180")
	}
	// The claim is there after a time without values, and until a number of minutes later.
	held := func(claim, on string, seconds int, from, until string) {
		namespace, name, _ := strings.Cut(claim, "/")
		of := fmt.Sprintf("namespace=%q, resourceclaim_name=%q, %s", namespace, name, device(on))
		course := func(first, rise int) string { return fmt.Sprintf("%s%d+%d%s", from, first, rise, until) }
		series("dra_claim_allocated_share_seconds_total", of, course(0, seconds))
		series("dra_claim_energy_joules_total", of, course(0, 60*seconds))
		series("dra_claim_power_watts", of, course(seconds, 0))
		pod := fmt.Sprintf("namespace=%q, pod=%q", namespace, name)
		series("dra_pod_info", pod+`, uid="u", workload_kind="Job", workload_name="all"`, course(1, 0))
		series("dra_pod_allocated_share_seconds_total", pod+", "+device(on), course(0, seconds))
		series("dra_pod_energy_joules_total", pod+", "+device(on), course(0, 60*seconds))
		series("dra_pod_claim_info", pod+", "+device(on)+`, attribution="equal"`, course(1, 0))
		series("dra_claim_device_info", of+`, admin_access="false", attribution="equal"`, course(1, 0))
	}
	const always = "x180"
	held("a/d", "fabric-1", 60, "", always)
	held("a/h", "own-0", 60, "", always)
	if node == "n1" {
		held("a/a", "fabric-0", 30, "", always)
		held("b/b", "fabric-0", 30, "", always)
		held("a/f", "fabric-3", 60, "", "x119")
		return
	}
	held("b/c", "fabric-0", 60, "", always)
	held("b/e", "fabric-2", 60, "", always)
	held("b/g", "fabric-3", 60, "_x120 ", "x59")
}

// clusterDevicesByHand are the values of expressions by their labels. Sums are over the hour before
// fabric-3 changes hands, but for the last one.
func clusterDevicesByHand() map[string]map[string]float64 {
	const a, b = `namespace="a"`, `namespace="b"`
	const ofJob = `, workload_kind="Job", workload_name="all"`
	const total = `sum by (cluster, driver) (sum_over_time(namespace:dra_allocated_share_seconds:increase[2h]))`
	return map[string]map[string]float64{
		// Each of three claims has a third of fabric-0.
		"sum_over_time(namespace:dra_allocated_share_seconds:increase[1h] offset 65m)": {
			a: 1200 + 3600 + 3600*2 + 3600, b: 2400 + 3600,
		},
		"sum_over_time(namespace:dra_cost:increase[1h] offset 65m)": {a: 3 * (1./3 + 1 + 2 + 1), b: 3 * (2./3 + 1)},
		"sum_over_time(namespace:dra_energy_joules:increase[1h] offset 65m)": {
			a: 60 * (1200 + 3600 + 3600*2 + 3600), b: 60 * (2400 + 3600),
		},
		"sum_over_time(workload:dra_allocated_share_seconds:increase[1h] offset 65m)": {
			a + ofJob: 1200 + 3600 + 3600*2 + 3600, b + ofJob: 2400 + 3600,
		},
		"sum_over_time(workload:dra_energy_joules:increase[1h] offset 65m)": {
			a + ofJob: 60 * (1200 + 3600 + 3600*2 + 3600), b + ofJob: 60 * (2400 + 3600),
		},
		"workload:dra_devices:count": {a + ofJob: 1 + 1 + 2, b + ofJob: 1 + 1 + 1},
		// The higher one of two readings, of fabric-3 also; own-0 counts twice.
		`cluster:dra_utilization:sum`:                          {"": 0.45*4 + 0.45 + 0.35},
		`cluster:dra_utilization:count`:                        {`at_most="0.4"`: 1, `at_most="0.5"`: 4 + 1},
		`cluster:dra_power_watts:sum`:                          {"": 60 * (4 + 2)},
		`sum by (cluster, driver) (cluster:dra_devices:count)`: {"": 4 + 2},
		// Six devices for two hours. While the holder of one changes, a part of its time is not
		// seen.
		"(" + total + " > bool 6 * 7200 - 100) * (" + total + " <= bool 6 * 7200)": {"": 1},
	}
}

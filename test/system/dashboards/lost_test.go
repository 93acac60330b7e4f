package dashboards

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// TestLostHours compares lost device-hours with arithmetic by hand: pods of one JobSet on five
// devices. gpu-0 has all four causes, each other device has one.
func TestLostHours(t *testing.T) {
	t.Parallel()
	s := story{name: "lost", alone: true}
	add := func(name, labels string, value course) { s.series = append(s.series, series{name, labels, value}) }
	for i, causes := range []string{
		"incident waiting idle throttled", "waiting idle throttled", "idle throttled", "throttled", "",
	} {
		device := deviceLabels(fmt.Sprintf("gpu-%d", i))
		claim := fmt.Sprintf(`namespace="a", resourceclaim_name="c%d", %s`, i, device)
		pod := fmt.Sprintf(`namespace="a", pod="p%d", %s`, i, device)
		has := func(cause string) bool { return strings.Contains(causes, cause) }
		add("dra_device_info", device+`, vendor="x", model="X1", parent=""`, always(1))
		add("dra_pod_info", fmt.Sprintf(`namespace="a", pod="p%d", uid="u", workload_kind="JobSet", workload_name="llm", %s`,
			i, target), always(1))
		add("dra_pod_claim_info", pod+fmt.Sprintf(`, resourceclaim_name="c%d", attribution="exclusive"`, i), always(1))
		add("dra_pod_allocated_share_seconds_total", pod, rising(60))
		state := "prepared"
		if has("waiting") {
			state = "allocated"
		}
		add("dra_claim_device_info", claim+fmt.Sprintf(
			`, share_id="", admin_access="false", attribution="exclusive", state=%q`, state), always(1))
		if has("incident") {
			add("dra_claim_incident_open", claim+`, kind="unhealthy"`, always(1))
			add("dra_claim_incident_open", claim+`, kind="xid"`, always(1))
		}
		if has("idle") {
			add("device:dra_state:info", fmt.Sprintf(`node="n1", driver="gpu.x", pool="n1", device="gpu-%d", state="idle"`, i),
				always(1))
		}
		if has("throttled") { // for a quarter of the time, by two reasons that overlap
			add("dra_pod_throttled_seconds_total", pod+`, reason="thermal"`, rising(15))
			add("dra_pod_throttled_seconds_total", pod+`, reason="power"`, rising(10))
		}
		add("dra_pod_throttled_seconds_total", pod+`, reason="idle"`, rising(60)) // not by itself
	}
	// An incident of another claim did not hit this one.
	add("dra_claim_incident_open", `namespace="a", resourceclaim_name="other", `+deviceLabels("gpu-4")+`, kind="xid"`,
		always(1))
	var file strings.Builder
	write(&file, s)
	for cause, hours := range map[string]float64{"incident": 1, "waiting": 1, "idle": 1, "throttled": 0.25} {
		for _, expr := range []string{
			`sum by (workload_name) (sum_over_time(workload:dra_lost_share_seconds:increase{cause="%s"}[1h])) / 3600`,
			`sum by (workload_name) (avg_over_time(node_workload:dra_lost_share_seconds:rate{node="n1", cause="%s"}[1h]))`,
		} {
			fmt.Fprintf(&file, "  - {eval_time: 110m, expr: 'round(%s, 0.001)', exp_samples: "+
				"[{labels: '{workload_name=\"llm\"}', value: %g}]}\n", fmt.Sprintf(expr, cause), hours)
		}
	}
	// Five device-hours in each hour, of which 3.25 are lost: goodput is 35 %.
	const goodput = `1 - sum(sum_over_time(workload:dra_lost_share_seconds:increase[1h])) / ` +
		`sum(sum_over_time(workload:dra_allocated_share_seconds:increase[1h]))`
	fmt.Fprintf(&file, "  - {eval_time: 110m, expr: 'round(%s, 0.001)', exp_samples: [{labels: '{}', value: 0.35}]}\n",
		goodput)
	testRules(t, lostRules(t), file.String())
}

// lostRules are the records by workload and those of lost hours.
func lostRules(t *testing.T) []rules.Group {
	out := workloadRules(t, idleEvery)
	o := rules.Defaults()
	o.Idle.Interval = idleEvery
	at := slices.IndexFunc(out, func(g rules.Group) bool { return g.Scope == rules.Global })
	for _, g := range groups(t, o) {
		if g.Name == "dra-exporter-lost" {
			out = slices.DeleteFunc(out, func(other rules.Group) bool { return other.Name == g.Name })
			out = slices.Insert(out, min(at, len(out)-1), g)
		}
	}
	return out
}

// TestFailures compares the nodes and devices that fail more often than their cluster with
// arithmetic by hand: 20 nodes of 8 devices, over a day.
func TestFailures(t *testing.T) {
	t.Parallel()
	const nodes, day = 20, 24
	var file strings.Builder
	file.WriteString("- interval: 1h\n  input_series:\n")
	add := func(name, labels, values string) {
		fmt.Fprintf(&file, "  - {series: '%s{%s}', values: '%s'}\n", name, labels, values)
	}
	for i := range nodes {
		node := fmt.Sprintf("node=%q", fmt.Sprintf("n%d", i))
		add("node:dra_devices:count1h", node, fmt.Sprintf("8x%d", day))
		failed := map[int]int{0: 16, 1: 2}[i] // hours, the last ones
		if failed == 0 {
			continue
		}
		values := fmt.Sprintf("_x%d 1x%d", day-failed+1, failed-1)
		add("node:dra_failed:info1h", node, values)
		add("device:dra_failed:info1h", node+`, driver="gpu.x", pool="p", device="gpu-3"`, values)
	}
	// A node that is an hour old, of which all devices failed in it.
	add("node:dra_devices:count1h", `node="new"`, fmt.Sprintf("_x%d 8", day))
	add("node:dra_failed:info1h", `node="new"`, fmt.Sprintf("_x%d 1", day))
	for i := range 8 {
		add("device:dra_failed:info1h", fmt.Sprintf(`node="new", driver="gpu.x", pool="p", device="gpu-%d"`, i),
			fmt.Sprintf("_x%d 1", day))
	}
	file.WriteString("  promql_expr_test:\n")
	// A day has 25 samples here, since the range begins before the first one.
	const hours = 20*25*8 + 8
	const bound = (4 - 1.5) * (4 - 1.5) // of 16 hours
	for expr, want := range map[string]string{
		`node:dra_failing:ratio1h`: fmt.Sprintf(`{labels: '{node="n0"}', value: %.2f}`,
			bound/(25*8)/((16.0+2+1)/hours)),
		`device:dra_failing:ratio1h`: fmt.Sprintf(
			`{labels: '{node="n0", driver="gpu.x", pool="p", device="gpu-3"}', value: %.2f}`, bound/25/((16.0+2+8)/hours)),
	} {
		fmt.Fprintf(&file, "  - {eval_time: 24h, expr: 'round(sum without () (%s), 0.01)', exp_samples: [%s]}\n", expr, want)
	}
	all := groups(t, rules.Defaults())
	for i := range all {
		all[i].Rules = slices.DeleteFunc(all[i].Rules, func(r rules.Rule) bool {
			return r.Record != rules.FailingNodes && r.Record != rules.FailingDevices
		})
	}
	all = slices.DeleteFunc(all, func(g rules.Group) bool { return len(g.Rules) == 0 })
	testRules(t, all, file.String())
}

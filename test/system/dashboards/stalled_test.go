package dashboards

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/stall/judgetest"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const dayMinutes = 24 * 60

// TestStalledGroups plays jobs of several members for a day, each with a judge of its node, to the
// alert that sees all members. It never fires for a healthy job. Of those that hang, it finds those
// of which a member is quiet and nothing is known to work; of the others something says why not.
func TestStalledGroups(t *testing.T) {
	t.Parallel()
	// The minute in which it fires first. They hang after an hour and a minute, but for -at-end.
	found := map[string]int{
		"group-hang-all-spin": 106, "group-hang-lock": 106, "group-hang-stopped": 106, "group-hang-observers": 106,
		"group-hang-at-end": 346,
	}
	// What is unknown of a member instead.
	unknown := map[string]stall.Reason{
		"group-hang-dead-nic": stall.Unclear, "group-hang-mpi": stall.HostWorks, "group-hang-rendezvous": stall.Idle,
	}
	var file, checks strings.Builder
	var stories []story
	for _, g := range stalltest.Groups() {
		s, last := groupStory(t, &g)
		fires := ""
		if at := found[g.Name]; at > 0 {
			fires = fmt.Sprintf("{labels: '{}', value: %d}", at)
			s.checks[0].fire = []string{"DRAWorkloadStalled namespace=a"}
		}
		stories = append(stories, s.inCluster())
		fmt.Fprintf(&checks, "  - {eval_time: %dm, expr: 'min(min_over_time((timestamp(ALERTS{"+
			"alertname=\"DRAWorkloadStalled\", alertstate=\"firing\", cluster=\"%s\"}) / 60)[1d:1m]))', exp_samples: [%s]}\n",
			dayMinutes-1, g.Name, fires)
		reason, named := unknown[g.Name]
		if g.Hangs && fires == "" && (!named || !slices.Contains(last, reason)) {
			t.Errorf("%s: it is not found, and its members are unknown for %q", g.Name, last)
		}
		if !g.Hangs && fires != "" {
			t.Errorf("%s: it does not hang", g.Name)
		}
	}
	write(&file, stories...)
	file.WriteString(checks.String())
	testRules(t, stalledGroups(t), file.String())
	t.Logf("%d jobs, %d hang; the rule finds %d of them", len(stories), len(found)+len(unknown), len(found))
}

// stalledGroups are the alert, others by name, and the records that it reads: promtool evaluates a
// day of all others in many minutes.
func stalledGroups(t *testing.T, alerts ...string) []rules.Group {
	alerts = append(alerts, "DRAWorkloadStalled")
	read := []string{
		"pod:dra_workload:info", "workload_device:dra_member:info", "workload_device:dra_quiet:seconds",
		"workload_device:dra_progress:info",
	}
	var out []rules.Group
	for _, g := range allGroups(t) {
		g.Rules = slices.DeleteFunc(slices.Clone(g.Rules), func(r rules.Rule) bool {
			return !slices.Contains(alerts, r.Alert) && !slices.Contains(read, r.Record)
		})
		if len(g.Rules) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// groupStory has what the exporters of a job's nodes serve of its members, and why the last verdict
// on each is unknown.
func groupStory(t *testing.T, g *stalltest.Group) (s story, last []stall.Reason) {
	s = story{name: g.Name, checks: []check{{minute: dayMinutes - 1}}}
	for i, kind := range g.Members {
		node, device := fmt.Sprintf("n%d", i), fmt.Sprintf("gpu-%d", i)
		verdicts := minutely(t, &kind, uint64(i+1))
		last = append(last, verdicts[len(verdicts)-1].Unknown)
		m := rank(node, device, func(m *member) {
			*m = member{node: node, device: device, attribution: "exclusive", kind: kind.Pod.WorkloadKind, workloadName: "llm"}
		})
		s.series = append(s.series, m.series()...)
		s.series = append(s.series, verdictSeries(&m, verdicts)...)
	}
	return s, last
}

// minutely returns the verdict at the end of each minute of a day.
func minutely(t *testing.T, kind *stalltest.Kind, seed uint64) []stall.Verdict {
	trace := kind.Trace(seed, dayMinutes*time.Minute)
	p := must.Get(judgetest.New(trace))(t)
	out := make([]stall.Verdict, 0, dayMinutes)
	for s := range trace.Samples {
		v := p.Play(s)[0]
		if s.At.Sub(stalltest.Start())%time.Minute == 0 {
			out = append(out, v)
		}
	}
	return out
}

// verdictSeries are the series of a claim's verdicts, as the exporter serves them.
func verdictSeries(m *member, verdicts []stall.Verdict) []series {
	claim := fmt.Sprintf(`namespace="a", resourceclaim_name="%[1]s-%[2]s", driver="gpu.x", pool=%[3]q, device=%[2]q, `+
		`node=%[3]q, instance=%[3]q, job="dra-exporter"`, m.workloadName, m.device, m.node)
	when := func(name, reason string, value func(v *stall.Verdict) (float64, bool)) series {
		labels := claim
		if reason != "none" {
			labels += fmt.Sprintf(", reason=%q", reason)
		}
		return series{name, labels, func(minute int) (float64, bool) { return value(&verdicts[minute]) }}
	}
	out := []series{when("dra_claim_quiet_seconds", "none", func(v *stall.Verdict) (float64, bool) {
		return v.Quiet.Seconds(), v.Quiet != stall.NoQuiet
	})}
	seen := map[string]bool{}
	for i := range verdicts {
		state := verdicts[i].State()
		if seen[state] {
			continue
		}
		seen[state] = true
		is := func(value float64) func(v *stall.Verdict) (float64, bool) {
			return func(v *stall.Verdict) (float64, bool) { return value, v.State() == state }
		}
		switch of := &verdicts[i]; {
		case of.Unknown != stall.Known:
			out = append(out, when("dra_claim_stalled_unknown", string(of.Unknown), is(1)))
		case of.Stalled != nil:
			out = append(out, when("dra_claim_stalled", of.Why(), is(1)))
		default:
			out = append(out, when("dra_claim_stalled", "", is(0)))
		}
	}
	return out
}

// TestStalledText compares the texts of both alerts with what they must say: which signals show
// nothing, of the devices and of their hosts, for how long, and what the other members do.
func TestStalledText(t *testing.T) {
	t.Parallel()
	verdict := stall.Verdict{
		Stalled: []stall.Signal{stall.Power, stall.Tensor, stall.PCIe}, Host: []stall.HostSignal{stall.CPU, stall.Storage},
		Quiet: time.Hour,
	}
	idle := stall.Verdict{Unknown: stall.Idle, Quiet: stall.NoQuiet}
	s := story{name: "texts", checks: []check{{minute: 30, fire: []string{
		"DRAClaimStalled namespace=a resourceclaim_name=llm-gpu-0",
	}}}}
	for i, v := range []stall.Verdict{verdict, idle, {Unknown: stall.RanksUnseen, Quiet: time.Hour}, idle} {
		m := member{
			node: fmt.Sprintf("n%d", i), device: fmt.Sprintf("gpu-%d", i), attribution: "exclusive", kind: "JobSet",
			workloadName: "llm",
		}
		if i == 3 {
			m.workloadName = "another"
		}
		s.series = append(s.series, m.series()...)
		s.series = append(s.series, verdictSeries(&m, slices.Repeat([]stall.Verdict{v}, minutes))...)
	}
	s.checks[0].fire = append(s.checks[0].fire, "DRAWorkloadStalled namespace=a")
	all := stalledGroups(t, "DRAClaimStalled")
	var file strings.Builder
	write(&file, s.inCluster())
	file.WriteString("  alert_rule_test:\n")
	for _, alert := range []struct{ name, labels, summary, description string }{
		{
			"DRAClaimStalled", "node: n0, namespace: a, resourceclaim_name: llm-gpu-0",
			"Claim a/llm-gpu-0 keeps its devices busy without progress.",
			"1 of the claim's devices on node n0 are fully utilized without a pause, but no other measured quantity shows " +
				"progress, as when a collective operation hangs. Without progress: power,tensor,pcie,cpu,storage. Quiet for " +
				"1h 0m 0s. Other devices of its workload: gpu-1 of pod llm-gpu-1 on node n1 (idle), gpu-2 of pod llm-gpu-2 on " +
				"node n2 (ranks_elsewhere).",
		},
		{
			"DRAWorkloadStalled", "namespace: a, workload_kind: JobSet, workload_name: llm, driver: gpu.x",
			"JobSet a/llm does nothing on any node.",
			"For 1h 0m 0s no member of the workload has shown progress: at least one keeps its device busy and does nothing, " +
				"and the others do nothing either, or are idle. 2 of 3 members are busy and quiet, the others idle. None works " +
				"on its host.",
		},
	} {
		fmt.Fprintf(&file, "  - eval_time: 30m\n    alertname: %s\n    exp_alerts:\n    - exp_labels: {cluster: texts, "+
			"severity: warning, %s}\n      exp_annotations: {summary: %q, description: %q, runbook_url: %q}\n",
			alert.name, alert.labels, alert.summary, alert.description,
			"https://github.com/dra-exporter/dra-exporter/blob/main/dashboards/RUNBOOK.md#"+strings.ToLower(alert.name))
	}
	testRules(t, all, file.String())
}

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

package dashboards

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
)

// TestWorkloads compares the records by workload with arithmetic by hand: what the same pods on two
// nodes in each of two clusters hold for three hours, summed over the last two.
func TestWorkloads(t *testing.T) {
	t.Parallel()
	needed := workloadRules(t, idleEvery)
	var file strings.Builder
	for _, twice := range []bool{false, true} {
		fmt.Fprintf(&file, "- name: 'scraped twice: %v'\n  interval: 1m\n  input_series:\n", twice)
		for _, cluster := range []string{"c1", "c2"} {
			for _, node := range []string{"n1", "n2"} {
				writeWorkloads(&file, cluster, node, node)
				if twice {
					writeWorkloads(&file, cluster, node, "10.0.0.1:10985")
				}
			}
		}
		file.WriteString("  promql_expr_test:\n")
		for _, w := range workloadsByHand() {
			fmt.Fprintf(&file, "  - eval_time: 3h\n    expr: 'round(%s, 0.001)'\n    exp_samples:\n", w.expr)
			for _, cluster := range []string{"c1", "c2"} {
				for _, labels := range slices.Sorted(maps.Keys(w.want)) {
					fmt.Fprintf(&file, "    - {labels: '{cluster=%q, %s}', value: %v}\n", cluster, labels, w.want[labels])
				}
			}
		}
	}
	testRules(t, needed, file.String())
}

// workloadRules are the records by workload, and those that they use but for the devices' states.
func workloadRules(t *testing.T, idle time.Duration) []rules.Group {
	o := rules.Defaults()
	o.Idle.Interval = idle
	var out []rules.Group
	for _, g := range groups(t, o) {
		g.Rules = slices.DeleteFunc(g.Rules, func(r rules.Rule) bool {
			return !slices.Contains([]string{
				"device:dra_model:info", "device:dra_share:ratio", "device:dra_weight:ratio", "pod:dra_workload:info",
				"device:dra_flop_utilization:ratio", "pod_device:dra_allocated_share_seconds:rate",
				"pod_device:dra_lost_share_seconds:rate",
			}, r.Record) &&
				!strings.HasPrefix(r.Record, "workload:") && !strings.HasPrefix(r.Record, "node_workload:")
		})
		if len(g.Rules) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// writeWorkloads writes the series of a node: gpu-0, which two pods of a JobSet share and which has
// two errors; gpu-1, a quarter of another GPU, idle, of a pod that nothing controls; gpu-2, whose
// pod is adopted by another Deployment after two hours.
func writeWorkloads(file *strings.Builder, cluster, node, instance string) {
	scraped := fmt.Sprintf("cluster=%q, node=%q, instance=%q, job=%q", cluster, node, instance, "dra-exporter")
	series := func(name, labels, values string) {
		fmt.Fprintf(file, "  - {series: '%s{%s, %s}', values: '%s'}\n", name, labels, scraped, values)
	}
	device := func(name string) string { return fmt.Sprintf("driver=%q, pool=%q, device=%q", "gpu.x", node, name) }
	for i, parent := range []string{"", "gpu-9", ""} {
		series("dra_device_info", fmt.Sprintf("%s, vendor=%q, model=%q, parent=%q", device(fmt.Sprintf("gpu-%d", i)), "x",
			"X1", parent), "1x180")
	}
	series("dra_device_parent_share_ratio", device("gpu-1"), "0.25x180")
	if instance == node { // a recorded series, which has no instance
		fmt.Fprintf(file, "  - {series: 'device:dra_state:info{cluster=%q, node=%q, %s, state=\"idle\"}', values: '1x180'}\n",
			cluster, node, device("gpu-1"))
	}
	// gpu-0 has its tensor cores busy for a fifth of the time, at its highest clock; gpu-2 for
	// three fifths, at three quarters of it.
	for name, use := range map[string]struct{ tensor, clock float64 }{"gpu-0": {0.2, 2e9}, "gpu-2": {0.6, 1.5e9}} {
		series("dra_device_tensor_seconds_total", device(name), fmt.Sprintf("0+%gx180", 60*use.tensor*use.clock/2e9))
	}
	info := func(pod, kind, name, queue, values string) {
		series("dra_pod_info", fmt.Sprintf(`namespace="a", pod=%q, uid="u", workload_kind=%q, workload_name=%q, queue=%q`,
			pod, kind, name, queue), values)
	}
	info("llm-0", "JobSet", "llm", "gold", "1x180")
	info("llm-1", "JobSet", "llm", "gold", "1x180")
	info("notebook", "", "", "", "1x180")
	info("web", "Deployment", "old", "", "1x120")
	info("web", "Deployment", "new", "", "_x121 1x59")
	for pod, on := range map[string]string{"llm-0": "gpu-0", "llm-1": "gpu-0", "notebook": "gpu-1", "web": "gpu-2"} {
		held := fmt.Sprintf(`namespace="a", pod=%q, %s`, pod, device(on))
		share := map[string]string{"gpu-0": "30"}[on]
		series("dra_pod_allocated_share_seconds_total", held, fmt.Sprintf("0+%sx180", cmp.Or(share, "60")))
		claim := fmt.Sprintf(`namespace="a", resourceclaim_name=%q, %s`, pod, device(on)) // each pod has its own
		series("dra_pod_claim_info", fmt.Sprintf("%s, claim_name=%q, resourceclaim_name=%q, attribution=%q", held, "gpu", pod,
			"exclusive"), "1x180")
		if pod == "notebook" { // it is not measured
			continue
		}
		series("dra_pod_active_seconds_total", held, "0+15x180")
		series("dra_pod_energy_joules_total", held, "0+3600x180")
		if pod == "web" { // its claim is stalled for the last 30 minutes
			series("dra_claim_stalled", claim+`, reason=""`, "0x149")
			series("dra_claim_stalled", claim+`, reason="power"`, "_x150 1x30")
		}
		// Of gpu-0, each of the two pods has half.
		tensors := map[string]string{"gpu-0": "6", "gpu-2": "27"}[on]
		series("dra_pod_tensor_seconds_total", held, fmt.Sprintf("0+%sx180", tensors))
		if on == "gpu-0" {
			series("dra_pod_errors_total", held+`, kind="xid", code="79"`, "0x99 1x49 2x30")
			series("dra_pod_throttled_seconds_total", held+`, reason="power"`, "0+6x180")
			series("dra_pod_throttled_seconds_total", held+`, reason="thermal"`, "0+3x180")
			peak := map[string]string{"llm-0": "10x180", "llm-1": "10x90 25x90"}[pod]
			series("dra_pod_memory_used_peak_bytes", held, peak)
		}
	}
}

// byHand are the values of an expression by the labels of the workload, the same in each cluster.
type byHand struct {
	expr string
	want map[string]float64
}

// workloadsByHand are the sums over two hours, each of two nodes. The web pod belongs to its old
// Deployment for the first of the two hours, and to the new one for the second.
func workloadsByHand() []byHand {
	const (
		llm      = `driver="gpu.x", namespace="a", queue="gold", workload_kind="JobSet", workload_name="llm"`
		notebook = `driver="gpu.x", namespace="a", workload_kind="Pod", workload_name="notebook"`
		before   = `driver="gpu.x", namespace="a", workload_kind="Deployment", workload_name="old"`
		after    = `driver="gpu.x", namespace="a", workload_kind="Deployment", workload_name="new"`
	)
	sum := func(name string, want map[string]float64) byHand {
		return byHand{"sum without () (sum_over_time(workload:dra_" + name + ":increase[2h]))", want}
	}
	return []byHand{
		sum("allocated_share_seconds", map[string]float64{
			llm: 2 * 2 * 120 * 30, notebook: 2 * 120 * 60 * 0.25, before: 2 * 60 * 60, after: 2 * 60 * 60,
		}),
		sum("active_seconds", map[string]float64{llm: 2 * 2 * 120 * 15, before: 2 * 60 * 15, after: 2 * 60 * 15}),
		sum("idle_share_seconds", map[string]float64{notebook: 2 * 120 * 60 * 0.25}),
		sum("stalled_share_seconds", map[string]float64{before: 0, after: 2 * 31 * 60}),
		// Two nodes; llm's two pods have half of gpu-0 each. The notebook's is not measured.
		sum("flop_share_seconds", map[string]float64{
			llm: 2 * 7200 * 0.2, before: 2 * 3600 * 0.6 * 0.75, after: 2 * 3600 * 0.6 * 0.75,
		}),
		sum("flop_measured_share_seconds", map[string]float64{llm: 2 * 7200, before: 2 * 3600, after: 2 * 3600}),
		sum("energy_joules", map[string]float64{
			llm: 2 * 2 * 120 * 3600, before: 2 * 60 * 3600, after: 2 * 60 * 3600,
		}),
		// Each error is one of the workload's, though two of its pods were hit. A rise from 0 is
		// not extrapolated to the ends of the window: it counts for four of five minutes.
		sum("errors", map[string]float64{llm + `, kind="xid"`: 2 * (0.8 + 1)}),
		// The reason that took the longest.
		sum("throttled_seconds", map[string]float64{llm: 2 * 120 * 6}),
		{`workload:dra_memory_used_peak_bytes:max`, map[string]float64{llm: 25}},
		{`workload:dra_devices:count`, map[string]float64{llm: 2, notebook: 2, after: 2}},
	}
}

// TestFLOPUtilization compares the record of devices with the truth of generated jobs whose tensor
// activity and clock vary together, from what their exporter has integrated.
func TestFLOPUtilization(t *testing.T) {
	t.Parallel()
	const minute = 100
	s := story{name: "flops", checks: []check{{minute: minute}}}
	var checks strings.Builder
	for _, e := range stalltest.Efficiencies() {
		var seconds []float64
		sum := 0.0
		for s := range e.Trace(1, minutes*time.Minute).Samples {
			sum += s.Values[stalltest.Tensor] * s.Values[stalltest.Clock] / s.Values[stalltest.ClockMax]
			if s.At.Sub(stalltest.Start())%time.Minute == 0 {
				seconds = append(seconds, sum)
			}
		}
		want := e.FLOPs
		if e.Name == "flops-throttled-later" { // after two hours
			want = 0.6
		}
		sums := func(minute int) (float64, bool) { return seconds[minute], true }
		s.series = append(s.series, series{"dra_device_tensor_seconds_total", deviceLabels(e.Name), sums})
		fmt.Fprintf(&checks, "  - {eval_time: %dm, expr: 'sum(abs(device:dra_flop_utilization:ratio{device=%q} - %g) "+
			"<= bool 0.005)', exp_samples: [{labels: '{}', value: 1}]}\n", minute, e.Name, want)
	}
	var file strings.Builder
	write(&file, s.inCluster())
	file.WriteString(checks.String())
	testRules(t, workloadRules(t, idleEvery), file.String())
}

package dashboards

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/must"
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

// TestWork compares joules and device-time for each unit of work with arithmetic by hand, as the
// panel of the Workloads dashboard asks for them: of a vLLM of two pods with two GPUs each, of
// which one has the counters, of the other servers, and of a training with a record of its own.
func TestWork(t *testing.T) {
	t.Parallel()
	s := story{name: "work", alone: true}
	add := func(name, labels string, value course) { s.series = append(s.series, series{name, labels, value}) }
	pods := map[string]string{
		"glm-0": "glm", "glm-1": "glm", "sgl-0": "sgl", "tgi-0": "tgi", "tri-0": "tri", "trt-0": "trt", "train-0": "train",
	}
	devices := 0
	for pod, workload := range pods {
		info := `namespace="a", pod=%q, uid="u", workload_kind="LeaderWorkerSet", workload_name=%q, %s`
		add("dra_pod_info", fmt.Sprintf(info, pod, workload, target), always(1))
		for range 2 {
			name := fmt.Sprintf("gpu-%d", devices)
			devices++
			held := fmt.Sprintf(`namespace="a", pod=%q, %s`, pod, deviceLabels(name))
			add("dra_device_info", deviceLabels(name)+`, vendor="x", model="X1", parent=""`, always(1))
			add("dra_pod_allocated_share_seconds_total", held, rising(60))
			add("dra_pod_energy_joules_total", held, rising(36_000)) // 600 W
		}
		// A network device, without energy, is not in the device-time.
		nic := fmt.Sprintf(`namespace="a", pod=%q, driver="dra.net", pool="n1", device="nic-%s", %s`, pod, pod, target)
		add("dra_pod_allocated_share_seconds_total", nic, rising(60))
		info = `driver="dra.net", pool="n1", device="nic-%s", vendor="x", model="N1", parent="", %s`
		add("dra_device_info", fmt.Sprintf(info, pod, target), always(1))
	}
	// Each engine of vLLM generates 6000 tokens a minute, and reads 1500.
	exposition := must.Get(os.ReadFile("testdata/vllm.txt"))(t)
	for line := range strings.Lines(string(exposition)) {
		name, rest, found := strings.Cut(strings.TrimSpace(line), "{")
		labels, value, _ := strings.Cut(rest, "} ")
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		var begin float64
		must.Get(fmt.Sscan(value, &begin))(t)
		perMinute := map[string]float64{"vllm:generation_tokens_total": 6000, "vllm:prompt_tokens_total": 1500}[name]
		for _, instance := range []string{"10.0.0.1:8000", "glm-0"} { // scraped twice
			add(name, fmt.Sprintf(`%s, namespace="a", pod="glm-0", node="n1", instance=%q, job="vllm"`, labels, instance),
				func(m int) (float64, bool) { return begin + perMinute*float64(m), true })
		}
	}
	server := func(pod string) string {
		return fmt.Sprintf(`namespace="a", pod=%q, node="n1", instance="x", job="servers"`, pod)
	}
	add("sglang:generation_tokens_total", server("sgl-0")+`, model_name="meta-llama/Llama-3.1-8B-Instruct"`,
		rising(24_000))
	add("tgi_request_generated_tokens_sum", server("tgi-0"), rising(7200))
	// Triton serves two models: the use of each is unknown.
	add("nv_inference_count", server("tri-0")+`, model="resnet50", version="1"`, rising(600))
	add("nv_inference_count", server("tri-0")+`, model="bert", version="1"`, rising(600))
	// TensorRT-LLM counts requests, by how they ended.
	for _, reason := range []string{"stop", "length"} {
		add("trtllm_request_success_total", server("trt-0")+
			fmt.Sprintf(`, model_name="qwen", engine_type="trtllm", finished_reason=%q`, reason), rising(600))
	}
	add(rules.WorkRecord, `namespace="a", pod="train-0", node="n1", work="sample", model="resnet50"`, always(20))

	var file strings.Builder
	write(&file, s)
	const glm, generated = `model="zai-org/GLM-4.5", workload_name="glm"`, `work="generated_token"`
	sgl, tgi := `model="meta-llama/Llama-3.1-8B-Instruct", workload_name="sgl"`, `workload_name="tgi"`
	const trt = `model="qwen", workload_name="trt", work="request"`
	train := `model="resnet50", workload_name="train", work="sample"`
	for column, want := range map[string]map[string]float64{
		// Four GPUs of glm take 144 kJ a minute, those of the others 72 kJ.
		"Energy of each": {
			glm + ", " + generated: 144_000.0 / 12_000, glm + `, work="prompt_token"`: 144_000.0 / 3000,
			sgl + ", " + generated: 72_000.0 / 24_000, tgi + ", " + generated: 72_000.0 / 7200, train: 72_000.0 / 1200,
			trt: 72_000.0 / 1200,
		},
		"Per device-second": {
			glm + ", " + generated: 12_000.0 / 240, glm + `, work="prompt_token"`: 3000.0 / 240,
			sgl + ", " + generated: 24_000.0 / 120, tgi + ", " + generated: 7200.0 / 120, train: 1200.0 / 120,
			trt: 1200.0 / 120,
		},
	} {
		var samples []string
		for labels, value := range want {
			samples = append(samples, fmt.Sprintf("{labels: '{%s}', value: %g}", labels, value))
		}
		fmt.Fprintf(&file, "  - {eval_time: 110m, expr: %q, exp_samples: [%s]}\n",
			"round(sum by (model, workload_name, work) ("+workColumn(t, column)+"), 0.001)", strings.Join(samples, ", "))
	}
	testRules(t, workRules(t), file.String())
}

// workColumn is the query of a column of the panel.
func workColumn(t *testing.T, column string) string {
	return queryOf(t, "dra-workloads", "Energy and device-time for each unit of work",
		func(_ int, of grafana.Target) bool { return of.Column == column })
}

// workRules are the records by workload and those of work.
func workRules(t *testing.T) []rules.Group {
	needed := workloadRules(t, idleEvery)
	o := rules.Defaults()
	o.Idle.Interval = idleEvery
	for _, g := range groups(t, o) {
		if g.Name == "dra-exporter-work" {
			needed = slices.DeleteFunc(needed, func(other rules.Group) bool { return other.Name == g.Name })
			at := slices.IndexFunc(needed, func(g rules.Group) bool { return g.Scope == rules.Global })
			needed = slices.Insert(needed, at, g)
		}
	}
	return needed
}

// TestShowback compares the rules with arithmetic by hand: what claims of one namespace hold for
// two hours.
func TestShowback(t *testing.T) {
	t.Parallel()
	h100 := func(name string, changed ...string) priced {
		return priced{name: name, model: "NVIDIA H100 80GB HBM3", parent: strings.Join(changed, "")}
	}
	var seven []priced
	for i := range 7 {
		slice := h100(fmt.Sprintf("gpu-0-mig-1g10gb-19-%d", i), "gpu-0")
		slice.share = 1.0 / 7
		seven = append(seven, slice)
	}
	var stories []showback
	unknown := h100("gpu-0-mig-9", "gpu-0")
	for name, tc := range map[string]struct {
		devices               []priced
		hours, cost, unpriced float64
	}{
		"an H100":                 {[]priced{h100("gpu-0")}, 2, 2 * 3, 0},
		"seven slices of an H100": {seven, 2, 2 * 3, 0},
		"a slice of an H100":      {seven[:1], 2.0 / 7, 2 * 3.0 / 7, 0},
		"half of an H100": {
			[]priced{{name: "p", model: "NVIDIA H100 80GB HBM3", parent: "gpu-0", share: 0.5}},
			1,
			3, 0,
		},
		"a part of unknown size": {[]priced{unknown}, 2, 0, 2},
		"a NIC beside a GPU":     {[]priced{h100("gpu-0"), {name: "eth0", model: "ConnectX-7"}}, 4, 6, 2},
		"H200 before H100":       {[]priced{{name: "g", model: "NVIDIA GH200 480GB"}}, 2, 7.6, 0},
		"an L40S is no L4":       {[]priced{{name: "g", model: "NVIDIA L40S"}}, 2, 2, 0},
		"an L4":                  {[]priced{{name: "g", model: "NVIDIA L4"}}, 2, 1.4, 0},
		"an L40 has no price":    {[]priced{{name: "g", model: "NVIDIA L40"}}, 2, 0, 2},
		"a Gaudi 3":              {[]priced{{name: "g", model: "gaudi3"}}, 2, 4, 0},
		"no model":               {[]priced{{name: "g"}}, 2, 0, 2},
	} {
		stories = append(stories, showback{name, tc.devices, map[string]float64{
			"allocated_share_seconds": tc.hours * 3600, "unpriced_share_seconds": tc.unpriced * 3600, "cost": tc.cost,
		}})
	}
	checkShowback(t, rules.Defaults(), stories...)
	own := rules.Defaults()
	own.Prices = []rules.Price{{Models: ".*H100.*", PerHour: 10}}
	checkShowback(t, own, showback{"another price", seven, map[string]float64{"cost": 20}})
	own.Prices = []rules.Price{{Models: ".*", PerHour: 10}}
	checkShowback(t, own, showback{
		"CPUs beside a GPU, which pods' requests have too",
		[]priced{h100("gpu-0"), {name: "cpudevnuma000", driver: "dra.cpu"}, {name: "mem-0", driver: "dra.memory"}},
		map[string]float64{"cost": 20, "allocated_share_seconds": 3 * 7200, "unpriced_share_seconds": 2 * 7200},
	})
	own.Prices = nil
	checkShowback(t, own, showback{"no price", seven, map[string]float64{"cost": 0, "unpriced_share_seconds": 7200}})
}

// priced is a device that one claim holds.
type priced struct {
	name, model, parent string
	driver              string  // default: that of the other stories
	share               float64 // of its parent; 0: unknown
}

// showback is what one claim holds for three hours, and the sums over the last two. Each has half.
type showback struct {
	name    string
	devices []priced
	want    map[string]float64 // by the name of the recording
}

func checkShowback(t *testing.T, o rules.Options, stories ...showback) {
	o.Idle.Interval = idleEvery
	needed := groups(t, o) // the recordings, without those of other things
	for i := range needed {
		needed[i].Rules = slices.DeleteFunc(needed[i].Rules, func(r rules.Rule) bool {
			return !regexp.MustCompile("device:dra_(share|price|model|weight):|_share_seconds:|dra_cost:(rate|increase)").
				MatchString(r.Record)
		})
	}
	needed = slices.DeleteFunc(needed, func(g rules.Group) bool { return len(g.Rules) == 0 })
	var file strings.Builder
	for _, s := range stories {
		s.write(&file)
	}
	testRules(t, needed, file.String())
}

// write writes the story in the format of promtool test rules.
func (s *showback) write(file *strings.Builder) {
	fmt.Fprintf(file, "- name: %q\n  interval: 1m\n  input_series:\n", s.name)
	for _, d := range s.devices {
		of := func(labels string) string { return strings.Replace(labels, "gpu.x", cmp.Or(d.driver, "gpu.x"), 1) }
		labels := of(deviceLabels(d.name))
		fmt.Fprintf(file, "  - {series: 'dra_device_info{%s, vendor=\"x\", model=%q, parent=%q}', values: '1x180'}\n",
			labels, d.model, d.parent)
		fmt.Fprintf(file, "  - {series: 'dra_claim_allocated_share_seconds_total{%s}', values: '0+60x180'}\n",
			of(claimLabels("a", "c", d.name)))
		if d.share > 0 {
			fmt.Fprintf(file, "  - {series: 'dra_device_parent_share_ratio{%s}', values: '%v+0x180'}\n", labels, d.share)
		}
	}
	file.WriteString("  promql_expr_test:\n")
	for name, sum := range s.want {
		// Rounded, for the sums of floating-point numbers.
		fmt.Fprintf(file, "  - eval_time: 3h\n    expr: 'round((sum(sum_over_time(namespace:dra_%s:increase[2h])) or "+
			"vector(0)) * 1e6) / 1e6'\n    exp_samples: [{labels: '{}', value: %v}]\n", name, math.Round(sum*1e6)/1e6)
		fmt.Fprintf(file, "  - eval_time: 3h\n    expr: 'round((sum(namespace:dra_%s:increase1h) or vector(0)) * 1e6) / 1e6'"+
			"\n    exp_samples: [{labels: '{}', value: %v}]\n", name, math.Round(sum/2*1e6)/1e6)
	}
}

package dashboards

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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

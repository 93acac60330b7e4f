package rules

// WorkRecord is the work of pods by the second, by its kind and model. A user's own rule may record
// more kinds of it, such as samples of a training.
const WorkRecord = "pod:dra_work:rate"

// work records what inference servers produce, by their own counters (vLLM, SGLang, TGI, Triton,
// TensorRT-LLM, which counts no tokens), and which workloads their pods are parts of: the energy of
// a workload is that of all its pods, and often one of them has the counters.
func work() []recording {
	named := func(metric, by string) string {
		return `
			  label_replace(
			    max by (<pod>, ` + by + `) (rate(` + metric + `[<rate>])),
			    "model", "$1", "model_name", "(.+)"
			  )`
	}
	unnamed := func(metric string) string {
		return `
			  label_replace(max by (<pod>) (rate(` + metric + `[<rate>])), "model", "", "pod", ".*")`
	}
	of := func(kind, expr string) recording {
		return recording{
			name: WorkRecord, labels: map[string]string{"work": kind}, expr: `
			sum by (<pod>, model) (` + expr + `
			)`,
		}
	}
	const or = "\n\t\t\t  or"
	return []recording{
		of("generated_token", named("vllm:generation_tokens_total", "model, model_name, engine")+or+
			named("sglang:generation_tokens_total", "model_name")+or+unnamed("tgi_request_generated_tokens_sum")),
		of("prompt_token", named("vllm:prompt_tokens_total", "model, model_name, engine")+or+
			named("sglang:prompt_tokens_total", "model_name")+or+unnamed("tgi_request_input_length_sum")),
		of("request", named("trtllm_request_success_total", "model_name, engine_type, finished_reason")),
		of("inference", `
			  max by (<pod>, model, version) (rate(nv_inference_count[<rate>]))`),
		{name: "node_workload:dra_work:rate", expr: `
			sum by (<served>, node, model, work) (
			  max by (<pod>, model, work) (` + WorkRecord + `)
			    * on (<pod>) group_left (<of workload>) pod:dra_workload:info
			)`},
	}
}

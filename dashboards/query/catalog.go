// Package query checks PromQL expressions against the exporter's metric families: every metric and
// label must exist. If a metric is renamed or removed, the generator of dashboards and rules fails.
// What expressions give is tested with Prometheus's engine (test/system/dashboards): that values
// are plausible in the unit of their panel, that devices of the same name are told apart, and that
// copies of a node count once.
package query

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
)

// Family is a metric that expressions may use.
type Family struct {
	Name   string
	Labels []string
	Native bool // the values are native histograms
	// Open is whether the family also has labels that flags copy from Kubernetes: label_*,
	// annotation_*.
	Open bool
}

// Catalog holds the metrics that expressions may use, by name.
type Catalog map[string]Family

// TargetLabels returns the labels that the scrape configuration and federation add to each series.
func TargetLabels() []string { return []string{"cluster", "node", "instance", "job"} }

// NewCatalog returns the exporter's families and the metrics of Prometheus and of inference servers
// that are used.
func NewCatalog() Catalog {
	c := Catalog{}
	for _, f := range slices.Concat(exposition.Families(driver.Standard()), exporter.SelfFamilies()) {
		for _, series := range families(f) {
			c.Add(series)
		}
	}
	for name, labels := range foreign() {
		c.Add(Family{Name: name, Labels: strings.Fields(labels)})
	}
	return c
}

// Add adds a family. It replaces one of the same name.
func (c Catalog) Add(f Family) { c[f.Name] = f }

// families returns the families of the series that Prometheus has of a family: of a histogram, a
// native one, and a classic one unless it is a distribution.
func families(f exposition.Family) []Family {
	out := Family{
		Name: f.Name, Labels: f.Labels, Native: f.Histogram, Open: f.Name == "dra_claim_info" || f.Name == "dra_pod_info",
	}
	if !f.Histogram || f.Spec != nil {
		return []Family{out}
	}
	return []Family{
		out,
		{Name: f.Name + "_sum", Labels: f.Labels},
		{Name: f.Name + "_count", Labels: f.Labels},
		{Name: f.Name + "_bucket", Labels: append(slices.Clone(f.Labels), "le")},
	}
}

// foreign returns the metrics of other programs, with their labels.
func foreign() map[string]string {
	const served = "namespace pod model_name"
	return map[string]string{
		"up": "", "scrape_duration_seconds": "", "process_cpu_seconds_total": "", "process_resident_memory_bytes": "",
		// vLLM, docs/usage/metrics.md. Triton's backend for it says model and version in place of
		// model_name and engine.
		"vllm:generation_tokens_total": "model engine " + served, "vllm:prompt_tokens_total": "model engine " + served,
		// SGLang, docs/references/production_metrics.md.
		"sglang:generation_tokens_total": served, "sglang:prompt_tokens_total": served,
		// Text Generation Inference, docs/source/reference/metrics.md: histograms of requests.
		"tgi_request_generated_tokens_sum": "namespace pod", "tgi_request_input_length_sum": "namespace pod",
		// Triton, docs/user_guide/metrics.md.
		"nv_inference_count": "namespace pod model version",
		// TensorRT-LLM (docs.nvidia.com/dynamo, TensorRT-LLM Observability): successful requests.
		"trtllm_request_success_total": "engine_type finished_reason " + served,
	}
}

// Package query checks PromQL expressions against the exporter's metric families: every metric and
// label must exist, and the result must have the stated unit. If a metric is renamed or removed,
// the generator of dashboards and rules fails. No engine knows units; that copies of a node and
// native histograms are counted once is tested with Prometheus's engine (test/system/dashboards).
package query

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
)

// Family is a metric that expressions may use.
type Family struct {
	Name   string
	Unit   Unit
	Labels []string
	// Native is whether the values are native histograms, and Unit that of their counts.
	Native bool
	// Observed is the unit of the values that a native histogram, or classic buckets, count.
	Observed Unit
	// Open is whether the family also has labels that flags copy from Kubernetes: label_*,
	// annotation_*.
	Open bool
}

// Catalog holds the metrics that expressions may use, by name.
type Catalog map[string]Family

// TargetLabels returns the labels that the scrape configuration and federation add to each series.
func TargetLabels() []string { return []string{"cluster", "node", "instance", "job"} }

// NewCatalog returns the exporter's families and the metrics of Prometheus and kube-state-metrics
// that are used.
func NewCatalog() (Catalog, error) {
	c := Catalog{}
	own, err := exporter.SelfFamilies()
	if err != nil {
		return nil, fmt.Errorf("list metric families: %w", err)
	}
	for _, f := range slices.Concat(exposition.Families(driver.Standard()), own) {
		for _, series := range families(f) {
			c.Add(series)
		}
	}
	for _, f := range foreign() {
		c.Add(f)
	}
	return c, nil
}

// Add adds a family. It replaces one of the same name.
func (c Catalog) Add(f Family) { c[f.Name] = f }

// families returns the families of the series that Prometheus has of a family: those of classic
// buckets for the exporter's own histogram, a native histogram for a distribution.
func families(f exposition.Family) []Family {
	out := Family{Name: f.Name, Unit: unitOf(f), Labels: slices.Clone(f.Labels)}
	out.Open = f.Name == "dra_claim_info" || f.Name == "dra_pod_info"
	switch {
	case !f.Histogram:
		return []Family{out}
	case f.Spec != nil: // a distribution, whose counts are seconds
		out.Native, out.Observed, out.Unit = true, out.Unit, Unit{Seconds: 1, Scale: 1}
		return []Family{out}
	}
	sum, count, buckets := out, out, out
	sum.Name += "_sum"
	count.Name, count.Unit = count.Name+"_count", counts()
	buckets.Name, buckets.Unit, buckets.Observed = buckets.Name+"_bucket", counts(), out.Unit
	buckets.Labels = append(slices.Clone(out.Labels), "le")
	all := []Family{sum, count, buckets}
	if f.Summed {
		out.Native, out.Observed, out.Unit = true, out.Unit, counts()
		all = append(all, out)
	}
	return all
}

func unitOf(f exposition.Family) Unit {
	if strings.HasSuffix(f.Name, "_timestamp_seconds") {
		return Unit{Seconds: 1, Scale: 1, Point: true}
	}
	if f.Unit == "" && f.Quantity == driver.Capacity {
		return Unit{Unknown: true} // of any resource
	}
	if f.Name == "dra_claim_consumed_capacity" {
		return Unit{Unknown: true}
	}
	u, err := baseUnit(f.Unit)
	if err != nil {
		return Unit{Unknown: true}
	}
	return u
}

// foreign returns the metrics of other programs.
func foreign() []Family {
	seconds := Unit{Seconds: 1, Scale: 1}
	claim := []string{"namespace", "resourceclaim"}
	served := []string{"namespace", "pod", "model_name"}
	called := []string{"driver_name", "method_name", "grpc_status_code"}
	return []Family{
		{Name: "up", Unit: counts()},
		{Name: "scrape_duration_seconds", Unit: seconds},
		{Name: "scrape_samples_scraped", Unit: counts()},
		{Name: "process_cpu_seconds_total", Unit: seconds},
		{Name: "process_resident_memory_bytes", Unit: Unit{Bytes: 1, Scale: 1}},
		{Name: "go_goroutines", Unit: counts()},
		// kube-state-metrics, internal/store/resourceclaim.go and resourceslice.go.
		{Name: "kube_resourceclaim_created", Unit: Unit{Seconds: 1, Scale: 1, Point: true}, Labels: claim},
		{Name: "kube_resourceclaim_status_allocated", Unit: counts(), Labels: claim},
		{
			Name: "kube_resourceclaim_status_reserved_for", Unit: counts(),
			Labels: append([]string{"consumer_apigroup", "consumer_resource", "consumer_name", "consumer_uid"}, claim...),
		},
		{
			Name: "kube_resourceclaim_allocation_device_info", Unit: counts(),
			Labels: append([]string{"request", "driver", "pool", "device"}, claim...),
		},
		{
			Name: "kube_resourceslice_device_info", Unit: counts(),
			Labels: []string{"resourceslice", "driver", "pool_name", "node_name", "device_name"},
		},
		// vLLM, docs/usage/metrics.md. Triton's backend for it says model and version in place of
		// model_name and engine.
		{Name: "vllm:generation_tokens_total", Unit: counts(), Labels: append([]string{"model", "engine"}, served...)},
		{Name: "vllm:prompt_tokens_total", Unit: counts(), Labels: append([]string{"model", "engine"}, served...)},
		// SGLang, docs/references/production_metrics.md.
		{Name: "sglang:generation_tokens_total", Unit: counts(), Labels: served},
		{Name: "sglang:prompt_tokens_total", Unit: counts(), Labels: served},
		// Text Generation Inference, docs/source/reference/metrics.md: histograms of requests.
		{Name: "tgi_request_generated_tokens_sum", Unit: counts(), Labels: []string{"namespace", "pod"}},
		{Name: "tgi_request_input_length_sum", Unit: counts(), Labels: []string{"namespace", "pod"}},
		// Triton, docs/user_guide/metrics.md.
		{Name: "nv_inference_count", Unit: counts(), Labels: []string{"namespace", "pod", "model", "version"}},
		// TensorRT-LLM (docs.nvidia.com/dynamo, TensorRT-LLM Observability): successful requests.
		{
			Name: "trtllm_request_success_total", Unit: counts(),
			Labels: append([]string{"engine_type", "finished_reason"}, served...),
		},
		// The kubelet, pkg/kubelet/metrics/metrics.go.
		{Name: "dra_operations_duration_seconds_sum", Unit: seconds, Labels: []string{"operation_name", "is_error"}},
		{Name: "dra_operations_duration_seconds_count", Unit: counts(), Labels: []string{"operation_name", "is_error"}},
		{Name: "dra_grpc_operations_duration_seconds_sum", Unit: seconds, Labels: called},
		{Name: "dra_grpc_operations_duration_seconds_count", Unit: counts(), Labels: called},
		// NVIDIA's DRA driver, pkg/metrics/dra_requests.go.
		{Name: "nvidia_dra_request_duration_seconds_sum", Unit: seconds, Labels: []string{"driver", "operation"}},
		{Name: "nvidia_dra_request_duration_seconds_count", Unit: counts(), Labels: []string{"driver", "operation"}},
		{Name: "nvidia_dra_requests_inflight", Unit: counts(), Labels: []string{"driver", "operation"}},
		{Name: "nvidia_dra_node_prepare_errors_total", Unit: counts(), Labels: []string{"driver", "error_type"}},
		{Name: "nvidia_dra_node_unprepare_errors_total", Unit: counts(), Labels: []string{"driver", "error_type"}},
		// kube-state-metrics, docs/metrics/workload/pod-metrics.md.
		{Name: "kube_pod_status_unschedulable", Unit: counts(), Labels: []string{"namespace", "pod", "uid"}},
	}
}

package deploy

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/must"
)

type object = map[string]any

// prometheusConfig returns the configuration that the Prometheus operator generates for a
// PodMonitor: its own settings (selection of pods, first labels), then the PodMonitor's.
func prometheusConfig(t *testing.T, m *monitoringv1.PodMonitor, kubeconfig string,
	secret func(name, key string) string,
) string {
	endpoint := &m.Spec.PodMetricsEndpoints[0]
	relabelings := []object{
		{"source_labels": []string{"__meta_kubernetes_pod_phase"}, "regex": "(Failed|Succeeded)", "action": "drop"},
		{"source_labels": []string{"__meta_kubernetes_pod_container_port_name"}, "regex": *endpoint.Port, "action": "keep"},
		{"source_labels": []string{"__meta_kubernetes_namespace"}, "target_label": "namespace"},
		{"source_labels": []string{"__meta_kubernetes_pod_container_name"}, "target_label": "container"},
		{"source_labels": []string{"__meta_kubernetes_pod_name"}, "target_label": "pod"},
		{"target_label": "job", "replacement": m.Namespace + "/" + m.Name},
		{"target_label": "endpoint", "replacement": *endpoint.Port},
	}
	for _, label := range slices.Sorted(maps.Keys(m.Spec.Selector.MatchLabels)) {
		name := "__meta_kubernetes_pod_label_" + regexp.MustCompile(`[^a-zA-Z0-9_]`).ReplaceAllString(label, "_")
		relabelings = append(relabelings, object{
			"source_labels": []string{name}, "regex": regexp.QuoteMeta(m.Spec.Selector.MatchLabels[label]), "action": "keep",
		})
	}
	relabelings = append(relabelings, relabelConfigs(endpoint.RelabelConfigs)...)
	scrape := object{
		"job_name":        fmt.Sprintf("podMonitor/%s/%s/0", m.Namespace, m.Name),
		"honor_labels":    endpoint.HonorLabels,
		"scrape_interval": string(endpoint.Interval), "scrape_timeout": string(endpoint.ScrapeTimeout),
		"metrics_path": endpoint.Path, "scheme": cmp.Or(string(*endpoint.Scheme), "http"),
		"kubernetes_sd_configs": []object{{
			"role": "pod", "kubeconfig_file": kubeconfig,
			"namespaces": object{"names": []string{m.Namespace}},
		}},
		"relabel_configs": relabelings, "metric_relabel_configs": relabelConfigs(endpoint.MetricRelabelConfigs),
	}
	if m.Spec.ScrapeNativeHistograms != nil {
		scrape["scrape_native_histograms"] = *m.Spec.ScrapeNativeHistograms
	}
	maps.Copy(scrape, clientConfig(endpoint, secret))
	out := must.Get(yaml.Marshal(object{"scrape_configs": []object{scrape}}))(t)
	return string(out)
}

// clientConfig returns the HTTP client settings of an endpoint.
func clientConfig(endpoint *monitoringv1.PodMetricsEndpoint, secret func(name, key string) string) object {
	out := object{}
	if a := endpoint.Authorization; a != nil {
		out["authorization"] = object{
			"type":        cmp.Or(a.Type, "Bearer"),
			"credentials": secret(a.Credentials.Name, a.Credentials.Key),
		}
	}
	if b := endpoint.BasicAuth; b != nil {
		out["basic_auth"] = object{
			"username": secret(b.Username.Name, b.Username.Key),
			"password": secret(b.Password.Name, b.Password.Key),
		}
	}
	if c := endpoint.TLSConfig; c != nil {
		out["tls_config"] = object{"ca": secret(c.CA.Secret.Name, c.CA.Secret.Key), "server_name": *c.ServerName}
	}
	return out
}

func relabelConfigs(from []monitoringv1.RelabelConfig) []object {
	var out []object
	for _, r := range from {
		o := object{}
		if len(r.SourceLabels) > 0 {
			o["source_labels"] = r.SourceLabels
		}
		for name, value := range map[string]string{"target_label": r.TargetLabel, "regex": r.Regex, "action": r.Action} {
			if value != "" {
				o[name] = value
			}
		}
		if r.Replacement != nil {
			o["replacement"] = *r.Replacement
		}
		out = append(out, o)
	}
	return out
}

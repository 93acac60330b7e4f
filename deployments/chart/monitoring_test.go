package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// The labels namespace and pod of the series are kept, and the target's labels name the node.
func TestPodMonitor(t *testing.T) {
	endpoint := renderObjects(t, values{"podMonitor": values{"enabled": true}}).monitor.Spec.PodMetricsEndpoints[0]
	if !endpoint.HonorLabels || endpoint.Interval != "15s" {
		t.Errorf("the endpoint is %+v", endpoint)
	}
	var got []string
	for _, r := range endpoint.RelabelConfigs {
		got = append(got, fmt.Sprint(r.Action, r.SourceLabels, r.TargetLabel, r.Regex))
	}
	want := []string{
		"[__meta_kubernetes_pod_node_name]node", "[__meta_kubernetes_pod_node_name]instance", "[]job",
		"labeldrop[]pod|container|namespace|endpoint|service",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A ServiceMonitor selects the Service, and scrapes as the PodMonitor does.
func TestServiceMonitor(t *testing.T) {
	set := values{
		"enabled": true, "interval": "30s", "labels": values{"release": "prometheus"},
		"relabelings": []any{values{"targetLabel": "cluster", "replacement": "a"}},
	}
	o := renderObjects(t, values{"serviceMonitor": set, "web": values{"kubeAuthorization": values{"enabled": true}}})
	monitor := o.all["ServiceMonitor test-dra-exporter"].(*monitoringv1.ServiceMonitor)
	service := o.all["Service test-dra-exporter"].(*corev1.Service)
	for name, value := range monitor.Spec.Selector.MatchLabels {
		if service.Labels[name] != value {
			t.Errorf("it selects %s=%s, the Service has %v", name, value, service.Labels)
		}
	}
	got := monitor.Spec.Endpoints[0]
	want := renderObjects(t, values{
		"podMonitor": set, "web": values{"kubeAuthorization": values{"enabled": true}},
	}).monitor.Spec.PodMetricsEndpoints[0]
	if got.Port != *want.Port || got.Port != service.Spec.Ports[0].Name || got.Interval != "30s" || !got.HonorLabels ||
		monitor.Labels["release"] != "prometheus" || len(monitor.Spec.Selector.MatchLabels) < 2 {
		t.Errorf("%v: %+v", monitor.Labels, got)
	}
	if diff := cmp.Diff(want.Authorization, got.Authorization); diff != "" || got.Authorization == nil {
		t.Errorf("the token: %s", diff)
	}
	if o.all["Secret "+got.Authorization.Credentials.Name] == nil {
		t.Errorf("there is no Secret %s", got.Authorization.Credentials.Name)
	}
	if diff := cmp.Diff(want.RelabelConfigs, got.RelabelConfigs); diff != "" || len(got.RelabelConfigs) != 5 {
		t.Errorf("%d relabelings: %s", len(got.RelabelConfigs), diff)
	}
}

// Native histograms are scraped if the exporter has them, and the operator's CRDs have the field.
func TestScrapeNativeHistograms(t *testing.T) {
	for name, tt := range map[string]struct {
		histograms string
		monitor    values
		want       bool
	}{
		"by default":           {"native", values{"enabled": true}, true},
		"with classic buckets": {"classic", values{"enabled": true}, true},
		"none are there":       {"off", values{"enabled": true}, false},
		"an older operator":    {"native", values{"enabled": true, "scrapeNativeHistograms": false}, false},
	} {
		pods := renderObjects(t, values{"histograms": tt.histograms, "podMonitor": tt.monitor}).monitor.Spec
		services := renderObjects(t, values{"histograms": tt.histograms, "serviceMonitor": tt.monitor}).
			all["ServiceMonitor test-dra-exporter"].(*monitoringv1.ServiceMonitor).Spec
		for kind, got := range map[string]*bool{
			"PodMonitor": pods.ScrapeNativeHistograms, "ServiceMonitor": services.ScrapeNativeHistograms,
		} {
			if (got != nil) != tt.want || got != nil && !*got {
				t.Errorf("%s: the %s has %v, want %v", name, kind, got, tt.want)
			}
		}
	}
}

// The rules match the job of any release. Two releases in one namespace have different jobs.
func TestJob(t *testing.T) {
	data, err := os.ReadFile("../../dashboards/out/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	selectors := regexp.MustCompile(`up\{job=~"([^"]*)"\}`).FindAllSubmatch(data, -1)
	if len(selectors) == 0 {
		t.Fatalf("the rules select %d jobs", len(selectors))
	}
	jobs := map[string]bool{}
	for _, name := range []string{"dra-exporter", "gpu-metrics", "team-a"} {
		o := objects{all: map[string]runtime.Object{}}
		o.render(t, Release{
			Name: name, Namespace: "monitoring", Values: values{"podMonitor": values{"enabled": true}},
		})
		for _, r := range o.monitor.Spec.PodMetricsEndpoints[0].RelabelConfigs {
			if r.TargetLabel == "job" {
				jobs[*r.Replacement] = true
			}
		}
	}
	if len(jobs) != 3 {
		t.Errorf("the jobs of three releases are %v", jobs)
	}
	for job := range jobs {
		for _, s := range selectors {
			if !regexp.MustCompile("^(?:" + string(s[1]) + ")$").MatchString(job) {
				t.Errorf("the rules select the job %s, and not %s", s[1], job)
			}
		}
	}
}

// Every generated dashboard is in the chart.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	generated, err := filepath.Glob("../../dashboards/out/grafana/*.json")
	if err != nil || len(generated) == 0 {
		t.Fatalf("%d dashboards, %v", len(generated), err)
	}
	o, operator := renderObjects(t, combinations()["monitoring"]), renderObjects(t, combinations()["grafana operator"])
	for _, path := range generated {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		object := "test-dra-exporter-" + strings.TrimPrefix(name, "dra-")
		m, ok := o.all["ConfigMap "+object].(*corev1.ConfigMap)
		if want, err := os.ReadFile(path); err != nil || !ok || m.Data[name+".json"] != string(want) ||
			m.Labels["grafana_dashboard"] != "1" {
			t.Errorf("the dashboard %s differs from the generated one: %v", name, err)
		}
		if operator.all["GrafanaDashboard "+object] == nil {
			t.Errorf("there is no GrafanaDashboard %s", name)
		}
	}
}

// Rules and dashboards can be in namespaces of their own.
func TestNamespaces(t *testing.T) {
	o := renderObjects(t, values{
		"prometheusRule": values{"enabled": true, "namespace": "rules"},
		"dashboards":     values{"enabled": true, "namespace": "grafana"},
	})
	for key, object := range o.all {
		kind, _, _ := strings.Cut(key, " ")
		want := map[string]string{
			"PrometheusRule": "rules", "ConfigMap": "grafana", "ClusterRole": "", "ClusterRoleBinding": "",
		}
		namespace, listed := want[kind]
		if !listed {
			namespace = "monitoring"
		}
		if got := object.(metav1.Object).GetNamespace(); got != namespace {
			t.Errorf("%s is in %q, want %q", key, got, namespace)
		}
	}
}

// Two releases in one namespace have no object in common, and do not select each other's pods. With
// -short it renders a third of the combinations.
func TestTwoReleases(t *testing.T) {
	t.Parallel()
	for name, v := range sampled() {
		both := objects{all: map[string]runtime.Object{}}
		for _, release := range []string{"dra-exporter", "gpus"} {
			both.render(t, Release{Name: release, Namespace: "monitoring", Values: v}) // fails if an object occurs twice
			for key, object := range both.all {
				service, ok := object.(*corev1.Service)
				if !ok {
					continue
				}
				own, ofGateway := strings.HasPrefix(key, "Service "+release), strings.HasSuffix(key, "-gateway")
				selector := labels.SelectorFromSet(service.Spec.Selector)
				pods := labels.Set(both.daemonSet.Spec.Template.Labels)
				if selects := selector.Matches(pods); selects != (own && !ofGateway) {
					t.Errorf("%s: %s selects pods of %s: %v", name, key, release, selects)
				}
				for other, object := range both.all {
					gateway, ok := object.(*appsv1.Deployment)
					if !ok {
						continue
					}
					_, service, _ := strings.Cut(key, " ")
					selects := selector.Matches(labels.Set(gateway.Spec.Template.Labels))
					if is := other == "Deployment "+service; selects != is {
						t.Errorf("%s: %s selects pods of %s: %v", name, key, other, selects)
					}
				}
			}
		}
	}
}

// Releases of the same name in two namespaces have no object in common, also where their rules and
// dashboards are in one namespace.
func TestSameNameInTwoNamespaces(t *testing.T) {
	t.Parallel()
	v := combinations()["authorization"]
	v["prometheusRule"] = values{"enabled": true, "namespace": "monitoring"}
	v["dashboards"] = values{"enabled": true, "namespace": "monitoring"}
	all := map[string]string{}
	for _, namespace := range []string{"team-a", "team-b"} {
		o := objects{all: map[string]runtime.Object{}}
		o.render(t, Release{Name: "dra-exporter", Namespace: namespace, Values: v})
		for key, object := range o.all {
			key = object.(metav1.Object).GetNamespace() + " " + key
			if all[key] != "" {
				t.Errorf("%s is of both releases", key)
			}
			all[key] = namespace
		}
	}
}

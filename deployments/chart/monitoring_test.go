package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

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

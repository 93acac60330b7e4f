// Package integrations tests the files of this folder as far as that needs no program of another
// stack; test/system/integrations runs those.
package integrations

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/grafana/alloy/syntax/ast"
	"github.com/grafana/alloy/syntax/parser"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/deployments/chart"
)

type values = map[string]any

// render returns the objects of the chart with a file of values, or with some values.
func render(t *testing.T, path string, v values) []string {
	t.Helper()
	if path != "" {
		decode(t, path, &v)
	}
	documents, err := chart.Render("../helm/dra-exporter", chart.Release{
		Name: "dra-exporter", Namespace: "dra-exporter", Values: v,
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(content, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// daemonSet returns the DaemonSet among objects.
func daemonSet(t *testing.T, documents []string) *appsv1.DaemonSet {
	t.Helper()
	for _, d := range documents {
		if strings.Contains(d, "\nkind: DaemonSet\n") {
			var out appsv1.DaemonSet
			if err := yaml.Unmarshal([]byte(d), &out); err != nil {
				t.Fatal(err)
			}
			return &out
		}
	}
	t.Fatal("there is no DaemonSet")
	return nil
}

// TestPages: each folder has a page, which the list links.
func TestPages(t *testing.T) {
	list, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	folders, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range folders {
		if !f.IsDir() {
			continue
		}
		page, err := os.ReadFile(filepath.Join(f.Name(), "README.md"))
		if err != nil || !regexp.MustCompile(`\n\*\*(Proven|What is not shown):\*\*`).Match(page) {
			t.Errorf("%s: a page must say what is proven: %v", f.Name(), err)
		}
		if !strings.Contains(string(list), "("+f.Name()+"/README.md)") {
			t.Errorf("%s is not in the list", f.Name())
		}
	}
}

// TestMetricNames: the exporter has every metric that a file names.
func TestMetricNames(t *testing.T) {
	reference, err := os.ReadFile("../../exporter/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`\bdra_(device|claim|pod)_[a-z_]+[a-z]\b`)
	// Made by the rules of prometheus-adapter, and labels of dcgm-exporter.
	made := []string{"dra_device_utilization", "dra_claim_name", "dra_claim_namespace", "dra_device_name"}
	n := 0
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, found := range name.FindAllString(string(content), -1) {
			n++
			if !strings.Contains(string(reference), "`"+found+"`") && !slices.Contains(made, found) &&
				!strings.Contains(string(reference), "`"+found+"_total`") { // Datadog's name
				t.Errorf("%s: the exporter has no %s", path, found)
			}
		}
		return err
	})
	if err != nil || n < 30 {
		t.Errorf("%d names, %v", n, err)
	}
}

// TestKubePrometheusStack compares the rendered objects with the stack's default selectors.
func TestKubePrometheusStack(t *testing.T) {
	want := map[string]string{"PodMonitor": "release", "PrometheusRule": "release", "ConfigMap": "grafana_dashboard"}
	selected := map[string]int{}
	for _, document := range render(t, "kube-prometheus-stack/values.yaml", nil) {
		var o metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		value := o.Labels[want[o.Kind]]
		if value == "kube-prometheus-stack" || o.Kind == "ConfigMap" && value == "1" {
			selected[o.Kind]++
		}
	}
	if diff := cmp.Diff(map[string]int{"PodMonitor": 1, "PrometheusRule": 1, "ConfigMap": 7}, selected); diff != "" {
		t.Error(diff)
	}
}

// TestAzure: the object is the operator's PodMonitor in another API group, with the chart's
// relabelings.
func TestAzure(t *testing.T) {
	var m, ours monitoringv1.PodMonitor
	decode(t, "azure/podmonitor.yaml", &m)
	if m.APIVersion != "azmonitoring.coreos.com/v1" || !m.Spec.PodMetricsEndpoints[0].HonorLabels {
		t.Errorf("%+v", m)
	}
	for _, document := range render(t, "", values{"podMonitor": values{"enabled": true}}) {
		if strings.Contains(document, "\nkind: PodMonitor\n") {
			if err := yaml.Unmarshal([]byte(document), &ours); err != nil {
				t.Fatal(err)
			}
		}
	}
	targets := func(m *monitoringv1.PodMonitor) (out []string) {
		for _, r := range m.Spec.PodMetricsEndpoints[0].RelabelConfigs {
			out = append(out, r.TargetLabel)
		}
		return out
	}
	if diff := cmp.Diff(targets(&ours), targets(&m)); diff != "" {
		t.Error(diff)
	}
	labels := daemonSet(t, render(t, "", nil)).Spec.Template.Labels
	for name, value := range m.Spec.Selector.MatchLabels {
		if labels[name] != value {
			t.Errorf("the pods have %s=%q", name, labels[name])
		}
	}
}

// TestDatadog: the annotation names the container and its port, and selects the exporter's metrics.
func TestDatadog(t *testing.T) {
	pod := daemonSet(t, render(t, "datadog/values.yaml", nil)).Spec.Template
	c := pod.Spec.Containers[0]
	var checks map[string]struct {
		InitConfig map[string]any `json:"init_config"`
		Instances  []struct {
			Endpoint  string            `json:"openmetrics_endpoint"`
			Namespace string            `json:"namespace"`
			Metrics   []string          `json:"metrics"`
			Rename    map[string]string `json:"rename_labels"`
		} `json:"instances"`
	}
	if err := json.Unmarshal([]byte(pod.Annotations["ad.datadoghq.com/"+c.Name+".checks"]), &checks); err != nil {
		t.Fatal(err)
	}
	instance := checks["openmetrics"].Instances[0]
	if instance.Endpoint != "http://%%host%%:10985/metrics" || c.Ports[0].ContainerPort != 10985 ||
		instance.Namespace == "" || instance.Rename["pod"] == "" ||
		!regexp.MustCompile(instance.Metrics[0]).MatchString("dra_claim_power_watts") {
		t.Errorf("%+v with the ports %v", instance, c.Ports)
	}
	if !slices.Contains(c.Args, "--histograms=classic") {
		t.Errorf("the arguments are %q", c.Args)
	}
}

// TestCloudWatch: the agent's configuration declares metrics that its scrape configuration keeps,
// by labels that they have.
func TestCloudWatch(t *testing.T) {
	var agent struct {
		Logs struct {
			Collected struct {
				Prometheus struct {
					Processor struct {
						Declarations []struct {
							Dimensions [][]string `json:"dimensions"`
							Selectors  []string   `json:"metric_selectors"`
						} `json:"metric_declaration"`
					} `json:"emf_processor"`
				} `json:"prometheus"`
			} `json:"metrics_collected"`
		} `json:"logs"`
	}
	content, err := os.ReadFile("aws/cwagentconfig.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &agent); err != nil {
		t.Fatal(err)
	}
	scrape, err := os.ReadFile("aws/prometheus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	keep := regexp.MustCompile(`regex: (dra_\S+), action: keep`).FindSubmatch(scrape)
	kept := regexp.MustCompile("^(?:" + string(keep[1]) + ")$")
	n := 0
	for _, d := range agent.Logs.Collected.Prometheus.Processor.Declarations {
		for _, s := range d.Selectors {
			n++
			if !kept.MatchString(strings.Trim(s, "^$")) {
				t.Errorf("%s is dropped before it is declared", s)
			}
		}
	}
	if n != 8 {
		t.Errorf("%d metrics are declared", n)
	}
}

// TestOpenShift: the SCC admits the pod.
func TestOpenShift(t *testing.T) {
	var scc struct {
		Volumes    []string `json:"volumes"`
		Users      []string `json:"users"`
		Privileged bool     `json:"allowPrivilegedContainer"`
		ReadOnly   bool     `json:"readOnlyRootFilesystem"`
	}
	content, err := os.ReadFile("openshift/scc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &scc); err != nil {
		t.Fatal(err)
	}
	d := daemonSet(t, render(t, "", nil))
	pod := &d.Spec.Template.Spec
	if want := "system:serviceaccount:dra-exporter:" + pod.ServiceAccountName; !slices.Contains(scc.Users, want) {
		t.Errorf("%s is none of %v", want, scc.Users)
	}
	for i := range pod.Volumes {
		if kind := volumeKind(&pod.Volumes[i]); !slices.Contains(scc.Volumes, kind) {
			t.Errorf("the volume %s is %s", pod.Volumes[i].Name, kind)
		}
	}
	security := pod.Containers[0].SecurityContext
	if scc.Privileged || !scc.ReadOnly || !*security.ReadOnlyRootFilesystem || security.Privileged != nil ||
		*security.AllowPrivilegeEscalation || len(security.Capabilities.Add) > 0 || pod.HostPID || pod.HostNetwork {
		t.Errorf("the container has %+v", security)
	}
}

func volumeKind(v *corev1.Volume) string {
	switch {
	case v.HostPath != nil:
		return "hostPath"
	case v.ConfigMap != nil:
		return "configMap"
	case v.Secret != nil:
		return "secret"
	case v.EmptyDir != nil:
		return "emptyDir"
	case v.Projected != nil:
		return "projected"
	default:
		return "unknown"
	}
}

// TestHPA: the autoscaler names a metric that the rules of prometheus-adapter produce.
func TestHPA(t *testing.T) {
	var hpa autoscalingv2.HorizontalPodAutoscaler
	decode(t, "autoscaling/hpa.yaml", &hpa)
	rules, err := os.ReadFile("autoscaling/prometheus-adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if name := hpa.Spec.Metrics[0].Pods.Metric.Name; !strings.Contains(string(rules), "as: "+name+"}") {
		t.Errorf("no rule makes %s", name)
	}
}

// TestImages: with everything switched on, the chart uses one image, which the page lists.
func TestImages(t *testing.T) {
	page, err := os.ReadFile("air-gapped/README.md")
	if err != nil {
		t.Fatal(err)
	}
	image := regexp.MustCompile(`(?m)^ *(?:- )?image: "?(\S+?):[^:\s]+$`)
	images := map[string]bool{}
	for _, document := range render(t, "kube-prometheus-stack/values.yaml", nil) {
		for _, found := range image.FindAllStringSubmatch(document, -1) {
			images[found[1]] = true
		}
	}
	if len(images) != 1 {
		t.Errorf("the images are %v", images)
	}
	for image := range images {
		if !strings.Contains(string(page), "`"+image+":VERSION`") {
			t.Errorf("the page does not list %s", image)
		}
	}
}

// TestArtifactHub: the chart's annotations are YAML, and name the chart's image and the license.
// Links lead to files of the repository.
func TestArtifactHub(t *testing.T) {
	var metadata struct {
		AppVersion  string            `json:"appVersion"`
		Annotations map[string]string `json:"annotations"`
	}
	content, err := os.ReadFile("../helm/dra-exporter/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var images []struct{ Name, Image string }
	var links []struct{ Name, URL string }
	if err := errors.Join(yaml.Unmarshal(content, &metadata),
		yaml.Unmarshal([]byte(metadata.Annotations["artifacthub.io/images"]), &images),
		yaml.Unmarshal([]byte(metadata.Annotations["artifacthub.io/links"]), &links)); err != nil {
		t.Fatal(err)
	}
	asked := daemonSet(t, render(t, "", nil)).Spec.Template.Spec.Containers[0].Image
	if len(images) != 1 || images[0].Image != asked || !strings.HasSuffix(asked, ":"+metadata.AppVersion) {
		t.Errorf("the images are %v, the chart asks for %s", images, asked)
	}
	for _, link := range links {
		path, found := strings.CutPrefix(link.URL, "https://github.com/dra-exporter/dra-exporter/blob/main/")
		if _, err := os.Stat("../../" + path); !found || err != nil {
			t.Errorf("%s: %v", link.URL, err)
		}
	}
	if metadata.Annotations["artifacthub.io/license"] != "Apache-2.0" || len(links) < 3 {
		t.Errorf("%v", metadata.Annotations)
	}
}

// TestObjects: each file with a kind is a complete object.
func TestObjects(t *testing.T) {
	paths, err := filepath.Glob("*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range paths {
		var o metav1.PartialObjectMetadata
		content, err := os.ReadFile(path)
		if err == nil {
			err = yaml.Unmarshal(content, &o)
		}
		if !strings.Contains("\n"+string(content), "\nkind: ") {
			continue
		}
		n++
		if err != nil || o.APIVersion == "" || o.Name == "" {
			t.Errorf("%s is %s %s %s: %v", path, o.APIVersion, o.Kind, o.Name, err)
		}
	}
	if n < 9 {
		t.Errorf("%d objects", n)
	}
}

// TestAlloy reads the configuration of Grafana Alloy with its own parser: each component once.
func TestAlloy(t *testing.T) {
	path := filepath.Join("grafana-cloud", "config.alloy")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(path, text)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range file.Body {
		if block, ok := s.(*ast.BlockStmt); ok {
			got = append(got, block.GetBlockName())
		}
	}
	slices.Sort(got)
	want := []string{"discovery.kubernetes", "discovery.relabel", "prometheus.remote_write", "prometheus.scrape"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
}

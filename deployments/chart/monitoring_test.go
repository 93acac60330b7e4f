package chart

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
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

// The gateway's pods are selected only by its own Service, and not by the DaemonSet or the
// exporters' Service and NetworkPolicy.
func TestGatewayIsNoExporter(t *testing.T) {
	o := renderObjects(t, combinations()["gateway"])
	gateway := o.all["Deployment test-dra-exporter-gateway"].(*appsv1.Deployment)
	pod := labels.Set(gateway.Spec.Template.Labels)
	selects := func(s map[string]string) bool { return labels.SelectorFromSet(s).Matches(pod) }
	exporters := o.all["Service test-dra-exporter"].(*corev1.Service).Spec.Selector
	policy := o.all["NetworkPolicy test-dra-exporter"].(*networkingv1.NetworkPolicy)
	if selects(o.daemonSet.Spec.Selector.MatchLabels) || selects(exporters) ||
		selects(policy.Spec.PodSelector.MatchLabels) {
		t.Errorf("pods with %v are taken for exporters", pod)
	}
	if !selects(gateway.Spec.Selector.MatchLabels) ||
		!selects(o.all["Service test-dra-exporter-gateway"].(*corev1.Service).Spec.Selector) {
		t.Errorf("pods with %v are not the gateway's", pod)
	}
	let := policy.Spec.Ingress[0].From
	if selector, err := metav1.LabelSelectorAsSelector(let[len(let)-1].PodSelector); err != nil || !selector.Matches(pod) {
		t.Errorf("exporters do not let the gateway in: %v", let)
	}
	asks := o.all["NetworkPolicy test-dra-exporter-gateway"].(*networkingv1.NetworkPolicy).Spec.Egress[0].To[0]
	if diff := cmp.Diff(exporters, asks.PodSelector.MatchLabels); diff != "" {
		t.Error(diff)
	}
}

// With the gateway's address, cells of tables and the dashboards themselves link to it.
func TestDashboardsByGateway(t *testing.T) {
	boards := func(url string) string {
		o := renderObjects(t, values{"gateway": values{"url": url}, "dashboards": values{"enabled": true}})
		var all strings.Builder
		for _, name := range []string{"fleet", "nodes"} {
			json := o.all["ConfigMap test-dra-exporter-"+name].(*corev1.ConfigMap).Data["dra-"+name+".json"]
			var board struct {
				Links []struct{ Title, URL string }
			}
			if err := yaml.Unmarshal([]byte(json), &board); err != nil {
				t.Fatalf("%s with %q: %v", name, url, err)
			}
			last := board.Links[len(board.Links)-1]
			if has := last.Title == "Pages" && last.URL == url+"/"; has != (url != "") {
				t.Errorf("with %q, the last link of %s is %+v", url, name, last)
			}
			all.WriteString(json)
		}
		return all.String()
	}
	const url = "https://dra.example.com/at"
	with, without := boards(url), boards("")
	for _, link := range []string{
		"/node/${__value.raw}/", "/node/${__data.fields.Node}/#device=${__value.raw}",
		"/claim/${__data.fields.Namespace}/${__value.raw}?node=${__data.fields.Node}",
		"/device/${__data.fields.Driver}/${__data.fields.Pool}/${__value.raw}?node=${__data.fields.Node}",
	} {
		if !strings.Contains(with, `"url": "`+url+link+`"`) {
			t.Errorf("no cell links to %s", link)
		}
	}
	if strings.Contains(with+without, ".invalid") || strings.Contains(without, "page of its node") {
		t.Error("there are links without an address")
	}
}

// With the gateway's address, the links of alerts lead to it, even if pageURL is set.
func TestLinksByGateway(t *testing.T) {
	const node = "{{ $labels.node | urlquery }}"
	want := map[string]string{
		"DRAClaimStalled": "https://dra.example.com/claim/{{ $labels.namespace | urlquery }}/" +
			"{{ $labels.resourceclaim_name | urlquery }}?node=" + node,
		"DRADeviceDown": "https://dra.example.com/device/{{ $labels.driver | urlquery }}/{{ $labels.pool | urlquery }}/" +
			"{{ $labels.device | urlquery }}?node=" + node,
	}
	o := renderObjects(t, values{
		"gateway": values{"url": "https://dra.example.com/"},
		"prometheusRule": values{
			"enabled": true, "pageURL": "https://other.example.com", "grafanaURL": "https://grafana.example.com",
		},
	})
	links := 0
	object := o.all["PrometheusRule test-dra-exporter"].(*monitoringv1.PrometheusRule)
	var rules []monitoringv1.Rule
	for _, g := range object.Spec.Groups {
		rules = append(rules, g.Rules...)
	}
	for _, r := range rules {
		link, has := r.Annotations["page_url"]
		if !has {
			continue
		}
		links++
		if exact, known := want[r.Alert]; known && link != exact {
			t.Errorf("%s: %s, want %s", r.Alert, link, exact)
		}
		if !strings.HasPrefix(link, "https://dra.example.com/") || !strings.Contains(link, node) ||
			strings.Contains(link, "<page>") {
			t.Errorf("%s: %s", r.Alert, link)
		}
	}
	if links < 10 {
		t.Errorf("%d alerts have links", links)
	}
}

// The certificate that the chart generates is valid for the name by which the gateway, the monitor
// and helm test verify it, with the CA that they have.
func TestGeneratedCertificate(t *testing.T) {
	o := renderObjects(t, combinations()["certificate"])
	secret := o.all["Secret test-dra-exporter-tls"].(*corev1.Secret)
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	for name, valid := range map[string]bool{
		"test-dra-exporter.monitoring.svc": true, "other.monitoring.svc": false,
	} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != valid {
			t.Errorf("for %s: %v", name, err)
		}
	}
	if _, hasKey := secret.Data["ca.key"]; hasKey || leaf.IsCA {
		t.Error("further certificates can be made")
	}
	volumes := o.daemonSet.Spec.Template.Spec.Volumes
	web := volumes[slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == "web" })]
	config := o.all["ConfigMap "+web.Projected.Sources[0].ConfigMap.Name].(*corev1.ConfigMap).Data["web-config.yml"]
	if !strings.Contains(config, "cert_file: tls.crt") {
		t.Error(config)
	}
}

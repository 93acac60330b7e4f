package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

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

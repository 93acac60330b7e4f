package chart

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const folder = "../helm/dra-exporter"

type values = map[string]any

// TestMain collects garbage less often than by default, since rendering leaves nothing else.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// objects are those of a rendered chart, decoded strictly into their types.
type objects struct {
	daemonSet *appsv1.DaemonSet
	role      *rbacv1.ClusterRole
	monitor   *monitoringv1.PodMonitor
	all       map[string]runtime.Object // by kind and name
}

func renderObjects(t *testing.T, v values) objects {
	o := objects{all: map[string]runtime.Object{}}
	o.render(t, Release{Name: "test", Namespace: "monitoring", Values: v})
	return o
}

// render adds the objects of a release, with its tests.
func (o *objects) render(t *testing.T, r Release) {
	t.Helper()
	documents, err := renderShipped(r, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range documents {
		o.add(t, document)
	}
}

// renderShipped is Render for the chart of this repository.
func renderShipped(r Release, tests bool) ([]string, error) {
	c, err := shipped()
	if err != nil {
		return nil, err
	}
	return documents(c, r, tests)
}

// shipped returns the chart of this repository, which is read once.
var shipped = sync.OnceValues(func() (*chart.Chart, error) { return loader.LoadDir(folder) })

func (o *objects) add(t *testing.T, document string) {
	t.Helper()
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	into := map[string]runtime.Object{
		"DaemonSet": &appsv1.DaemonSet{}, "ServiceAccount": &corev1.ServiceAccount{}, "ClusterRole": &rbacv1.ClusterRole{},
		"ClusterRoleBinding": &rbacv1.ClusterRoleBinding{}, "Service": &corev1.Service{},
		"PodMonitor":     &monitoringv1.PodMonitor{},
		"ServiceMonitor": &monitoringv1.ServiceMonitor{},
		"PrometheusRule": &monitoringv1.PrometheusRule{}, "ConfigMap": &corev1.ConfigMap{},
		"NetworkPolicy":         &networkingv1.NetworkPolicy{},
		"ResourceClaimTemplate": &resourcev1.ResourceClaimTemplate{}, "Pod": &corev1.Pod{}, "Secret": &corev1.Secret{},
		"Deployment": &appsv1.Deployment{}, "Role": &rbacv1.Role{}, "RoleBinding": &rbacv1.RoleBinding{},
		"Ingress":          &networkingv1.Ingress{},
		"GrafanaDashboard": &metav1.PartialObjectMetadata{}, "HTTPRoute": &metav1.PartialObjectMetadata{},
		"Issuer": &certmanagerv1.Issuer{}, "Certificate": &certmanagerv1.Certificate{},
	}[meta.Kind]
	if into == nil {
		t.Fatalf("unknown kind %s", meta.Kind)
	}
	decode := yaml.UnmarshalStrict
	if _, foreign := into.(*metav1.PartialObjectMetadata); foreign {
		decode = func(data []byte, to any, _ ...yaml.JSONOpt) error { return yaml.Unmarshal(data, to) }
	}
	if err := decode([]byte(document), into); err != nil {
		t.Fatalf("%s %s: %v in\n%s", meta.Kind, meta.Name, err, document)
	}
	key := meta.Kind + " " + meta.Name
	if o.all[key] != nil {
		t.Fatalf("%s occurs twice", key)
	}
	o.all[key] = into
	switch x := into.(type) {
	case *appsv1.DaemonSet:
		o.daemonSet = x
	case *rbacv1.ClusterRole:
		if !strings.HasSuffix(x.Name, "-gateway") {
			o.role = x
		}
	case *monitoringv1.PodMonitor:
		o.monitor = x
	}
}

// With -short it lints a third of the combinations.
func TestLint(t *testing.T) {
	t.Parallel()
	for name, v := range sampled() {
		t.Run(name, func(t *testing.T) {
			for _, m := range lint.RunAll(folder, v, "monitoring").Messages {
				if m.Severity >= support.WarningSev {
					t.Error(m)
				}
			}
		})
	}
}

// checkPaths checks that every path in the settings is mounted.
func checkPaths(t *testing.T, c *corev1.Container) {
	t.Helper()
	paths := 0
	for flag, values := range settings(c) {
		for _, path := range values {
			if !strings.HasPrefix(path, "/") {
				continue
			}
			paths++
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return strings.HasPrefix(path+"/", m.MountPath+"/") || strings.HasPrefix(m.MountPath, path+"/")
			}) {
				t.Errorf("%s %s is not mounted", flag, path)
			}
		}
	}
	if paths < 5 {
		t.Errorf("%d paths are set", paths)
	}
}

// The notes list what is switched off, and how to switch it on.
func TestNotes(t *testing.T) {
	notes := func(v values) string {
		c, err := shipped()
		if err != nil {
			t.Fatal(err)
		}
		files, err := render(c, Release{Name: "test", Namespace: "monitoring", Values: v})
		if err != nil {
			t.Fatal(err)
		}
		return files["dra-exporter/templates/NOTES.txt"]
	}
	off := notes(values{})
	on := notes(values{
		"vendor": "nvidia", "image": values{"repository": "registry.example.com/dra-exporter"},
		"podMonitor": values{"enabled": true}, "prometheusRule": values{"enabled": true},
		"dashboards": values{"enabled": true},
	})
	linked := notes(values{"prometheusRule": values{
		"enabled": true, "pageURL": "https://dra.example.com", "grafanaURL": "https://grafana.example.com",
	}})
	for _, hint := range []string{
		"'prometheusRule.pageURL=https://dra.example.com/{{ $labels.node }}'", "prometheusRule.grafanaURL=https://",
	} {
		if !strings.Contains(on, hint) || strings.Contains(off, hint) || strings.Contains(linked, hint) {
			t.Errorf("%q must be in the notes of alerts without links, and only there", hint)
		}
	}
	for _, hint := range []string{
		"**No image is published yet.**", "No vendor is set", "No Prometheus scrapes it yet", "prometheusRule.enabled=true",
		"dashboards.enabled=true",
	} {
		if !strings.Contains(off, hint) || strings.Contains(on, hint) {
			t.Errorf("%q must be in the notes of the defaults, and only there", hint)
		}
	}
	if !strings.Contains(on, "helm -n monitoring test ") {
		t.Errorf("the notes do not name helm test: %s", on)
	}
	if !strings.Contains(on, "podMonitor.labels.release=") || strings.Contains(off, "podMonitor.labels.release=") {
		t.Errorf("the label of the operator's release is not named: %s", on)
	}
}

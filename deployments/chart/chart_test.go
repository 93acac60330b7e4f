package chart

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/google/go-cmp/cmp"
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
	t.Helper()
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

// The service account has exactly the rights that the exporter uses.
func TestRBAC(t *testing.T) {
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims"}, Verbs: []string{"get"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"devicetaintrules"}, Verbs: []string{"list", "watch"}},
	}
	if diff := cmp.Diff(want, renderObjects(t, values{}).role.Rules); diff != "" {
		t.Error(diff)
	}
	without := renderObjects(t, values{"kube": values{"deviceTaintRules": false}}).role.Rules
	if diff := cmp.Diff(want[:len(want)-1], without); diff != "" {
		t.Error(diff)
	}
	byName := renderObjects(t, values{"kube": values{"listPods": false}}).role.Rules
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}
	if diff := cmp.Diff(append([]rbacv1.PolicyRule{pods}, want[1:]...), byName); diff != "" {
		t.Error(diff)
	}
	if role := renderObjects(t, values{"kube": values{"enabled": false}}).role; role != nil {
		t.Error("there is a role, but nothing needs it")
	}
}

// The right to review tokens exists only with authorization of scrapers, and the scrapers' role may
// only read the pages.
func TestAuthorization(t *testing.T) {
	v := combinations()["authorization"]
	o := renderObjects(t, v)
	own := o.all["ClusterRole monitoring.test-dra-exporter"].(*rbacv1.ClusterRole)
	want := slices.Concat(renderObjects(t, values{}).role.Rules, []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	})
	if diff := cmp.Diff(want, own.Rules); diff != "" {
		t.Error(diff)
	}
	scraper := o.all["ClusterRole monitoring.test-dra-exporter-scraper"].(*rbacv1.ClusterRole)
	if diff := cmp.Diff([]rbacv1.PolicyRule{{
		NonResourceURLs: []string{
			"/metrics", "/api/v1/snapshot", "/api/v1/fit", "/api/v1/history", "/api/v1/incidents", "/api/v1/receipts",
			"/api/v1/summary", "/page/rows",
		},
		Verbs: []string{"get"},
	}}, scraper.Rules); diff != "" {
		t.Error(diff)
	}
	var subjects []string
	binding := o.all["ClusterRoleBinding monitoring.test-dra-exporter-scraper"].(*rbacv1.ClusterRoleBinding)
	for _, s := range binding.Subjects {
		subjects = append(subjects, s.Namespace+"/"+s.Name)
	}
	if diff := cmp.Diff([]string{"monitoring/test-dra-exporter-scraper", "monitoring/prometheus"}, subjects); diff != "" {
		t.Error(diff)
	}
	secret := o.all["Secret test-dra-exporter-scraper"].(*corev1.Secret)
	credentials := o.monitor.Spec.PodMetricsEndpoints[0].Authorization.Credentials
	if secret.Type != corev1.SecretTypeServiceAccountToken || credentials.Name != secret.Name ||
		credentials.Key != "token" {
		t.Errorf("the PodMonitor's token is %+v, the Secret %s of type %s", credentials, secret.Name, secret.Type)
	}
	if !slices.Contains(o.daemonSet.Spec.Template.Spec.Containers[0].Args, "--web.kube-authorization") {
		t.Error("scrapers are not authorized")
	}
	plain := renderObjects(t, values{"podMonitor": values{"enabled": true}})
	if plain.all["ClusterRole monitoring.test-dra-exporter-scraper"] != nil ||
		plain.monitor.Spec.PodMetricsEndpoints[0].Authorization != nil {
		t.Error("there are rights and tokens that are not needed")
	}
}

// helm test uses TLS and credentials as the settings require.
func TestHelmTest(t *testing.T) {
	for name, want := range map[string]string{
		"defaults": "{}\n",
		"TLS":      "tls_config:\n  insecure_skip_verify: true\n",
		"authorization": "authorization:\n  credentials_file: /var/run/secrets/kubernetes.io/serviceaccount/token\n" +
			"tls_config:\n  insecure_skip_verify: true\n",
	} {
		o := renderObjects(t, combinations()[name])
		if diff := cmp.Diff(want,
			o.all["Secret test-dra-exporter-test"].(*corev1.Secret).StringData["http.yaml"]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		pod := o.all["Pod test-dra-exporter-test"].(*corev1.Pod)
		if token := *pod.Spec.AutomountServiceAccountToken; token != (name == "authorization") {
			t.Errorf("%s: the token of the service account is mounted: %v", name, token)
		}
	}
}

// helm test asks all addresses of the Service, including exporters that are not ready.
func TestHelmTestAsksEveryNode(t *testing.T) {
	o := renderObjects(t, values{"vendor": "nvidia"})
	service := o.all["Service test-dra-exporter"].(*corev1.Service)
	if service.Spec.ClusterIP != corev1.ClusterIPNone || !service.Spec.PublishNotReadyAddresses {
		t.Errorf("the Service has not the addresses of all pods: %+v", service.Spec)
	}
	args := o.all["Pod test-dra-exporter-test"].(*corev1.Pod).Spec.Containers[0].Args
	for _, want := range []string{"top", "--once", "--all-addresses", "--url=http://" + service.Name + ":10985"} {
		if !slices.Contains(args, want) {
			t.Errorf("the arguments of helm test are %v, without %s", args, want)
		}
	}
}

// Settings of pods and of the program are passed on.
func TestSettings(t *testing.T) {
	o := renderObjects(t, values{
		"maxSeries": 1000000, "podMinLifetime": "2m", "dnsPolicy": "Default",
		"idle":         values{"threshold": 0.05, "networkThreshold": 500000},
		"commonLabels": values{"team": "infra"}, "livenessProbe": values{"timeoutSeconds": 30},
	})
	pod := o.daemonSet.Spec.Template
	got := settings(&pod.Spec.Containers[0])
	for flag, want := range map[string]string{
		"--max-series": "1000000", "--idle.threshold": "0.05", "--idle.network-threshold": "500000",
		"--pod.min-lifetime": "2m",
	} {
		if len(got[flag]) != 1 || got[flag][0] != want {
			t.Errorf("%s is %v, want %s", flag, got[flag], want)
		}
	}
	if pod.Spec.DNSPolicy != corev1.DNSDefault || pod.Labels["team"] != "infra" || o.role.Labels["team"] != "infra" ||
		pod.Spec.Containers[0].LivenessProbe.TimeoutSeconds != 30 {
		t.Errorf("DNS policy %s, labels %v, probe %v", pod.Spec.DNSPolicy, pod.Labels, pod.Spec.Containers[0].LivenessProbe)
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

// The kubelet's probes use the exporter's protocol as far as the kubelet can.
func TestProbes(t *testing.T) {
	for name, want := range map[string]string{
		"defaults": "HTTP /healthz, HTTP /readyz", "TLS": "HTTPS /healthz, HTTPS /readyz",
		"authorization": "HTTPS /healthz, HTTPS /readyz", "password": "TCP, TCP",
	} {
		c := renderObjects(t, combinations()[name]).daemonSet.Spec.Template.Spec.Containers[0]
		var got []string
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			switch {
			case p.HTTPGet != nil && p.TCPSocket == nil:
				got = append(got, string(p.HTTPGet.Scheme)+" "+p.HTTPGet.Path)
			case p.TCPSocket != nil:
				got = append(got, "TCP")
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: the probes are %v, want %s", name, got, want)
		}
	}
}

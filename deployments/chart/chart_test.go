package chart

import (
	"maps"
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
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
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

// With every combination of values, the pod has what it needs and not more, and each object has the
// common labels. Each combination is rendered once.
func TestCombinations(t *testing.T) {
	t.Parallel()
	for name, v := range combinations() {
		t.Run(name, func(t *testing.T) {
			v["commonLabels"] = values{"team": "infra"}
			o := renderObjects(t, v)
			pod := &o.daemonSet.Spec.Template.Spec
			checkPaths(t, &pod.Containers[0])
			checkPodSecurity(t, name, &o)
			checkLeastPrivilege(t, v, pod)
			for key, object := range o.all {
				if got := object.(metav1.Object).GetLabels(); got["team"] != "infra" {
					t.Errorf("%s has the labels %v", key, got)
				}
			}
		})
	}
}

// sampled are the combinations, with -short every third one.
func sampled() map[string]values {
	all := combinations()
	if testing.Short() {
		for i, name := range slices.Sorted(maps.Keys(all)) {
			if i%3 != 0 {
				delete(all, name)
			}
		}
	}
	return all
}

// combinations are sets of values that users choose.
func combinations() map[string]values {
	endpoints := values{"endpoints": []any{values{
		"name": "dcgm", "url": "http://dcgm-exporter.gpu-operator:9400/metrics",
		"preset": "dcgm-exporter",
	}}}
	return map[string]values{
		"defaults":     {},
		"nvidia":       {"vendor": "nvidia", "sources": values{"scrape": endpoints}},
		"nvidia admin": {"vendor": "nvidia", "adminAccess": values{"enabled": true}},
		"short pods":   {"podMinLifetime": "90s"},
		"amd":          {"vendor": "amd", "adminAccess": values{"enabled": true}},
		"DCGM": {
			"vendor": "nvidia",
			"sources": values{"dcgm": values{
				"address": "nvidia-dcgm.gpu-operator:5555", "profiling": true,
				"library": "/usr/lib/x86_64-linux-gnu/libdcgm.so.4",
			}},
		},
		"intel":   {"vendor": "intel"},
		"network": {"vendor": "network", "hostPID": true},
		"inspect": {"vendor": "amd", "inspectProcesses": true},
		"log":     {"vendor": "nvidia", "kernelLog": true},
		"cpu":     {"vendor": "cpu"},
		"plugins": {"kubelet": values{"plugins": true}},
		"no API":  {"kube": values{"enabled": false}, "inventory": values{"configMapName": "slices"}},
		"monitoring": {
			"podMonitor": values{
				"enabled": true, "labels": values{"release": "prometheus"},
				"endpoint": values{"tlsConfig": values{"insecureSkipVerify": true}},
			},
			"prometheusRule": values{"enabled": true}, "dashboards": values{"enabled": true},
			"networkPolicy": values{"enabled": true},
		},
		"service monitor":  {"serviceMonitor": values{"enabled": true}},
		"grafana operator": {"dashboards": values{"enabled": true, "operator": values{"enabled": true}}},
		"library": {
			"vendor": "nvidia",
			"nvidia": values{"library": "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1", "privileged": true},
		},
		"MIG":          {"vendor": "nvidia", "nvidia": values{"migMonitor": true}},
		"vendor nodes": {"vendor": "nvidia", "onlyOnVendorNodes": true},
		"authorization": {
			"web": values{
				"secretName": "web", "tls": true,
				"kubeAuthorization": values{
					"enabled":  true,
					"scrapers": []any{values{"namespace": "monitoring", "name": "prometheus"}},
				},
			},
			"podMonitor": values{"enabled": true, "endpoint": values{"tlsConfig": values{"insecureSkipVerify": true}}},
		},
		"password": {
			"web":  values{"secretName": "web", "tcpProbes": true},
			"test": values{"httpConfig": values{"basic_auth": values{"username": "a", "password": "b"}}},
		},
		"incidents":      {"incidents": values{"events": true, "dir": "/var/lib/dra-exporter"}},
		"incidents kept": {"incidents": values{"dir": "emptyDir"}},
		"gateway": {
			"gateway": values{
				"enabled": true, "url": "https://dra.example.com", "secretName": "gateway-web",
				"proxy":     values{"clientNames": []any{"proxy"}, "prefix": "oidc:"},
				"ingress":   values{"enabled": true, "host": "dra.example.com", "tlsSecretName": "tls"},
				"httpRoute": values{"enabled": true, "parentRefs": []any{values{"name": "edge"}}},
			},
			"web":           values{"secretName": "web", "tls": true, "kubeAuthorization": values{"enabled": true}},
			"networkPolicy": values{"enabled": true, "from": []any{values{"namespaceSelector": values{}}}},
		},
		"gateway with a proxy": {"gateway": values{
			"enabled": true, "proxy": values{"loopback": true},
			"extraContainers": []any{values{
				"name": "proxy", "image": "quay.io/oauth2-proxy/oauth2-proxy",
				"ports": []any{values{"name": "http", "containerPort": 4180}},
			}},
		}},
		"no state": {"state": values{"enabled": false}},
		"groups":   {"metrics": values{"errors": false, "pods": "info", "quantitySource": "estimates"}},
		"TLS":      {"web": values{"secretName": "web", "tls": true}, "podMonitor": values{"enabled": true}},
		"certificate": {
			"web":     values{"certificate": values{"from": "generated"}, "kubeAuthorization": values{"enabled": true}},
			"gateway": values{"enabled": true}, "podMonitor": values{"enabled": true},
		},
		"certificate of cert-manager": {
			"web": values{"certificate": values{"from": "certManager"}}, "gateway": values{"enabled": true},
		},
		"certificate of an issuer": {"web": values{"certificate": values{
			"from": "certManager", "issuerRef": values{"kind": "ClusterIssuer", "name": "internal"},
		}}},
		"certificate of a Secret": {
			"web":     values{"secretName": "web", "tls": true, "certificate": values{"caKey": "ca.pem", "serverName": "dra"}},
			"gateway": values{"enabled": true}, "serviceMonitor": values{"enabled": true},
		},
		"labels": {"exportLabels": values{
			"pods": []any{"app.kubernetes.io/name"}, "claims": []any{"team"},
			"podAnnotations": []any{"example.com/idle-ok"},
		}},
		"extras": {
			"image":             values{"digest": "sha256:" + strings.Repeat("0", 64)},
			"extraArgs":         []any{"--web.pprof"},
			"extraEnv":          []any{values{"name": "A", "value": "b"}},
			"extraVolumes":      []any{values{"name": "x", "emptyDir": values{}}},
			"extraVolumeMounts": []any{values{"name": "x", "mountPath": "/x"}},
			"affinity":          values{"nodeAffinity": values{}},
			"nodeSelector":      values{"a": "b"},
			"imagePullSecrets":  []any{values{"name": "s"}},
			"networkPolicy":     values{"enabled": true, "from": []any{values{"namespaceSelector": values{}}}},
			"serviceAccount":    values{"create": false, "name": "mine"}, "rbac": values{"create": false},
			"service": values{"enabled": false},
		},
	}
}

// violations returns the violations of a pod that the API server's own admission reports with
// "restricted".
func violations(t *testing.T, pod *corev1.PodSpec) []string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, result := range evaluator.EvaluatePod(api.LevelVersion{
		Level:   api.LevelRestricted,
		Version: api.LatestVersion(),
	},
		&metav1.ObjectMeta{}, pod) {
		if !result.Allowed {
			out = append(out, result.ForbiddenReason)
		}
	}
	slices.Sort(out)
	return out
}

// checkPodSecurity checks that the pod violates Pod Security's "restricted" only where that is
// necessary: it runs as root, without capabilities, and mounts folders of the host. Further
// violations occur only if values request them. The pod of helm test has no violations.
func checkPodSecurity(t *testing.T, name string, o *objects) {
	t.Helper()
	want := []string{"restricted volume types", "runAsNonRoot != true", "runAsUser=0"}
	want = append(want, map[string][]string{
		"network": {"host namespaces"}, // hostPID
		"MIG":     {"allowPrivilegeEscalation != false", "unrestricted capabilities"},
		"inspect": {"unrestricted capabilities"},
		"log":     {"allowPrivilegeEscalation != false", "privileged", "unrestricted capabilities"},
		"library": {"allowPrivilegeEscalation != false", "privileged", "unrestricted capabilities"},
	}[name]...)
	slices.Sort(want)
	if diff := cmp.Diff(want, violations(t, &o.daemonSet.Spec.Template.Spec)); diff != "" {
		t.Error(diff)
	}
	if test, ok := o.all["Pod test-dra-exporter-test"].(*corev1.Pod); ok {
		if got := violations(t, &test.Spec); got != nil {
			t.Errorf("the pod of helm test violates %v", got)
		}
	}
}

// checkLeastPrivilege checks, in addition to Pod Security, that all mounts are read-only except
// that of the state, which can be omitted, and that a token is mounted only if it is needed.
func checkLeastPrivilege(t *testing.T, v values, pod *corev1.PodSpec) {
	t.Helper()
	c := pod.Containers[0]
	if len(pod.Containers) != 1 || !*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("the container has too many rights: %+v", c.SecurityContext)
	}
	for _, m := range c.VolumeMounts {
		if m.Name == "state" && v["state"] == nil {
			continue
		}
		if !m.ReadOnly && m.Name != "x" {
			t.Errorf("%s is mounted read-write", m.Name)
		}
		if hostPath(pod, m.Name) != "" && (m.RecursiveReadOnly == nil ||
			*m.RecursiveReadOnly != corev1.RecursiveReadOnlyIfPossible || m.MountPropagation != nil) {
			t.Errorf("what is mounted below %s is not read-only: %+v", m.MountPath, m)
		}
	}
	if kube := v["kube"] == nil; *pod.AutomountServiceAccountToken != kube {
		t.Error("the token of the service account is missing, or mounted although it is not needed")
	}
}

// hostPath returns the path of a pod's volume on the host, "" for other volumes.
func hostPath(pod *corev1.PodSpec, name string) string {
	for _, v := range pod.Volumes {
		if v.Name == name && v.HostPath != nil {
			return v.HostPath.Path
		}
	}
	return ""
}

// Without recursively read-only mounts the field is omitted: API servers before 1.30 do not have
// it.
func TestRecursiveReadOnly(t *testing.T) {
	for _, test := range []struct {
		value, version, want string
	}{
		{"IfPossible", "v1.29.9", ""},
		{"IfPossible", "v1.30.0-gke.1", "IfPossible"},
		{"IfPossible", "", "IfPossible"},
		{"Enabled", "v1.29.0", ""},
		{"Enabled", "v1.33.1", "Enabled"},
		{"Disabled", "v1.33.1", ""},
	} {
		documents, err := renderShipped(Release{
			Name: "test", Namespace: "monitoring", KubeVersion: test.version,
			Values: values{"recursiveReadOnly": test.value},
		}, false)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(documents, "")
		mounts := strings.Count(all, "readOnly: true, recursiveReadOnly: "+test.want+"}")
		if test.want == "" {
			mounts = strings.Count(all, "recursiveReadOnly")
		}
		if want := map[bool]int{true: 0, false: 10}[test.want == ""]; mounts != want {
			t.Errorf("%+v: %d mounts, want %d", test, mounts, want)
		}
	}
	if _, err := renderShipped(Release{Name: "test", Values: values{"recursiveReadOnly": "Yes"}}, false); err == nil {
		t.Error("a value that Kubernetes does not know was accepted")
	}
}

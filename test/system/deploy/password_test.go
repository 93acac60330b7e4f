package deploy

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	user     = "prometheus"
	password = "a password of the test"
)

// testPassword configures the DaemonSet with TLS and a password as in
// deployments/examples/password. The kubelet's probes pass, only requests with the password
// succeed, and the PodMonitor's settings and helm test have it.
func (w *world) testPassword(t *testing.T) {
	example := filepath.Join("..", "..", "..", "deployments", "examples", "password")
	authority := w.makeSecrets(t, readExample(t, filepath.Join(example, "web-config.yml")))
	var values object
	must.Do(t, yaml.UnmarshalStrict([]byte(readExample(t, filepath.Join(example, "values.yaml"))), &values))
	monitor, test := values["podMonitor"].(object), values["test"].(object)
	monitor["interval"], monitor["scrapeTimeout"] = "1s", "1s"
	test["httpConfig"].(object)["basic_auth"].(object)["password"] = password
	w.install(values)
	if c := w.healthy(t); c.ReadinessProbe.TCPSocket == nil || c.LivenessProbe.TCPSocket == nil {
		t.Errorf("the probes are %v and %v", c.ReadinessProbe, c.LivenessProbe)
	}
	w.testPasswordAccess(t, authority)
	prometheus := w.startPrometheus("127.0.0.1:9091")
	live.Await(t, startTimeout, "the claims are in the Prometheus with the password",
		func() error { return w.claims(prometheus) })
	w.testHelmTest(t, values)
}

// testPasswordAccess sends requests with the right, a wrong and no password, and without TLS.
func (w *world) testPasswordAccess(t *testing.T, authority *x509.CertPool) {
	address := w.pods()[0].Status.PodIP + ":10985"
	client := w.network.client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: authority, ServerName: release}
	for _, test := range []struct {
		url, password string
		want          int
	}{
		{"https://" + address + "/metrics", password, 200},
		{"https://" + address + "/metrics", "another", 401},
		{"https://" + address + "/metrics", "", 401},
		{"https://" + address + "/", "", 401},
		{"http://" + address + "/metrics", password, 400},
	} {
		var headers []string
		if test.password != "" {
			headers = []string{"Authorization", live.Basic(user, test.password)}
		}
		a := must.Get(live.Ask(t.Context(), client, test.url, headers...))(t)
		expect.Is(t, a.Status, test.want, "%s with the password %q: status", test.url, test.password)
	}
}

// testHelmTest runs the chart's test pod like helm test: it asks every address of the Service, and
// fails if one does not answer.
func (w *world) testHelmTest(t *testing.T, values object) {
	exporter := w.pods()[0].Status.PodIP
	if phase, said := w.runHelmTest(t, values, exporter); phase != corev1.PodSucceeded ||
		!strings.Contains(said, "default/single") {
		t.Errorf("the chart's test %s: %s", phase, said)
	}
	const nobody = "127.0.0.9"
	if phase, said := w.runHelmTest(t, values, exporter, nobody); phase != corev1.PodFailed ||
		!strings.Contains(said, "default/single") || !strings.Contains(said, nobody) {
		t.Errorf("the chart's test %s although nothing answers at %s: %s", phase, nobody, said)
	}
}

// runHelmTest runs the test pod once, and returns how it ended and what it said. The cluster has no
// DNS, so the pod gets the addresses of the Service.
func (w *world) runHelmTest(t *testing.T, values object, addresses ...string) (corev1.PodPhase, string) {
	name := release + "-test"
	for _, document := range w.render(values, true) {
		var kind metav1.PartialObjectMetadata
		must.Do(t, yaml.Unmarshal([]byte(document), &kind))
		switch {
		case kind.Annotations["helm.sh/hook"] != "test":
		case kind.Kind != "Pod":
			w.apply(document)
		default:
			var pod corev1.Pod
			must.Do(t, yaml.UnmarshalStrict([]byte(document), &pod))
			for _, ip := range addresses {
				alias := corev1.HostAlias{IP: ip, Hostnames: []string{release}}
				pod.Spec.HostAliases = append(pod.Spec.HostAliases, alias)
			}
			must.Get(w.client.CoreV1().Pods(namespace).Create(t.Context(), &pod, metav1.CreateOptions{}))(t)
		}
	}
	phase := w.ended(name)
	said := w.kubectl("logs", "-n", namespace, name)
	w.kubectl("delete", "pod", "-n", namespace, "--now", name)
	return phase, said
}

// makeSecrets creates the Secrets of the example: the exporter's with the web configuration, and
// the scraper's. It returns a pool that trusts the certificate.
func (w *world) makeSecrets(t *testing.T, webConfig string) *x509.CertPool {
	hash := must.Get(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
	dir := t.TempDir()
	authority := live.Certificate(t, dir, release)
	certificate, key := readExample(t, filepath.Join(dir, "cert.pem")), readExample(t, filepath.Join(dir, "key.pem"))
	for name, content := range map[string]map[string]string{
		"dra-exporter-web": {
			"web-config.yml": strings.Replace(webConfig, "HASH", string(hash), 1),
			"tls.crt":        certificate, "tls.key": key,
		},
		"dra-exporter-password": {"ca.crt": certificate, "username": user, "password": password},
	} {
		secret := corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: content}
		must.Get(w.client.CoreV1().Secrets(namespace).Create(t.Context(), &secret, metav1.CreateOptions{}))(t)
	}
	return authority
}

func readExample(t *testing.T, path string) string { return string(must.Get(os.ReadFile(path))(t)) }

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

package chart

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// Paths of parts of objects, as kubectl's -o jsonpath has them, with [abbreviations].
const (
	nodes = `{range <p>.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[*]}` +
		`{.matchExpressions[*].key} {.matchExpressions[*].operator} {.matchExpressions[*].values[*]}; {end}`
	kmsg = `{<c>.env[?(@.name=="DRA_EXPORTER_SOURCE_KMSG")].value} {<c>.securityContext.privileged} ` +
		`{<v>[?(@.hostPath.path=="/dev/kmsg")].hostPath.path} {<c>.volumeMounts[?(@.mountPath=="/dev/kmsg")].mountPath}`
	capabilities = `{<c>.securityContext.capabilities.add[*]} {<c>.securityContext.capabilities.drop[*]}`
	drm          = `{<c>.env[?(@.name=="DRA_EXPORTER_SOURCE_DRM")].value} ` + capabilities
	migMonitor   = `{<c>.env[?(@.name=="NVIDIA_MIG_MONITOR_DEVICES")].value} ` + capabilities
	state        = `{<v>[?(@.name=="state")].hostPath['path', 'type']} {<v>[?(@.name=="state")].emptyDir.sizeLimit} ` +
		`{<c>.volumeMounts[?(@.name=="state")]['mountPath', 'readOnly']} ` +
		`{<c>.env[?(@.name=="DRA_EXPORTER_STATE_DIR")].value}`
	library = `{<p>.runtimeClassName}{<v>[?(@.name=="nvidia")].hostPath['path', 'type']}`
	plugins = `{<c>.volumeMounts[?(@.mountPath=="/k/plugins")].readOnly} ` +
		`{<c>.volumeMounts[?(@.mountPath=="/k/plugins_registry")].readOnly}`
	passed = "{<p>.dnsPolicy} {.spec.template.metadata.labels.team} {<c>.livenessProbe.timeoutSeconds}"
	web    = `{<v>[?(@.name=="web")].projected.sources[1].secret.name} {<c>.volumeMounts[?(@.name=="web")].mountPath}`
	probes = `{<c>.livenessProbe.httpGet['scheme', 'path']}{<c>.livenessProbe.tcpSocket.port}, ` +
		`{<c>.readinessProbe.httpGet['scheme', 'path']}{<c>.readinessProbe.tcpSocket.port}`
	rights   = `{range .rules[*]}{.apiGroups[*]} {.resources[*]}{.nonResourceURLs[*]}: {.verbs[*]}; {end}`
	endpoint = `{.honorLabels} {.interval} {.port}{range .relabelings[*]}; {.action} {.sourceLabels[*]} ` +
		`{.targetLabel} {.replacement} {.regex}{end}{end} {.metadata.labels.release}`
	pods     = `{range .spec.podMetricsEndpoints[*]}` + endpoint
	services = `{range .spec.endpoints[*]}` + endpoint
	token    = `{<v>[?(@.name=="token")].projected.sources[0].serviceAccountToken['audience', 'path']} ` +
		`{<c>.volumeMounts[?(@.name=="token")].mountPath}`
	ca = `{<v>[?(@.name=="ca")].secret.secretName} {<v>[?(@.name=="ca")].secret.items[0]['key', 'path']} ` +
		`{<c>.volumeMounts[?(@.name=="ca")].mountPath}`
	podCA = `{.spec.volumes[?(@.name=="ca")].secret.secretName} {.spec.volumes[?(@.name=="ca")].secret.items[0]['key', ` +
		`'path']} {.spec.containers[0].volumeMounts[?(@.name=="ca")].mountPath}`
	monitorCA = `{<e>.tlsConfig.ca.secret['name', 'key']} {<e>.tlsConfig.serverName}`
)

// abbreviations are those of paths.
func abbreviations() *strings.Replacer {
	return strings.NewReplacer("<p>", ".spec.template.spec", "<c>", ".spec.template.spec.containers[0]",
		"<v>", ".spec.template.spec.volumes", "<e>", ".spec.podMetricsEndpoints[0]",
		"<l>", `.metadata.labels.app\.kubernetes\.io/`, "<s>", `.spec.selector.matchLabels.app\.kubernetes\.io/`)
}

// part returns what is at a path of an object of rendered documents, or the value of a flag or a
// variable.
func part(t *testing.T, documents []string, object, path string) string {
	t.Helper()
	kind, suffix, _ := strings.Cut(object, " ")
	for _, document := range documents {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		var d appsv1.DaemonSet
		var all any
		for _, into := range []any{&o, &all} {
			if err := yaml.Unmarshal([]byte(document), into); err != nil {
				t.Fatal(err)
			}
		}
		name := strings.TrimPrefix(o.Metadata.Name, "monitoring.")
		switch {
		case kind == "flag" && o.Kind == "DaemonSet":
			if err := yaml.Unmarshal([]byte(document), &d); err != nil {
				t.Fatal(err)
			}
			set, is := settings(&d.Spec.Template.Spec.Containers[0])[path]
			return cmp.Or(strings.Join(set, " "), map[bool]string{true: "set", false: "not set"}[is])
		case o.Kind == kind && name == "test-dra-exporter"+suffix:
			p, out := jsonpath.New(object).AllowMissingKeys(true), strings.Builder{}
			if err := p.Parse(abbreviations().Replace(path)); err != nil {
				t.Fatal(err)
			}
			if err := p.Execute(&out, all); err != nil {
				t.Fatal(err)
			}
			return strings.Join(strings.Fields(out.String()), " ")
		}
	}
	return "none"
}

// TestObjects checks parts of objects, which values determine: values in YAML, or the name of a
// combination.
func TestObjects(t *testing.T) {
	t.Parallel()
	rendered := map[string][]string{}
	for _, tt := range slices.Concat(ofPods(), ofRights(), ofScrapes(), ofCertificates()) {
		for of, want := range tt.want {
			if rendered[of] == nil {
				rendered[of] = renderText(t, of)
			}
			if got := part(t, rendered[of], tt.object, tt.path); got != want {
				t.Errorf("with %s, %s has %q, want %q: %s", of, tt.object, got, want, tt.path)
			}
		}
	}
}

// renderText returns the documents with values in YAML, or with those of a combination.
func renderText(t *testing.T, text string) []string {
	t.Helper()
	v, known := combinations()[text]
	if !known {
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
	}
	documents, err := renderShipped(Release{Name: "test", Namespace: "monitoring", Values: v}, true)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

// expectation is what is at a path of the object of a kind, of the one whose name has the suffix,
// by the values.
type expectation struct {
	object, path string
	want         map[string]string
}

// ofPods are expectations of the pods of exporters.
func ofPods() []expectation {
	const (
		kept = "DirectoryOrCreate /var/lib/dra-exporter /var/lib/dra-exporter"
	)
	return []expectation{
		// Devices get into the container in one way: a vendor's runtime class is not used if
		// another is chosen.
		{"DaemonSet", "{<p>.runtimeClassName}", map[string]string{
			"{}":               "",
			"{vendor: nvidia}": "nvidia",
			"{vendor: amd}":    "",
			"{vendor: nvidia, adminAccess: {enabled: true}}":                         "",
			"{vendor: nvidia, adminAccess: {enabled: true}, runtimeClassName: mine}": "mine",
		}},
		{"DaemonSet", library, map[string]string{
			"library": "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1 File",
		}},
		// GPUs in MIG mode as a whole are read only on request: NVIDIA's toolkit demands
		// CAP_SYS_ADMIN for it.
		{"DaemonSet", migMonitor, map[string]string{
			"{vendor: nvidia}": "ALL",
			"MIG":              "all SYS_ADMIN ALL",
		}},
		{"flag", "$DRA_EXPORTER_SOURCE_DCGM", map[string]string{
			"{}":   "not set",
			"DCGM": "nvidia-dcgm.gpu-operator:5555",
		}},
		{"flag", "$DRA_EXPORTER_SOURCE_DCGM_PROFILING", map[string]string{"DCGM": "true"}},
		// It runs on nodes of the vendor, by labels of the vendor's operator or of
		// node-feature-discovery.
		{"DaemonSet", nodes, map[string]string{
			"{vendor: nvidia}": "nvidia.com/gpu.present In true; " +
				"feature.node.kubernetes.io/pci-10de.present In true;",
			"{vendor: nvidia, onlyOnVendorNodes: false}": "",
			"{vendor: cpu}": "",
			"{}":            "",
		}},
		// What is mounted of the host. Runtimes that cannot make mounts recursively read-only see
		// no folder of /sys that usually has other file systems below it.
		{"DaemonSet", "{<v>[*].hostPath.path}", map[string]string{
			"{}": "/var/lib/kubelet/pod-resources /var/lib/kubelet/pods-api /var/log/pods /proc /sys/bus /sys/class " +
				"/sys/devices /sys/fs/cgroup /etc/cdi /var/run/cdi /var/lib/dra-exporter",
		}},
		{"DaemonSet", plugins, map[string]string{
			"{kubelet: {root: /k}}":                "",
			"{kubelet: {root: /k, plugins: true}}": "true true", //nolint:dupword // two values
		}},
		// The kernel log is read in a privileged container; its source is off without it, unless a
		// value says on.
		{"DaemonSet", kmsg, map[string]string{
			"{}":                      "false",
			"{kernelLog: true}":       "true /dev/kmsg /dev/kmsg",
			"{sources: {kmsg: true}}": "true",
			"{kernelLog: true, sources: {kmsg: false}}": "false true /dev/kmsg /dev/kmsg",
		}},
		// The same of the source drm, which reads processes with two capabilities.
		{"DaemonSet", drm, map[string]string{
			"{}":                       "false ALL",
			"{inspectProcesses: true}": "DAC_READ_SEARCH SYS_PTRACE ALL",
			"{sources: {drm: true}}":   "true ALL",
			"{inspectProcesses: true, sources: {drm: false}}": "false DAC_READ_SEARCH SYS_PTRACE ALL",
		}},
		// The state is in a folder of the host, or of the pod, or is not kept.
		{"DaemonSet", state, map[string]string{
			"{}":                             "/var/lib/dra-exporter " + kept,
			"{state: {dir: /var/lib/x}}":     "/var/lib/x " + kept,
			"{state: {dir: emptyDir}}":       "80Mi /var/lib/dra-exporter /var/lib/dra-exporter",
			"{state: {enabled: false}}":      "",
			"{incidents: {dir: /var/lib/y}}": "/var/lib/y " + kept,
			"{incidents: {dir: emptyDir}, state: {enabled: false}}": "80Mi /var/lib/dra-exporter /var/lib/dra-exporter",
		}},
		// Settings are passed on.
		{"flag", "--max-series", map[string]string{"{maxSeries: 1000000}": "1000000"}},
		{"flag", "--pod.min-lifetime", map[string]string{"{podMinLifetime: 2m}": "2m"}},
		{"flag", "--idle.threshold", map[string]string{"{idle: {threshold: 0.05}}": "0.05"}},
		{"flag", "--idle.network-threshold", map[string]string{"{idle: {networkThreshold: 500000}}": "500000"}},
		{"flag", "--incidents.events", map[string]string{
			"{}":                          "not set",
			"{incidents: {events: true}}": "set",
		}},
		{"DaemonSet", passed, map[string]string{
			"{dnsPolicy: Default, commonLabels: {team: infra}, livenessProbe: {timeoutSeconds: 30}}": "Default infra 30",
		}},
		// The kubelet's probes use the exporter's protocol as far as the kubelet can.
		{"DaemonSet", probes, map[string]string{
			"{}":            "HTTP /healthz, HTTP /readyz",
			"TLS":           "HTTPS /healthz, HTTPS /readyz",
			"authorization": "HTTPS /healthz, HTTPS /readyz",
			"password":      "metrics, metrics",
		}},
	}
}

// ofRights are expectations of rights at the API server.
func ofRights() []expectation {
	const (
		reads      = "resource.k8s.io resourceslices: list watch; resource.k8s.io resourceclaims: get;"
		taintRules = " resource.k8s.io devicetaintrules: list watch;"
		reviews    = "authentication.k8s.io tokenreviews: create; " +
			"authorization.k8s.io subjectaccessreviews: create;"
	)
	return []expectation{
		// Rights are those that the exporter uses.
		{"ClusterRole", rights, map[string]string{
			"{}":                                "pods: get list watch; " + reads + taintRules,
			"{kube: {deviceTaintRules: false}}": "pods: get list watch; " + reads,
			"{kube: {listPods: false}}":         "pods: get; " + reads + taintRules,
			"{incidents: {events: true}}":       "pods: get list watch; " + reads + taintRules + " events: create patch;",
			"authorization":                     "pods: get list watch; " + reads + taintRules + " " + reviews,
			"{kube: {enabled: false}}":          "none",
		}},
		// Scrapers may only read the pages, and have a token for it.
		{"ClusterRole -scraper", rights, map[string]string{
			"{}": "none",
			"authorization": "/metrics /api/v1/snapshot /api/v1/fit /api/v1/history /api/v1/incidents /api/v1/receipts " +
				"/api/v1/summary /page/rows: get;",
		}},
		{"ClusterRoleBinding -scraper", "{range .subjects[*]}{.namespace}/{.name} {end}", map[string]string{
			"authorization": "monitoring/test-dra-exporter-scraper monitoring/prometheus",
		}},
		{"Secret -scraper", "{.type}", map[string]string{"authorization": "kubernetes.io/service-account-token"}},
		{"PodMonitor", "{<e>.authorization.credentials.name} {<e>.authorization.credentials.key}", map[string]string{
			"authorization": "test-dra-exporter-scraper token",
		}},
		{"flag", "--web.kube-authorization", map[string]string{"authorization": "set"}},
		{"PodMonitor", "{<e>.authorization}", map[string]string{"{podMonitor: {enabled: true}}": ""}},
		// So does the gateway.
		{"ClusterRole -gateway", rights, map[string]string{
			"gateway": reviews +
				" resource.k8s.io resourceclaims: get; pods: get; " +
				"/ /metrics /page/rows /page/detail /api/v1/*: get;",
			"gateway with a proxy": reviews +
				" resource.k8s.io resourceclaims: get; pods: get;",
		}},
		{"Role -gateway", rights, map[string]string{"gateway": "discovery.k8s.io endpointslices: list;"}},
		{"Deployment -gateway", "{<c>.args[1]}", map[string]string{
			"gateway":              "--web.listen-address=:10985",
			"gateway with a proxy": "--web.listen-address=127.0.0.1:10985",
		}},
	}
}

// ofScrapes are expectations of what scrapes, and of helm test.
func ofScrapes() []expectation {
	const (
		kept = "metrics; __meta_kubernetes_pod_node_name node ; __meta_kubernetes_pod_node_name instance ; " +
			"job test/dra-exporter ; labeldrop pod|container|namespace|endpoint|service"
		tuned = "{enabled: true, interval: 30s, labels: {release: a}, " +
			"relabelings: [{targetLabel: cluster, replacement: b}]}"
		tokenAt = "authorization: credentials_file: /var/run/secrets/"
	)
	return []expectation{
		// Monitors keep the labels of the series, and the target's labels name the node.
		{"PodMonitor", pods, map[string]string{
			"{podMonitor: {enabled: true}}": "true 15s " + kept,
			"{podMonitor: " + tuned + "}":   "true 30s " + kept + "; cluster b a",
		}},
		{"ServiceMonitor", services, map[string]string{
			"{serviceMonitor: " + tuned + "}": "true 30s " + kept + "; cluster b a",
		}},
		{"ServiceMonitor", "{.spec.endpoints[0].authorization.credentials.name}", map[string]string{
			"{serviceMonitor: {enabled: true}, web: {kubeAuthorization: {enabled: true}}}": "test-dra-exporter-scraper",
		}},
		{"ServiceMonitor", "{<s>name} {<s>instance}", map[string]string{
			"{serviceMonitor: {enabled: true}}": "dra-exporter test",
		}},
		{"Service", "{<l>name} {<l>instance} {.spec.ports[0].name}", map[string]string{
			"{}": "dra-exporter test metrics",
		}},
		// Native histograms are scraped if the exporter has them and the operator's CRDs the field.
		{"PodMonitor", "{.spec.scrapeNativeHistograms}", map[string]string{
			"{podMonitor: {enabled: true}}":                                "true",
			"{podMonitor: {enabled: true}, histograms: classic}":           "true",
			`{podMonitor: {enabled: true}, histograms: "off"}`:             "",
			"{podMonitor: {enabled: true, scrapeNativeHistograms: false}}": "",
		}},
		{"ServiceMonitor", "{.spec.scrapeNativeHistograms}", map[string]string{
			"{serviceMonitor: {enabled: true}}":                    "true",
			`{serviceMonitor: {enabled: true}, histograms: "off"}`: "",
		}},
		// Rules and dashboards can be in namespaces of their own.
		{"PrometheusRule", "{.metadata.namespace}", map[string]string{
			"{prometheusRule: {enabled: true, namespace: rules}}": "rules",
		}},
		{"ConfigMap -fleet", "{.metadata.namespace}", map[string]string{
			"{dashboards: {enabled: true, namespace: grafana}}": "grafana",
		}},
		{"DaemonSet", "{.metadata.namespace}", map[string]string{
			"{dashboards: {enabled: true, namespace: grafana}}": "monitoring",
		}},
		// helm test asks all addresses of the Service, also of exporters that are not ready, as the
		// settings require.
		{"Service", "{.spec.clusterIP} {.spec.publishNotReadyAddresses}", map[string]string{
			"{vendor: nvidia}": "None true",
		}},
		{"Pod -test", "{.spec.containers[0].args[*]}", map[string]string{
			"{vendor: nvidia}": "top --once --all-addresses --http.config.file=/etc/test/http.yaml " +
				"--url=http://test-dra-exporter:10985",
		}},
		{"Secret -test", `{.stringData.http\.yaml}`, map[string]string{
			"{}":            "{}",
			"TLS":           "tls_config: insecure_skip_verify: true",
			"authorization": tokenAt + "kubernetes.io/serviceaccount/token tls_config: insecure_skip_verify: true",
		}},
		{"Pod -test", "{.spec.automountServiceAccountToken}", map[string]string{
			"{}":            "false",
			"authorization": "true",
		}},
	}
}

// ofCertificates are expectations of what verifies the certificate.
func ofCertificates() []expectation {
	const (
		byCA    = "ca_file: /etc/exporters/ca.crt server_name: "
		tokenAt = "authorization: credentials_file: /var/run/secrets/"
	)
	return []expectation{
		// Where the chart knows a CA, all clients verify the certificate by it. The gateway's own
		// token is only for exporters.
		{"Deployment -gateway", token, map[string]string{
			"certificate": "dra-exporter token /var/run/secrets/dra-exporter",
		}},
		{"Secret -gateway", `{.stringData.http\.yaml}`, map[string]string{
			"certificate": tokenAt + "dra-exporter/token tls_config: " + byCA +
				"test-dra-exporter.monitoring.svc",
			"certificate of cert-manager": "tls_config: " + byCA + "test-dra-exporter.monitoring.svc",
			"certificate of a Secret":     "tls_config: " + byCA + "dra",
			"gateway":                     tokenAt + "dra-exporter/token tls_config: insecure_skip_verify: true",
		}},
		{"Deployment -gateway", ca, map[string]string{
			"certificate":                 "test-dra-exporter-tls ca.crt ca.crt /etc/exporters", //nolint:dupword // two values
			"certificate of cert-manager": "test-dra-exporter-tls ca.crt ca.crt /etc/exporters", //nolint:dupword // two values
			"certificate of a Secret":     "web ca.pem ca.crt /etc/exporters",
		}},
		{"Secret -test", `{.stringData.http\.yaml}`, map[string]string{
			"certificate": tokenAt +
				"kubernetes.io/serviceaccount/token tls_config: " + byCA + "test-dra-exporter.monitoring.svc",
		}},
		{"Pod -test", podCA, map[string]string{
			"certificate":             "test-dra-exporter-tls ca.crt ca.crt /etc/exporters", //nolint:dupword // two values
			"certificate of a Secret": "web ca.pem ca.crt /etc/exporters",
		}},
		{"PodMonitor", monitorCA, map[string]string{
			"certificate": "test-dra-exporter-tls ca.crt test-dra-exporter.monitoring.svc",
		}},
		{"DaemonSet", web, map[string]string{
			"certificate": "test-dra-exporter-tls /etc/dra-exporter/web",
		}},
	}
}

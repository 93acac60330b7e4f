package integrations

import (
	"maps"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/otlp"
)

// TestOpenTelemetry runs the Collector with the shipped configuration, but for how it finds the
// exporters, and for TLS. Series of claims and pods arrive with their own resource.
func TestOpenTelemetry(t *testing.T) {
	heavy(t)
	demo := live.FreeAddress(t)
	live.StartDemo(t, root, demo)
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	received := otlp.Start(t, listener)

	var config object
	shipped(t, "opentelemetry/collector.yaml", &config)
	receiver := config["receivers"].(object)["prometheus/dra"].(object)["config"].(object)
	scrapeDemo(t, receiver["scrape_configs"].([]any)[0].(object), demo)
	config["exporters"].(object)["otlp"].(object)["tls"] = object{"insecure": true}
	health := live.FreeAddress(t)
	config["service"].(object)["telemetry"] = object{"metrics": object{"readers": []any{object{"pull": object{
		"exporter": object{"prometheus": object{"host": "127.0.0.1", "port": portOf(t, health)}},
	}}}}}
	collector := exec.Command(program(t, "OTELCOL"), "--config="+write(t, config))
	collector.Env = append(collector.Environ(), "OTLP_ENDPOINT="+listener.Addr().String())
	live.Start(t, collector, http.DefaultClient, "http://"+health+"/metrics")

	node := map[string]string{"k8s.node.name": "demo-node", "k8s.cluster.name": "demo", "service.name": "dra-exporter"}
	with := func(more ...string) map[string]string {
		out := map[string]string{}
		maps.Copy(out, node)
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	gpu := []string{"hw.id", "gpu.example.com/demo-node/gpu-7", "hw.name", "gpu-7", "hw.type", "gpu"}
	claim := append([]string{"k8s.namespace.name", "team-nlp", "k8s.resourceclaim.name", "embedder-0-gpu"}, gpu...)
	pod := append([]string{"k8s.namespace.name", "team-nlp", "k8s.pod.name", "embedder-0"}, gpu...)
	received.Find(t, "dra_claim_power_watts", otlp.Gauge, with(claim...), nil)
	received.Find(t, "dra_claim_energy_joules_total", otlp.Counter, with(claim...), nil)
	received.Find(t, "dra_pod_utilization_ratio", otlp.Gauge, with(pod...), nil)
	received.Find(t, "dra_claim_power_distribution_watts", otlp.ExponentialHistogram, with(claim[:4]...), nil)
	received.Find(t, "dra_device_info", otlp.Gauge, with(gpu...),
		map[string]string{"hw.vendor": "example", "hw.model": "*"})
	received.Find(t, "dra_pod_info", otlp.Gauge, with(pod[:4]...), map[string]string{"k8s.pod.uid": "*"})
	received.Find(t, "dra_claim_io_bytes_total", otlp.Counter, with("hw.type", "network", "k8s.namespace.name", "*"), nil)
	received.Find(t, "dra_exporter_build_info", otlp.Gauge, node, nil)
	leftOver(t, received)
}

// leftOver checks that no label has both names, and that a claim is not in the resource of a pod.
func leftOver(t *testing.T, received *otlp.Sink) {
	t.Helper()
	for metric, points := range received.All() {
		if !strings.HasPrefix(metric, "dra_") {
			continue
		}
		for _, p := range points {
			for _, label := range []string{
				"node", "cluster", "namespace", "pod", "resourceclaim_name", "device", "vendor", "uid",
			} {
				own := strings.HasPrefix(metric, "dra_exporter_")
				if _, ok := p.Own[label]; ok && !own {
					t.Errorf("%s has the attribute %s: %v", metric, label, p.Own)
				}
			}
			if p.Resource["k8s.pod.name"] != "" && strings.HasPrefix(metric, "dra_claim_") {
				t.Errorf("%s has a pod's resource: %v", metric, p.Resource)
			}
		}
	}
}

func portOf(t *testing.T, address string) int {
	a := must.Get(net.ResolveTCPAddr("tcp", address))(t)
	return a.Port
}

// The components that the configuration names are those of the test's Collector, whose own command
// checks it as it is shipped.
func TestOpenTelemetryConfiguration(t *testing.T) {
	heavy(t)
	cmd := exec.CommandContext(t.Context(), program(t, "OTELCOL"), "validate",
		"--config="+filepath.Join(files, "opentelemetry", "collector.yaml"))
	cmd.Env = append(cmd.Environ(), "OTLP_ENDPOINT=otlp.example.com:4317")
	said, err := cmd.CombinedOutput()
	expect.That(t, err == nil, "%v: %s", err, said)
}

package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
	"github.com/dra-exporter/dra-exporter/test/system/otlp"
)

// testCollector runs the OpenTelemetry Collector $OTELCOL with the shipped configuration: it finds
// the exporters through the API server, and series of claims and pods arrive with their own
// resource.
func (w *world) testCollector(t *testing.T) {
	program := os.Getenv("OTELCOL")
	if program == "" {
		t.Skip("make test-integrations runs it")
	}
	content, err := os.ReadFile(filepath.FromSlash("../../../deployments/integrations/opentelemetry/collector.yaml"))
	must.Do(t, err)
	var config object
	must.Do(t, yaml.Unmarshal(content, &config))
	receiver := config["receivers"].(object)["prometheus/dra"].(object)["config"].(object)
	job := receiver["scrape_configs"].([]any)[0].(object)
	job["scrape_interval"] = "1s"
	job["kubernetes_sd_configs"].([]any)[0].(object)["kubeconfig_file"] = w.cluster.Kubeconfig()
	token := strings.TrimSpace(w.kubectl("create", "token", "-n", namespace, release+"-scraper"))
	job["authorization"] = object{"credentials": token}
	config["exporters"].(object)["otlp"].(object)["tls"] = object{"insecure": true}
	config["service"].(object)["telemetry"] = object{"metrics": object{"readers": []any{object{"pull": object{
		"exporter": object{"prometheus": object{"host": "127.0.0.1", "port": 8888}},
	}}}}}
	if content, err = yaml.Marshal(config); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "collector.yaml")
	must.Do(t, os.WriteFile(path, content, 0o600))
	listener := must.Get(w.network.listen(t.Context(), node.Address+":0"))(t)
	received := otlp.Start(t, listener)
	cmd := w.cluster.Command(w.Context(), program, "--config="+path)
	cmd.Env = append(cmd.Environ(), "OTLP_ENDPOINT="+listener.Addr().String())
	live.Start(t, cmd, w.network.client(), "http://127.0.0.1:8888/metrics")

	claim := map[string]string{
		"k8s.node.name": node.Name, "k8s.namespace.name": "default", "k8s.resourceclaim.name": "single", "hw.type": "gpu",
	}
	received.Find(t, "dra_claim_power_watts", otlp.Gauge, claim, nil)
	received.Find(t, "dra_claim_energy_joules_total", otlp.Counter, claim, nil)
	delete(claim, "hw.type") // the distribution is of all devices of a driver
	received.Find(t, "dra_claim_power_distribution_watts", otlp.ExponentialHistogram, claim, nil)
	received.Find(t, "dra_pod_power_watts", otlp.Gauge, map[string]string{
		"k8s.node.name": node.Name, "k8s.namespace.name": "default", "k8s.pod.name": "single", "hw.type": "gpu",
	}, nil)
}

// Package integrations runs the programs of other stacks with the files of
// deployments/integrations: the OpenTelemetry Collector, VictoriaMetrics' vmagent and vmalert, and
// a Prometheus Agent, each against the demo. The Makefile's target test-integrations builds them
// and names them in the environment.
package integrations

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	root  = "../../.."
	files = root + "/deployments/integrations"
)

type object = map[string]any

// heavy skips a test that runs the programs of other stacks, where only the others are asked for.
func heavy(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-integrations runs it")
	}
}

// program returns the path of a program that the environment names.
func program(t *testing.T, variable string) string {
	path := os.Getenv(variable)
	must.That(t, path != "", "%s is not set: run this with make test-integrations", variable)
	return path
}

// shipped decodes a file of deployments/integrations.
func shipped(t *testing.T, path string, into any) {
	content := must.Get(os.ReadFile(filepath.Join(files, path)))(t)
	err := yaml.UnmarshalStrict(content, into)
	must.That(t, err == nil, "%s: %v", path, err)
}

// write writes a file as YAML, and returns its path.
func write(t *testing.T, content any) string {
	data := must.Get(yaml.Marshal(content))(t)
	path := filepath.Join(t.TempDir(), "file.yaml")
	must.Do(t, os.WriteFile(path, data, 0o600))
	return path
}

// scrapeDemo replaces what finds the pods of a cluster in a scrape configuration by the demo.
func scrapeDemo(t *testing.T, job object, demo string) {
	must.That(t, job["kubernetes_sd_configs"] != nil && job["relabel_configs"] != nil, "the job finds no pods: %v", job)
	delete(job, "kubernetes_sd_configs")
	delete(job, "relabel_configs")
	job["scrape_interval"] = "1s"
	job["static_configs"] = []any{object{
		"targets": []any{demo}, "labels": object{"node": "demo-node", "instance": "demo-node", "cluster": "demo"},
	}}
}

package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/deployments/chart"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The program accepts the scrape configuration that the chart renders for the simulated example's
// values.
func TestSimulatedExample(t *testing.T) {
	deployments := filepath.Join("..", "..", "..", "deployments")
	data := must.Get(os.ReadFile(filepath.Join(deployments, "examples", "simulated", "values.yaml")))(t)
	var values map[string]any
	must.Do(t, yaml.Unmarshal(data, &values))
	documents := must.Get(chart.Render(filepath.Join(deployments, "helm", "dra-exporter"),
		chart.Release{Name: release, Namespace: namespace, Values: values}, false))(t)
	for _, document := range documents {
		var m corev1.ConfigMap
		must.Do(t, yaml.Unmarshal([]byte(document), &m))
		if config, ok := m.Data["scrape.yaml"]; ok {
			_, err := scrape.ParseConfig([]byte(config), "/")
			expect.That(t, err == nil, "%v", err)
			return
		}
	}
	t.Error("no scrape configuration")
}

// testManifests validates the plain manifests and the examples with the API server: every field is
// known, and every expression compiles.
func (w *world) testManifests(t *testing.T) {
	deployments := filepath.Join("..", "..", "..", "deployments")
	files := must.Get(filepath.Glob(filepath.Join(deployments, "examples", "*.yaml")))(t)
	simulated := filepath.Join(deployments, "examples", "simulated")
	files = append(files, filepath.Join(simulated, "vendor-exporter.yaml"), filepath.Join(simulated, "workloads.yaml"))
	base := w.kubectl("apply", "--dry-run=server", "-k", filepath.Join(deployments, "manifests"))
	examples := w.kubectl("apply", "--dry-run=server", "-f", strings.Join(files, ","))
	if !strings.Contains(base, "daemonset.apps/dra-exporter created") ||
		!strings.Contains(examples, "resourceclaimtemplate.resource.k8s.io/nic created") {
		t.Errorf("result of the API server:\n%s%s", base, examples)
	}
}

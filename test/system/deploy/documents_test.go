package deploy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/deployments/chart"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/test/docs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// testDocuments runs the commands of the documents that need a cluster on the installed release.
// Objects that kubectl and helm commands apply are only validated by the API server (dry run).
func (w *world) testDocuments(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	must.Do(t, err)
	all, err := docs.Read(root)
	must.Do(t, err)
	n := 0
	for _, c := range docs.Commands(all) {
		if c.Runner() != docs.Cluster {
			continue
		}
		n++
		args := strings.Fields(c.Text)
		switch {
		case args[0] == "helm":
			err = w.helm(root, args[1:])
		case slices.Contains(args, "port-forward"):
			err = w.portForward(t, args[1:])
		default:
			err = w.documented(root, args[1:])
		}
		expect.That(t, err == nil, "%v: %v", c, err)
	}
	expect.That(t, n >= 8, "the documents have only %d commands for a cluster", n)
}

// documented runs a command of kubectl at the root of the tree.
func (w *world) documented(root string, args []string) error {
	if args[0] == "apply" {
		args = append(args, "--dry-run=server")
	}
	cmd := w.cluster.KubectlCommand(w.Context(), args...)
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(said)))
	}
	return nil
}

// portForward runs kubectl port-forward until the exporter answers through it.
func (w *world) portForward(t *testing.T, args []string) error {
	cmd := w.cluster.KubectlCommand(w.Context(), args...)
	live.Start(t, cmd, w.network.client(), "http://127.0.0.1:"+args[len(args)-1]+"/healthz")
	return nil
}

// helm renders the objects of helm install or upgrade with these arguments, and validates them with
// the API server.
func (w *world) helm(root string, args []string) error {
	values := map[string]any{}
	r := chart.Release{Name: args[1], Namespace: "default", Values: values}
	if (args[0] != "install" && args[0] != "upgrade") || strings.HasPrefix(args[1], "-") {
		return errors.New("the test supports only helm install NAME FOLDER and helm upgrade NAME FOLDER")
	}
	for i := 3; i < len(args); i++ {
		switch args[i] {
		case "--create-namespace":
			continue
		case "-n":
			r.Namespace = args[i+1]
		case "--set":
			if err := strvals.ParseInto(args[i+1], values); err != nil {
				return err
			}
		case "-f":
			data, err := os.ReadFile(filepath.Join(root, args[i+1]))
			if err != nil {
				return err
			}
			if err := yaml.Unmarshal(data, &values); err != nil {
				return err
			}
		default:
			return errors.New("the test does not support the flag " + args[i])
		}
		i++
	}
	documents, err := chart.Render(filepath.Join(root, args[2]), r, false)
	if err != nil {
		return err
	}
	var objects []string
	for _, document := range documents {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			return err
		}
		if !strings.HasPrefix(kind.APIVersion, "monitoring.coreos.com/") { // kinds that only clusters with the operator have
			objects = append(objects, document)
		}
	}
	_, err = w.cluster.Kubectl(w.Context(), strings.Join(objects, "---\n"), "apply", "--dry-run=server", "-f", "-")
	return err
}

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

// testIncidents installs the chart with events and a folder for incidents. The chart's rights
// suffice for events, which the API server says, and by default there are none to write; a folder
// that the exporter can't write would end it.
func (w *world) testIncidents(t *testing.T) {
	may := func(verb string) string {
		// It fails where the answer is no.
		out, _ := w.cluster.Kubectl(t.Context(), "", "auth", "can-i", verb, "events", "--all-namespaces",
			"--as=system:serviceaccount:"+namespace+":"+release)
		return strings.TrimSpace(string(out))
	}
	for _, verb := range []string{"create", "patch"} {
		expect.Is(t, may(verb), "no", "by default the exporter may %s events", verb)
	}
	w.install(object{"web": object{}, "incidents": object{"events": true}})
	for verb, want := range map[string]string{"create": "yes", "patch": "yes", "delete": "no", "list": "no"} {
		expect.Is(t, may(verb), want, "the exporter may %s events", verb)
	}
	// The first one may have asked for its rights before the API server's authorizer knew of them.
	w.kubectl("delete", "pod", "-n", namespace, "-l", "app.kubernetes.io/name="+release)
	w.healthy(t)
	log := w.kubectl("logs", "-n", namespace, w.pods()[0].Name)
	expect.That(t, !strings.Contains(log, "events about incidents are not written"), "the exporter misses rights: %s", log)
}

// Package deploy installs the chart's DaemonSet with the image of make image-tar on a real
// Kubernetes with real containers. A real Prometheus scrapes it with the settings of the chart's
// PodMonitor.
//
// $DRA_EXPORTER is the path of the program in the image, $PROMETHEUS that of Prometheus.
package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/deployments/chart"
	"github.com/dra-exporter/dra-exporter/deployments/image"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	release   = "dra-exporter" // and its DaemonSet's name
	namespace = "dra-exporter"
	imageName = "ghcr.io/dra-exporter/dra-exporter:test"

	startTimeout = 3 * time.Minute
)

// world is a cluster with the chart installed.
type world struct {
	*testing.T
	cluster *cluster.Cluster
	client  kubernetes.Interface
	network network
	vendor  vendor
	values  map[string]any
	monitor *monitoringv1.PodMonitor  // of the installed objects
	checks  map[string]corev1.PodSpec // the pods that run dra-exporter check, by what is missing
}

// newWorld starts a cluster with holders of devices, a vendor's exporter and the image.
func newWorld(t *testing.T) *world {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Runtime: cluster.Containerd, Log: os.Stderr})
	must.Do(t, err)
	t.Cleanup(func() {
		expect.OK(t, c.Stop())
	})
	w := &world{T: t, cluster: c, network: network(filepath.Join(filepath.Dir(c.Root()), "ns", "net"))}
	config, err := c.Client()
	must.Do(t, err)
	if w.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	w.kubectl("apply", "-f", filepath.Join("..", "cluster", "testdata", "workloads.yaml"), "-f",
		filepath.Join("testdata", "nic.yaml"))
	tar := filepath.Join(t.TempDir(), "image.tar")
	program := os.Getenv("DRA_EXPORTER")
	must.That(t, program != "", "DRA_EXPORTER is not set: run this with make")
	must.Do(t, image.Write(tar, image.Config{Program: program, Name: imageName, Created: time.Unix(0, 0)}))
	must.Do(t, c.ImportImage(t.Context(), tar))
	w.values = object{
		"image":      object{"tag": "test"},
		"paths":      object{"cdi": []any{"/var/run/cdi"}},
		"sources":    object{"scrape": w.vendor.start(t, w.client, w.network)},
		"zeroHold":   "5s",
		"podMonitor": object{"enabled": true, "interval": interval.String(), "scrapeTimeout": "2s"},
		"web":        object{"kubeAuthorization": object{"enabled": true}},
	}
	maps.Copy(w.values, nvidia(t))
	return w
}

// render renders the chart with more values.
func (w *world) render(more map[string]any, tests bool) []string {
	values := maps.Clone(w.values)
	maps.Copy(values, more)
	documents, err := chart.Render(filepath.Join("..", "..", "..", "deployments", "helm", "dra-exporter"), chart.Release{
		Name: release, Namespace: namespace, Values: values,
	}, tests)
	must.Do(w, err)
	return documents
}

// install renders the chart with more values, applies it and waits for the rollout.
func (w *world) install(more map[string]any) {
	var applied []string
	for _, document := range w.render(more, false) {
		var kind metav1.TypeMeta
		must.Do(w, yaml.Unmarshal([]byte(document), &kind))
		if kind.Kind != "PodMonitor" { // kinds that only clusters with the operator have
			applied = append(applied, document)
			continue
		}
		w.monitor = &monitoringv1.PodMonitor{}
		must.Do(w, yaml.UnmarshalStrict([]byte(document), w.monitor))
	}
	w.apply(applied...)
	w.kubectl("rollout", "status", "daemonset/"+release, "-n", namespace, "--timeout="+startTimeout.String())
}

func (w *world) apply(documents ...string) {
	must.Get(w.cluster.Kubectl(w.Context(), strings.Join(documents, "---\n"), "apply", "-f", "-"))(w)
}

func (w *world) kubectl(args ...string) string {
	out := must.Get(w.cluster.Kubectl(w.Context(), "", args...))(w)
	return string(out)
}

// pods returns the pods of the DaemonSet that are not terminating.
func (w *world) pods() []corev1.Pod {
	var all corev1.PodList
	raw := w.kubectl("get", "pods", "-n", namespace, "-l", "app.kubernetes.io/name="+release, "-o", "json")
	must.Do(w, json.Unmarshal([]byte(raw), &all))
	var out []corev1.Pod
	for i := range all.Items {
		if all.Items[i].DeletionTimestamp == nil {
			out = append(out, all.Items[i])
		}
	}
	return out
}

// startPrometheus starts a Prometheus in the network of the pods, which scrapes with the settings
// of the PodMonitor.
func (w *world) startPrometheus(address string) live.Prometheus {
	config := prometheusConfig(w.T, w.monitor, w.cluster.Kubeconfig(), func(name, key string) (value string) {
		live.Await(w, startTimeout, key+" of Secret "+name, func() error {
			s, err := w.client.CoreV1().Secrets(namespace).Get(w.Context(), name, metav1.GetOptions{})
			if err == nil && len(s.Data[key]) == 0 {
				err = os.ErrNotExist
			}
			if err == nil {
				value = string(s.Data[key])
			}
			return err
		})
		return value
	})
	return live.StartPrometheus(w, live.PrometheusOptions{
		Config: config, Command: w.cluster.Command, Client: w.network.client(), Address: address,
	})
}

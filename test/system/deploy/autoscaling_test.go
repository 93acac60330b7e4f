package deploy

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
	"github.com/dra-exporter/dra-exporter/test/system/otlp"
)

// embedder is a Deployment whose pods have a GPU each, as the shipped autoscalers name it.
const embedder = `
apiVersion: v1
kind: Namespace
metadata: {name: team-nlp}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu, namespace: team-nlp}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: embedder, namespace: team-nlp}
spec:
  replicas: 1
  selector: {matchLabels: {app: embedder}}
  template:
    metadata: {labels: {app: embedder}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: workload:1, resources: {claims: [{name: gpu}]}}]
      resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
`

// service registers an API server at the node's address with the cluster's own: its group, and its
// port.
const service = `
apiVersion: v1
kind: Service
metadata: {name: metrics, namespace: default}
spec: {type: ExternalName, externalName: ` + node.Address + `}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.%[1]s}
spec:
  service: {name: metrics, namespace: default, port: %[2]d}
  group: %[1]s
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// customMetrics is where the API server has the use of the Deployment's pods.
const customMetrics = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/team-nlp/pods/*/dra_device_utilization"

// testAutoscaling scales a Deployment up and down by the use of its pods' devices:
// prometheus-adapter ($PROMETHEUS_ADAPTER) has the shipped rules, and the autoscaler is the shipped
// one, but that it does not wait for minutes before it scales down. These are also the steps of
// Kubernetes AI Conformance, KAR-0057.
func (w *world) testAutoscaling(t *testing.T) {
	program := os.Getenv("PROMETHEUS_ADAPTER")
	if program == "" {
		t.Skip("make test-integrations runs it")
	}
	w.apply(embedder)
	kubeconfig := w.cluster.Kubeconfig()
	w.serve(t, "custom.metrics.k8s.io", 6444, program, "--config="+filepath.Join(autoscaling, "prometheus-adapter.yaml"),
		"--prometheus-url=http://127.0.0.1:9090", "--metrics-relist-interval=5s", "--metrics-max-age=1m",
		"--lister-kubeconfig="+kubeconfig, "--cert-dir="+t.TempDir())
	w.work(t, 2, 1, func() error {
		values, err := w.customMetrics()
		if err == nil && (len(values) != 1 || values[0] < 0.9) {
			err = fmt.Errorf("the metric is %v, want a device in full use", values)
		}
		return err
	})
	var hpa autoscalingv2.HorizontalPodAutoscaler
	w.autoscaler(t, "hpa.yaml", &hpa, func() {
		hpa.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = ptr.To[int32](0)
	})
	w.upAndDown(t, func(replicas int) error {
		values, err := w.customMetrics()
		if err == nil && len(values) != replicas {
			err = fmt.Errorf("the metric is %v", values)
		}
		return err
	})
}

// autoscaling is the folder of the shipped autoscalers.
var autoscaling = filepath.FromSlash("../../../deployments/integrations/autoscaling")

// autoscaler applies a shipped autoscaler after a change.
func (w *world) autoscaler(t *testing.T, name string, into any, change func()) {
	content, err := os.ReadFile(filepath.Join(autoscaling, name))
	if err == nil {
		err = yaml.UnmarshalStrict(content, into)
	}
	if err == nil {
		change()
		content, err = yaml.Marshal(into)
	}
	must.Do(t, err)
	w.apply(string(content))
}

// upAndDown gives the Deployment work for two devices in full use, and then for a fifth of one. It
// has three replicas, which are in use for 67 % of 70 %, and then one, whose claim alone is left.
func (w *world) upAndDown(t *testing.T, also func(replicas int) error) {
	begun := time.Now()
	w.work(t, 2, 3, func() error { return also(3) })
	t.Logf("three replicas after %v", time.Since(begun).Round(time.Second))
	begun = time.Now()
	w.work(t, 0.2, 1, func() error {
		claims, err := w.client.ResourceV1().ResourceClaims("team-nlp").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(claims.Items) != 1 {
			err = fmt.Errorf("there are %d claims", len(claims.Items))
		}
		return errors.Join(err, also(1))
	})
	t.Logf("one replica after %v", time.Since(begun).Round(time.Second))
	w.kubectl("delete", "namespace", "team-nlp", "--wait=true")
	w.vendor.percent.Store(0)
}

// serve runs an API server on the node at a port, and waits until the cluster's own serves its
// group.
func (w *world) serve(t *testing.T, group string, port int, program string, args ...string) {
	kubeconfig := w.cluster.Kubeconfig()
	client := w.network.client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // it signs for itself
	live.Start(t, w.cluster.Command(w.Context(), program, append(args, "--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig, fmt.Sprintf("--secure-port=%d", port))...),
		client, fmt.Sprintf("https://127.0.0.1:%d/healthz", port))
	w.apply(fmt.Sprintf(service, group, port))
	// Where a group is not served, namespaces can't be deleted.
	t.Cleanup(func() { _, _ = w.cluster.Kubectl(w.Context(), "", "delete", "apiservice", "v1beta1."+group) })
	w.kubectl("wait", "--for=condition=Available", "apiservice/v1beta1."+group, "--timeout="+startTimeout.String())
}

// work divides so much work, in devices that are in full use, among the ready pods until there are
// as many as wanted, and something else is true.
func (w *world) work(t *testing.T, devices float64, replicas int, also func() error) {
	live.Await(t, 2*startTimeout, fmt.Sprintf("%d replicas", replicas), func() error {
		d, err := w.client.AppsV1().Deployments("team-nlp").Get(t.Context(), "embedder", metav1.GetOptions{})
		if err != nil {
			return err
		}
		w.vendor.percent.Store(int64(100 * min(1, devices/float64(max(1, d.Status.ReadyReplicas)))))
		if err := settled(d, replicas); err != nil {
			return err
		}
		return also()
	})
}

// settled returns an error unless so many pods of a Deployment are wanted and ready.
func settled(d *appsv1.Deployment, replicas int) error {
	if int(ptr.Deref(d.Spec.Replicas, 0)) != replicas || int(d.Status.ReadyReplicas) != replicas ||
		int(d.Status.Replicas) != replicas {
		return fmt.Errorf("%d replicas are wanted, %d are there, %d ready", ptr.Deref(d.Spec.Replicas, 0),
			d.Status.Replicas, d.Status.ReadyReplicas)
	}
	return nil
}

// customMetrics returns the metric of the Deployment's pods, by way of the API server.
func (w *world) customMetrics() ([]float64, error) {
	raw, err := w.cluster.Kubectl(w.Context(), "", "get", "--raw", customMetrics)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			DescribedObject struct{ Name string }
			Value           string
		}
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	var out []float64
	for _, item := range list.Items {
		q, err := resource.ParseQuantity(item.Value)
		if err != nil || !strings.HasPrefix(item.DescribedObject.Name, "embedder-") {
			return nil, errors.Join(err, fmt.Errorf("%+v", item))
		}
		out = append(out, q.AsApproximateFloat64())
	}
	return out, nil
}

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

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// interval is the scrape interval.
const interval = 6 * time.Second

// drawn is the power of all claims of the workloads: those on single (1 GPU), both (2 GPUs), and
// shared-0.
const drawn = 4 * watts

// The DaemonSet starts with its own ServiceAccount and only the rights of the chart. Claims appear
// in Prometheus, and only authorized scrapers can read them. A rollout does not change the labels
// of series, is no reset of a counter, and loses at most one interval.
func TestDaemonSet(t *testing.T) {
	w := newWorld(t)
	w.kubectl("create", "namespace", namespace)
	w.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
	w.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--all-namespaces", "--timeout="+startTimeout.String())
	t.Run("Manifests", func(t *testing.T) { w.testManifests(t) })
	begun := time.Now()
	w.install(nil)
	t.Logf("installed in %v", time.Since(begun).Round(100*time.Millisecond))
	prometheus := w.startPrometheus("127.0.0.1:9090")
	live.Await(t, startTimeout, "the claims are in Prometheus", func() error { return w.claims(prometheus) })
	t.Logf("the claims were in Prometheus after %v", time.Since(begun).Round(100*time.Millisecond))
	t.Run("Probes", func(t *testing.T) { w.testProbes(t) })
	t.Run("Access", func(t *testing.T) { w.testAccess(t) })
	t.Run("Collector", func(t *testing.T) { w.testCollector(t) })
	t.Run("Writes", func(t *testing.T) { w.testWrites(t) })
	t.Run("OlderWrites", func(t *testing.T) { w.testOlderWrites(t) })
	replaced := w.replace()
	t.Run("Mounts", func(t *testing.T) { w.testMounts(t) })
	t.Run("Rollout", func(t *testing.T) { w.testRollout(t, prometheus, replaced) })
	t.Run("Autoscaling", func(t *testing.T) { w.testAutoscaling(t) })
	t.Run("Gateway", func(t *testing.T) { w.testGateway(t) })
	w.install(object{"web": object{}})
	t.Run("Top", func(t *testing.T) { w.testTop(t) })
	t.Run("Documents", func(t *testing.T) { w.testDocuments(t) })
	t.Run("Password", func(t *testing.T) { w.testPassword(t) })
	t.Run("Incidents", func(t *testing.T) { w.testIncidents(t) })
}

// claims compares the data in Prometheus with the workloads.
func (w *world) claims(prometheus live.Prometheus) error {
	got, err := prometheus.Query(w.Context(), "dra_claim_device_info", time.Now())
	if err != nil {
		return err
	}
	holds := map[string]int{}
	for _, s := range got {
		if s.Labels["admin_access"] == "true" {
			continue
		}
		holds[s.Labels["namespace"]+"/"+s.Labels["resourceclaim_name"]]++
		if s.Labels["node"] != node.Name || s.Labels["instance"] != node.Name || s.Labels["job"] != namespace+"/"+release {
			return fmt.Errorf("the target's labels are in %v", s.Labels)
		}
		for _, label := range []string{"pod", "container", "endpoint", "exported_namespace"} {
			if s.Labels[label] != "" {
				return fmt.Errorf("a label %s is in %v", label, s.Labels)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{
		"default/single": 1, "default/both": 2, "default/part-a": 1, "default/part-b": 1,
		"default/interface": 1,
	},
		holds); diff != "" {
		return fmt.Errorf("%s", diff)
	}
	measured, err := prometheus.Query(w.Context(), "histogram_count(dra_claim_power_distribution_watts)", time.Now())
	if err == nil && len(measured) == 0 {
		err = errors.New("no native histogram was scraped")
	}
	return err
}

// healthy waits until the kubelet's probes pass, and checks that the liveness probe never failed.
// It returns the container.
func (w *world) healthy(t *testing.T) corev1.Container {
	t.Helper()
	var pods []corev1.Pod
	live.Await(t, startTimeout, "there is one pod, and it is ready", func() error {
		pods = w.pods()
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) == 0 {
			return fmt.Errorf("the pods are %+v", pods)
		}
		if status := pods[0].Status.ContainerStatuses[0]; !status.Ready {
			return fmt.Errorf("the container is %+v", status)
		}
		return nil
	})
	if status := pods[0].Status.ContainerStatuses[0]; status.RestartCount != 0 {
		t.Errorf("the container is %+v", status)
	}
	var events corev1.EventList
	must.Do(t, json.Unmarshal([]byte(w.kubectl("get", "events", "-n", namespace, "-o", "json")), &events))
	for i := range events.Items {
		if e := &events.Items[i]; e.Reason == "Unhealthy" &&
			strings.Contains(e.Message, "Liveness") { // not ready at first is normal
			t.Errorf("%s: %s", e.Reason, e.Message)
		}
	}
	return pods[0].Spec.Containers[0]
}

func (w *world) testProbes(t *testing.T) {
	if c := w.healthy(t); c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("the probes are %v and %v", c.ReadinessProbe, c.LivenessProbe)
	}
}

// testAccess sends requests with tokens of service accounts that are authorized, not authorized,
// and do not exist.
func (w *world) testAccess(t *testing.T) {
	address := "http://" + w.pods()[0].Status.PodIP + ":10985"
	scraper := w.token(release + "-scraper")
	for _, test := range []struct {
		path, authorization string
		want                int
	}{
		{"/metrics", scraper, 200},
		{"/api/v1/snapshot", scraper, 200},
		{"/", scraper, 403},
		{"/metrics", w.token("default"), 403},
		{"/metrics", "Bearer " + strings.Repeat("x", 100), 401},
		{"/metrics", "", 401},
		{"/healthz", "", 200},
		{"/readyz", "", 200},
	} {
		if status, body := w.get(t, address+test.path, "Authorization", test.authorization); status != test.want {
			t.Errorf("%s with %.20q: status %d, want %d: %.200s", test.path, test.authorization, status, test.want, body)
		}
	}
}

// token returns the value of a header that proves to be a service account.
func (w *world) token(account string) string {
	return "Bearer " + strings.TrimSpace(w.kubectl("create", "token", "-n", namespace, account))
}

// get requests an address from within the pods' network, with names and values of headers in turns.
func (w *world) get(t *testing.T, address string, header ...string) (status int, body []byte) {
	a := must.Get(live.Ask(t.Context(), w.network.client(), address, header...))(t)
	return a.Status, a.Body
}
